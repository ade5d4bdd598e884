"""``once``: a piece of work that is done once a window, however often it is asked for.

    result = once("charge:42", window=86_400, payload={"amount": 5}).run(charge)

    @once("import:{day}", window=3600)
    def import_day(day): ...

The work runs under a lease on its key. Who asks while it runs is told so (LeaseHeld), or waits;
who asks after it is given its result. When it raises, the next to ask does it; when its process
dies, the next to ask once the lease has ended. The same key with another payload is refused.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.serializers.json import DjangoJSONEncoder

from leasing.db.routing import database_of
from leasing.decorators import arguments_of, refuse_generators
from leasing.exceptions import InvalidTTL, LeaseLost
from leasing.hold.held_grant import HeldGrant
from leasing.keeper import keeper
from leasing.models import OnceKey
from leasing.querysets.once import OnceTerms
from leasing.runtime.aio import adrive, drive, in_thread
from leasing.stores.rows import RowStore, grant_of
from leasing.validation.json_values import check_json
from leasing.validation.names import check_duration, check_name
from leasing.validation.terms import Terms

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class once:
    """Work that is done once a ``window`` of seconds.

    ``payload`` is what it is done with (JSON, whose names are strings; dates, times, decimals and
    UUIDs too); ``ttl`` is of the
    lease it runs under, and must be shorter than the window; ``wait`` is for how many seconds to
    wait for another that is doing it; None is the setting WAIT.
    """

    key: str
    window: float | timedelta
    payload: Any = None
    ttl: float | timedelta | None = None
    wait: float | None = None

    def run(self, body: Callable[[], Any]) -> Any:
        """Call ``body``, or return what it returned before; its result is JSON.

        Raises InvalidResource (the key), InvalidTTL (the ttl, the window), LeaseInTransaction;
        LeaseHeld while another does it (LeaseTimeout after waiting), PayloadMismatch; LeaseLost
        when the lease was lost before the result was kept; ValueError when the result is not
        JSON, and what ``body`` raises. After these two the next to ask does it again.
        """
        row = drive(self._steps())
        if row.finished_at is not None:
            return row.result
        held = self._keep(row)
        try:
            result = body()
        except BaseException as error:
            held.end(error)
            raise
        return self._finish(row, held, result)

    async def arun(self, body: Callable[[], Awaitable[Any]]) -> Any:
        """``run``, for async code. The body is not cancelled when the lease is lost; its result
        is refused."""
        row = await adrive(self._steps())
        if row.finished_at is not None:
            return row.result
        held = self._keep(row)
        try:
            result = await body()
        except BaseException as error:
            await in_thread(held.end, error)
            raise
        return await in_thread(self._finish, row, held, result)

    def __call__(self, function: Function) -> Function:
        """As a decorator. The key is a format string over the call's arguments, and they are
        the payload, unless one was given. Raises TypeError for a generator function."""
        refuse_generators(function)
        signature = inspect.signature(function)

        def for_call(args: Any, kwargs: Any) -> once:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            payload = dict(bound.arguments) if self.payload is None else self.payload
            return replace(self, key=self.key.format(**arguments_of(bound)), payload=payload)

        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                return await for_call(args, kwargs).arun(lambda: function(*args, **kwargs))

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return for_call(args, kwargs).run(lambda: function(*args, **kwargs))

        return run  # type: ignore[return-value]

    def _steps(self) -> Any:
        terms = Terms.check(ttl=self.ttl)
        window = check_duration(self.window, "window")
        if window <= terms.ttl:
            raise InvalidTTL("The window must be longer than the ttl of the lease.")
        asked = OnceTerms(
            holder=terms.holder,
            ttl=terms.ttl,
            window=window,
            payload_hash=_hash(self.payload),
        )
        keeper.start()  # before anything is held that nobody would renew
        key = {"key": check_name(self.key, "key")}
        resource = OnceKey(**key).lease_resource
        return OnceKey.objects.home().acquiring(resource, asked, self.wait, key)

    def _keep(self, row: OnceKey) -> HeldGrant:
        held = HeldGrant(RowStore(OnceKey, database_of(row)), grant_of(row))
        held.keep()
        return held

    def _finish(self, row: OnceKey, held: HeldGrant, result: Any) -> Any:
        held.expect_end()
        try:
            check_json(result, "result")
            OnceKey.objects.using(database_of(row)).finish(row, result)
        except LeaseLost:
            held.abandon()  # there is nothing to give back, and it was told already
            raise
        except BaseException as error:
            held.end(error)
            raise
        held.abandon()
        return result


class _Encoder(DjangoJSONEncoder):
    """Tells two payloads apart wherever they differ: Django's cuts times to milliseconds."""

    def default(self, value: Any) -> Any:
        if isinstance(value, datetime | time):
            return value.isoformat()
        return super().default(value)


def _hash(payload: Any) -> str:
    try:
        text = json.dumps(payload, sort_keys=True, cls=_Encoder)
        _check_names(payload)
    except (TypeError, ValueError, RecursionError) as error:
        # Not its repr() instead: that of most objects is another in every process.
        raise ValueError(f"The payload is not JSON, pass a JSON payload: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _check_names(value: Any) -> None:
    """Raise ValueError for names that JSON would turn into strings, and so into those of
    another payload."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"the name {name!r} is not a string")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check_names(item)
