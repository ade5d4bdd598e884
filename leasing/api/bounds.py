"""The bound on what a token holds at once, for routes that grant."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from django.db import DatabaseError
from django.http import HttpRequest
from ninja.errors import HttpError

from leasing.api.principals import Token, principal_of
from leasing.models import ApiToken, Leasable, TokenGrant
from leasing.runtime.aio import Steps, Undoable, altered, run_later

Row = TypeVar("Row", bound=Leasable)

#: Seconds after which a client may look again if its token holds as much as it may.
AGAIN: Final = 5


class Room:
    """Room for grants, of which ``size`` may be made in the block::

    with room_for(request, 10, request_id) as room:
        tasks = Task.objects.claim(holder, limit=room.size)
        room.granted(tasks)
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def granted(self, rows: Sequence[Leasable]) -> None:
        """Note what was granted."""


class _Bounded(Room):
    """Room for grants of a token with a bound; what is not used is left at the end."""

    def __init__(
        self, request: HttpRequest, token: ApiToken, wanted: int, request_id: uuid.UUID | None
    ) -> None:
        super().__init__(wanted)
        self._request = request
        self._token = token
        self._request_id = request_id or uuid.uuid4()
        self._granted: Sequence[Leasable] = ()

    def __enter__(self) -> Room:
        self.size = TokenGrant.objects.reserve(self._token, self.size, self._request_id)
        if not self.size:
            most = self._token.max_held
            self._request.try_again_in = AGAIN  # type: ignore[attr-defined]
            raise HttpError(403, f"This token may hold {most} leases and tasks at once, and does.")
        return self

    def __exit__(self, *error: object) -> None:
        # A client that is told of no grant would hold it in vain: the reservation stays instead.
        with suppress(DatabaseError):
            TokenGrant.objects.settle(self._token, self._request_id, self._granted)

    def granted(self, rows: Sequence[Leasable]) -> None:
        self._granted = rows


def room_for(request: HttpRequest, wanted: int, request_id: uuid.UUID | None = None) -> Room:
    """Return a block in which grants are made for ``request``. Entering it raises HttpError 403 if
    its token holds as much as it may.

    Args:
        request: The client's request, which its route has let in.
        wanted: The number of grants, at most.
        request_id: The id of a request that may be sent again: it finds the room that it had.
    """
    token = _bounded_token(request)
    return _Bounded(request, token, wanted, request_id) if token else Room(wanted)


def in_room(
    request: HttpRequest, steps: Steps[Row], request_id: uuid.UUID | None = None
) -> Steps[Row]:
    """Return steps by which one row is granted for ``request``, and which may wait for it. They
    keep its room while they wait; when they are stopped, they give it back. The other arguments are
    those of ``room_for``.

    Args:
        steps: The steps of the grant, which bring its row.
    """
    token = _bounded_token(request)
    if token is None:
        return steps
    room = _Bounded(request, token, 1, request_id)
    return _granting(room, steps, may_repeat=request_id is not None)


def _granting(room: Room, steps: Steps[Row], *, may_repeat: bool) -> Steps[Row]:
    latest: Any = None

    def note(step: Any) -> Any:
        nonlocal latest
        latest = step
        return step

    yield room.__enter__
    try:
        row = yield from altered(steps, note)
    except GeneratorExit:
        # A grant that is under way now stays, for the request that is sent again, and so does its
        # room.
        if not (may_repeat and isinstance(latest, Undoable)):
            run_later(room.__exit__)
        raise
    except Exception:
        yield room.__exit__
        raise
    room.granted([row])
    yield room.__exit__
    return row


def _bounded_token(request: HttpRequest) -> ApiToken | None:
    principal = principal_of(request)
    if isinstance(principal, Token) and principal.token.max_held is not None:
        return principal.token
    return None
