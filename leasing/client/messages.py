"""Requests to a service and its answers, as JSON, whatever sends them.

An answer is checked field by field: the service may be another one, or one of another version.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from leasing.client.exceptions import InvalidAnswer
from leasing.runtime.terminal import plain
from leasing.validation.names import LONGEST_DURATION

#: The longest pause that a service may ask for, in seconds.
MAX_RETRY_AFTER: Final = 60.0
#: Bytes of a body around the items of a batch, at most.
FRAME: Final = 100


@dataclass(frozen=True, slots=True)
class Request:
    """One request, which keeps its key when it is sent again."""

    method: str
    #: Below the address of the API: ``/leases``.
    path: str
    #: The fields, or JSON that is sent as it is.
    body: Mapping[str, Any] | bytes | None = field(default=None, repr=False)
    #: The Idempotency-Key, of a request that grants or stores something.
    key: uuid.UUID | None = None
    #: Seconds that the service may wait before it answers.
    wait: float = 0.0
    #: Seconds until the answer must arrive, in addition to ``wait``; None: the transport's timeout.
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON object that the service answered."""

    status: int
    data: dict[str, Any] = field(repr=False)
    #: The moment on this process's clock before the request was sent.
    sent_at: float
    #: The answer's header Retry-After, in seconds; 0: there is none.
    retry_after: float = 0.0
    #: The request that it answers.
    request: Request = field(kw_only=True)

    @property
    def message(self) -> str:
        """The text of an error or a notice."""
        return plain(str(self.data.get("error") or self.data.get("message") or "no reason given"))

    @property
    def pause(self) -> float:
        """The pause before the next try, in seconds, that the service requests."""
        return min(self.retry_after, MAX_RETRY_AFTER)

    def value(self, name: str, *kinds: type) -> Any:
        """Return the field ``name``. Raises InvalidAnswer if it is missing or of another kind."""
        return checked_field(self.data, name, *kinds)


def checked_field(data: Any, name: str, *kinds: type) -> Any:
    """Return the field ``name`` of ``data``, part of an answer.

    Raises InvalidAnswer if it is missing, or none of ``kinds``.
    """
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InvalidAnswer(
            f"The answer has no valid field {name!r}: the service is none of this API, or one of "
            "another version."
        )
    return value


def checked_seconds(data: Any, name: str) -> float:
    """Return the field ``name`` of ``data``, part of an answer. Raises InvalidAnswer if that is no
    number of seconds: a lease with an infinite number would be trusted for ever."""
    value = checked_field(data, name, int, float)
    if not abs(value) <= LONGEST_DURATION:
        raise InvalidAnswer(f"The answer's {name} is no number of seconds that can be meant.")
    return float(value)


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return ``body`` as JSON. Raises TypeError or ValueError if it cannot be that."""
    return _encode(body).encode()


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def in_portions(items: Iterable[Mapping[str, Any]], most: int, size: int) -> Iterator[list[bytes]]:
    """Split ``items``, as JSON, for several requests.

    Args:
        items: What is sent, each as JSON.
        most: Items in a request, at most.
        size: Bytes of a body, at most, except of one whose only item is larger.
    """
    portion: list[bytes] = []
    size -= FRAME
    used = 0
    for item in items:
        text = encoded(item)
        length = len(text) + 1
        if portion and (len(portion) >= most or used + length > size):
            yield portion
            portion, used = [], 0
        portion.append(text)
        used += length
    if portion:
        yield portion


def batch_of(name: str, portion: list[bytes]) -> bytes:
    """Return the body of a request with a portion of items: its only field is ``name``."""
    return b'{"%s":[%s]}' % (name.encode(), b",".join(portion))


def object_of(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``body``; None if it is none."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def seconds_of(text: str) -> float:
    """Return the seconds in a header Retry-After; 0 if there are none."""
    # It may also be a date, which would need a clock that is right on both ends.
    text = text.strip()
    return min(float(text), LONGEST_DURATION) if text.isascii() and text.isdigit() else 0.0
