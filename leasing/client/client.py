"""The clients of a lease service, for threads and for coroutines."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from leasing.client.calls import LeaseCalls
from leasing.client.closing import AsyncClient, Client
from leasing.client.store import ServiceStore
from leasing.client.transport import AsyncTransport, Token, Transport
from leasing.holding.hold import Hold, TermCallback
from leasing.holding.term import Term
from leasing.runtime.aio import adrive, drive
from leasing.store import Renewals

Seconds = float | timedelta


class _Holding:
    """The part of both clients that makes holds, which the keeper renews from a thread."""

    def _use(self, transport: Transport) -> None:
        self._calls = LeaseCalls(transport)
        self._store = ServiceStore(self._calls)

    def hold(
        self,
        resource: str,
        *,
        holder: str | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = 0.0,
        stopping: threading.Event | None = None,
        on_lost: TermCallback | None = None,
        on_yield: TermCallback | None = None,
    ) -> Hold:
        """Return a hold, for ``with`` or ``async with``: it acquires the lease, renews it while the
        block runs, and releases it at the end. When the service refuses a renewal, or none was
        answered in time, its term is lost: ``term.lost`` is set, ``term.ensure()`` and the end of
        the block raise LeaseLost, an ``async with`` block is cancelled.

        Args:
            resource: The name of the resource.
            holder: The name of the holder; None: that of this process.
            ttl: Seconds of the lease, and from each renewal; None: as the service is configured.
            wait: Seconds to wait while someone else holds it; None: for ever.
            stopping: An event that ends the wait with LeaseTimeout.
            on_lost: Called once with the term when it is lost, on a thread.
            on_yield: Called once with the term when somebody of higher priority asks for it.
        """
        steps = partial(self._calls.acquire, resource, holder, ttl, wait, stopping)
        return Hold(self._store, steps, resource=resource, on_lost=on_lost, on_yield=on_yield)


class LeaseClient(Client, _Holding):
    """Acquires, renews and releases leases of a service over HTTP.

        with LeaseClient("https://leases.example.com/api", token=token) as leases:
            with leases.hold("report:42", ttl=30) as term:
                write(fencing_token=term.fencing_token)

    Any thread may use it. Arguments are those of ``leasing.client.transport.Transport``.
    """

    def __init__(self, url: str, token: Token | None = None, **options: Any) -> None:
        self.transport = Transport(url, token, **options)
        self._use(self.transport)

    def acquire(
        self,
        resource: str,
        holder: str | None = None,
        ttl: Seconds | None = None,
        *,
        wait: Seconds | None = 0.0,
        stopping: threading.Event | None = None,
    ) -> Term:
        """Acquire ``resource``. Nothing renews it: see ``hold``. Raises LeaseHeld, LeaseTimeout.

        Args:
            resource: The name of the resource.
            holder: The name of the holder; None: that of this process.
            ttl: Seconds of the lease; None: as the service is configured.
            wait: Seconds to wait while someone else holds it; None: for ever.
            stopping: An event that ends the wait with LeaseTimeout.
        """
        return drive(self._calls.acquire(resource, holder, ttl, wait, stopping))

    def renew(self, term: Term) -> Term:
        """Renew ``term``, and return it with its new deadline. Raises LeaseLost."""
        return drive(self._calls.renew(term))

    def renew_many(self, terms: Sequence[Term]) -> Renewals:
        """Renew many terms with few requests. The result's ``renewed`` and ``lost`` are keyed by
        the ``key`` of each term. A term that is in neither was locked: renew it again."""
        return drive(self._calls.renew_many([term.key for term in terms]))

    def release(self, term: Term) -> None:
        """Release ``term``. A second call changes nothing. Raises LeaseLost."""
        drive(self._calls.release(term))

    def get(self, resource: str) -> dict[str, Any] | None:
        """Return the lease of ``resource`` as the API shows it; None: nobody has ever held it."""
        return drive(self._calls.get(resource))

    def revoke(self, resource: str, reason: str) -> bool:
        """Take the lease of ``resource`` from its holder, as an operator. Returns False if nobody
        holds it."""
        return drive(self._calls.revoke(resource, reason))


class AsyncLeaseClient(AsyncClient, _Holding):
    """``LeaseClient`` for coroutines: the same methods, to be awaited, and ``async with``.

    Arguments are those of ``leasing.client.transport.AsyncTransport``.
    """

    def __init__(self, url: str, token: Token | None = None, **options: Any) -> None:
        self.transport = AsyncTransport(url, token, **options)
        self._use(self.transport)

    async def acquire(
        self,
        resource: str,
        holder: str | None = None,
        ttl: Seconds | None = None,
        *,
        wait: Seconds | None = 0.0,
    ) -> Term:
        """``LeaseClient.acquire``, without ``stopping``: if the caller is cancelled, what was
        acquired is released."""
        return await adrive(self._calls.acquire(resource, holder, ttl, wait))

    async def renew(self, term: Term) -> Term:
        """``LeaseClient.renew``."""
        return await adrive(self._calls.renew(term))

    async def renew_many(self, terms: Sequence[Term]) -> Renewals:
        """``LeaseClient.renew_many``."""
        return await adrive(self._calls.renew_many([term.key for term in terms]))

    async def release(self, term: Term) -> None:
        """``LeaseClient.release``."""
        await adrive(self._calls.release(term))

    async def get(self, resource: str) -> dict[str, Any] | None:
        """``LeaseClient.get``."""
        return await adrive(self._calls.get(resource))

    async def revoke(self, resource: str, reason: str) -> bool:
        """``LeaseClient.revoke``."""
        return await adrive(self._calls.revoke(resource, reason))
