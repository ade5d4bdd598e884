"""The addresses of the demo site, and three bare views for comparison: they run the statements of
the API's lease routes, and do nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from project.urls import urlpatterns as of_the_site
from tests.benchmarks.plain.leases import HISTORY, Connection

#: As the API looks up a credential, and the lease that a holder's request is about.
_READ = b"SELECT id, resource, holder, grant_id FROM plain_lease WHERE resource = %s"


def _view(verb: Callable[[Connection, str], Any]) -> Callable[[HttpRequest], JsonResponse]:
    @csrf_exempt
    def view(request: HttpRequest) -> JsonResponse:
        connection.ensure_connection()
        raw: Connection = connection.connection
        raw.execute(_READ, ["credential"]).fetchone()
        row = verb(raw, json.loads(request.body)["resource"])
        return JsonResponse({"id": row[0], "resource": row[1], "grant_id": str(row[3])})

    return view


def _acquire(raw: Connection, resource: str) -> Any:
    return HISTORY.acquire(raw, resource)


def _renew(raw: Connection, resource: str) -> Any:
    row = raw.execute(_READ, [resource]).fetchone()
    HISTORY.renew(raw, row)
    return row


def _release(raw: Connection, resource: str) -> Any:
    row = raw.execute(_READ, [resource]).fetchone()
    HISTORY.release(raw, row)
    return row


urlpatterns = [
    *of_the_site,
    path("bare/acquire", _view(_acquire)),
    path("bare/renew", _view(_renew)),
    path("bare/release", _view(_release)),
]
