"""``once``: work that is done once per window, however often it is requested.

    result = once("charge:42", window=86_400, payload={"amount": 5}).run(charge)

    @once("import:{day}", window=3600)
    def import_day(day): ...

The work runs under a lease on its key. A second call gets LeaseHeld or waits while the work runs,
and gets the stored result afterwards. If the work raises, the next call does it again; if its
process dies, the next call after the lease has expired. The same key with another payload is
refused.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from leasing.conf import DEFAULT, Wait
from leasing.db.routing import database_of
from leasing.decorators import arguments_of, check_template, refuse_generators
from leasing.exceptions import InvalidTTL, LeaseLost, UnsupportedByStore
from leasing.holding.keeper import keeper
from leasing.holding.term import Term, keep_all
from leasing.models import OnceKey
from leasing.models.once import OnceTerms
from leasing.runtime.aio import adrive, drive, in_thread
from leasing.store import NamedStore
from leasing.stores import stores
from leasing.stores.rows import RowStore
from leasing.validation.names import check_duration, check_name
from leasing.validation.terms import Terms
from leasing.validation.values import Encoder, check_json

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class once:
    """Work that is done once per ``window`` (seconds).

    ``payload`` is the input of the work: JSON with strings as names; dates, times, decimals and
    UUIDs too. ``ttl`` is that of its lease, and must be shorter than the window. ``wait`` is the
    number of seconds to wait while another process does the work, None for ever; the setting WAIT
    by default.

    The results are in rows of the database, and so is the lease: with a ``store`` that keeps leases
    elsewhere it raises UnsupportedByStore.
    """

    key: str
    window: float | timedelta
    payload: Any = None
    ttl: float | timedelta | None = None
    wait: Wait = DEFAULT
    store: str | NamedStore | None = None

    def __post_init__(self) -> None:
        store = self.store
        kind = stores.kind_of(store) if isinstance(store, str) else type(store)
        if store is not None and not issubclass(kind, RowStore):
            raise UnsupportedByStore(
                "once keeps its results in rows of the database, next to the lease; the store "
                f"{store!r} has none. Leave store out."
            )

    def run(self, body: Callable[[], Any]) -> Any:
        """Call ``body`` and store its result, which is JSON, or return the stored one.

        Raises InvalidResource (the key), InvalidTTL (the ttl, the window), LeaseInTransaction;
        LeaseHeld while another process does it (LeaseTimeout after waiting), PayloadMismatch;
        LeaseLost if the lease was lost before the result was stored; ValueError if the result is
        not JSON, and what ``body`` raises. After these two the next call does the work again.
        """
        row = drive(self._steps())
        if row.finished_at is not None:
            return row.result
        term = self._keep(row)
        try:
            return self._finish(row, term, body())
        except BaseException as error:
            term.end(error)
            raise

    async def arun(self, body: Callable[[], Awaitable[Any]]) -> Any:
        """``run``, for async code. A loss of the lease does not cancel the body, but its result is
        refused."""
        row = await adrive(self._steps())
        if row.finished_at is not None:
            return row.result
        term = self._keep(row)
        try:
            return await in_thread(self._finish, row, term, await body())
        except BaseException as error:
            await in_thread(term.end, error)
            raise

    def __call__(self, function: Function) -> Function:
        """Decorate ``function``. The key is a format string over the call's arguments, which are
        also the payload unless one was given.

        Raises TypeError for a key with a field that is no argument, and for a generator function.
        """
        refuse_generators(function)
        signature = inspect.signature(function)
        check_template("key", self.key, function, signature)

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
            raise InvalidTTL(
                f"The window must be longer than the ttl: it is {window.total_seconds():.12g} s, "
                f"the ttl is {terms.ttl.total_seconds():.12g} s. Pass ttl= too for a short window."
            )
        asked = OnceTerms(
            holder=terms.holder, ttl=terms.ttl, window=window, payload_hash=_hash(self.payload)
        )
        keeper.start()  # first: if it fails, nobody would renew the lease
        resource = OnceKey(key=check_name(self.key, "key")).lease_resource
        return OnceKey.objects.all().beginning(resource, asked, self.wait, self.key)

    def _keep(self, row: OnceKey) -> Term:
        term = OnceKey.objects.all().store(row).term(row)
        keep_all([term])
        return term

    def _finish(self, row: OnceKey, term: Term, result: Any) -> Any:
        term.expect_end()
        check_json(result, "result")
        try:
            OnceKey.objects.using(database_of(row)).finish(row, result)
        except LeaseLost:
            term.detach()  # there is nothing to release, and the loss was recorded
            raise
        term.detach()
        return result


def _hash(payload: Any) -> str:
    try:
        text = json.dumps(payload, sort_keys=True, cls=Encoder)
        _check_names(payload)
    except (TypeError, ValueError, RecursionError) as error:
        # repr() would not do instead: that of most objects differs between processes.
        raise ValueError(f"The payload is not JSON, pass a JSON payload: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _check_names(value: Any) -> None:
    """Raise ValueError for names that are not strings: JSON would make them equal to the names of
    another payload."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"the name {name!r} is not a string")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check_names(item)
