"""The body of an answer as it arrives, within bounds of size and time."""

from __future__ import annotations

from typing import Final

import httpx

from leasing.client.exceptions import InvalidAnswer
from leasing.runtime.clock import clock

#: The greatest size of an answer, in bytes.
MAX_ANSWER: Final = 32 * 1024 * 1024


class Chunks:
    """The body of an answer as it arrives, up to MAX_ANSWER and until ``deadline``."""

    def __init__(self, response: httpx.Response, deadline: float) -> None:
        self._response = response
        self._deadline = deadline
        self._received = bytearray()

    def add(self, chunk: bytes) -> None:
        self._received += chunk
        if len(self._received) > MAX_ANSWER:
            raise InvalidAnswer(
                f"{self._response.url} answered with more than {MAX_ANSWER} bytes: this is not "
                "the address of the API."
            )
        if clock() > self._deadline:
            raise httpx.ReadTimeout("the answer took too long", request=self._response.request)

    @property
    def body(self) -> bytes:
        return bytes(self._received)
