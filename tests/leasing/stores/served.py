"""The API of this site as a lease service, called without a network."""

from __future__ import annotations

from typing import Any

import httpx
from django.test import Client

from leasing.models import ApiToken
from leasing.stores.http import HttpStore
from tests.remote import SCOPES, Fault, refused

URL = "http://localhost/api"


class InProcess(httpx.BaseTransport):
    """Calls the API in the transaction of the test. ``faults`` act once each, in order."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        #: True while nobody answers.
        self.is_away = False
        #: True while the service is at work.
        self.is_serving = False
        #: Every request that was made of it.
        self.requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.is_away:
            return refused(lambda: self._answer(request), request)
        if self.faults:
            return self.faults.pop(0)(lambda: self._answer(request), request)
        return self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.is_serving = True
        try:
            answer = Client().generic(
                request.method,
                request.url.raw_path.decode(),
                request.read(),
                content_type="application/json",
                headers=dict(request.headers),
            )
        finally:
            self.is_serving = False
        return httpx.Response(
            answer.status_code, headers=dict(answer.headers), content=answer.content
        )


def store_of_api(network: InProcess, **options: Any) -> HttpStore:
    """Return a store of the API, with a token of its own."""
    _, token = ApiToken.objects.issue(f"store-{id(network)}", scopes=SCOPES)
    return HttpStore(url=URL, token=token, transport=network, **options)
