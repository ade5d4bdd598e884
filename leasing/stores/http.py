"""Leases that a lease service keeps: the same holds, over its HTTP API.

    LEASING = {"STORES": {"central": {
        "BACKEND": "leasing.stores.http.HttpStore",
        "URL": "https://leases.example.com/api",
        "TOKEN": os.environ["LEASES_TOKEN"],
    }}}

What happens when
    the service is away      renewals fail and are tried again, with pauses; a hold lives as long as
                             its trust. Acquiring is tried again for PATIENCE seconds
    an answer is lost        the request is sent again: an acquisition with its Idempotency-Key, by
                             which the service finds the grant that it has made
    the service restarts     nothing: grants are in its database, their proofs in this process
    clocks differ            nothing: the service tells the seconds that are left, and they are
                             counted from before the request was sent
    the network hangs        the renewing thread leaves the request behind at its limit

All holds of a process on this store that have about the same ttl are renewed by one request, once
in a third of it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from leasing.client.calls import LeaseCalls, moment_of
from leasing.client.exceptions import ServiceError
from leasing.client.messages import checked_field
from leasing.client.transport import Token, Transport
from leasing.conf import DEFAULT, Wait, leasing_settings
from leasing.exceptions import StoreError
from leasing.holding.errand import RenewsApart
from leasing.holding.term import Term
from leasing.runtime.aio import Steps, drive
from leasing.store import Incumbent, Renewals
from leasing.stores.base import BaseStore
from leasing.validation.terms import Terms

#: The reason of a revocation for which none was given, since the service demands one, and the
#: length that it keeps.
NO_REASON, LONGEST_REASON = "no reason given", 500


class HttpStore(RenewsApart, BaseStore):
    """Keeps leases in a lease service. One for all threads of a process.

    Args:
        url: The address of its API.
        token: Its token, or a function that returns it for each request. None: none, for a service
            in the compatible mode.
        timeout: Seconds until one request must be answered; a renewal has less if its ttl is short.
        patience: Seconds for which a request is tried again, unless it renews or revokes.
        verify: False accepts any certificate; a context of ``ssl`` says which.
        transport: Sends for httpx: through a proxy, or over a socket.

    Raises ValueError for an address that is none.
    """

    is_metered = True

    def __init__(
        self,
        *,
        url: str,
        token: Token | None = None,
        timeout: float = 10.0,
        patience: float = 15.0,
        verify: Any = True,
        transport: Any = None,
    ) -> None:
        options = {"timeout": timeout, "patience": patience, "verify": verify}
        self._transport = Transport(url, token, transport=transport, **options)
        self._calls = LeaseCalls(self._transport)

    def __repr__(self) -> str:
        return f"the lease service at {self._transport.url}"

    def disconnect(self) -> None:
        self._transport.close()

    # The verbs

    def renew_here(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        with _store_errors():
            return drive(self._calls.renew_many(list(grants), timeout))

    def acquiring(
        self,
        resource: str,
        terms: Terms,
        wait: Wait,
        stopping: threading.Event | None,
        *,
        unless_in: str | None,
    ) -> Steps[Term]:
        """See ``BaseStore.acquiring``: here it is the service that waits, for some seconds each
        time."""
        yield partial(self.refuse_in, unless_in)
        patience = leasing_settings.WAIT if wait is DEFAULT else wait
        term = yield from self._asking(resource, terms, patience, stopping)
        return self.announce_grant(term)

    def acquire(self, resource: str, terms: Terms) -> Term:
        return self.announce_grant(self.grant(resource, terms))

    def grant(self, resource: str, terms: Terms) -> Term:
        return drive(self._asking(resource, terms, 0, None))

    def _asking(
        self, resource: str, terms: Terms, wait: Any, stopping: threading.Event | None
    ) -> Steps[Term]:
        with _store_errors():
            term = yield from self._calls.acquire(resource, terms.holder, terms.ttl, wait, stopping)
        # Receivers of signals get a lease as the models have it, and not its key.
        term.row = None
        return term

    def give_back(self, term: Term) -> bool:
        with _store_errors():
            drive(self._calls.release(term))  # a second one gets the answer of the first
        return True

    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        why = f"{reason or NO_REASON} (by {by})" if by else reason or NO_REASON
        with _store_errors():
            shown = drive(self._calls.take_back(resource, why[:LONGEST_REASON]))
            return None if shown is None else _incumbent(shown)

    def current(self, resource: str) -> Incumbent | None:
        with _store_errors():
            shown = drive(self._calls.get(resource))
            if shown is None or checked_field(shown, "state", str) != "active":
                return None
            return _incumbent(shown)

    def held(self) -> dict[str, Incumbent]:
        """Return who holds what, by name, of the leases that the token may see."""
        with _store_errors():
            return {
                checked_field(each, "resource", str): _incumbent(each)
                for each in drive(self._calls.active())
            }


def _incumbent(shown: Any) -> Incumbent:
    return Incumbent(
        holder=checked_field(shown, "holder", str),
        fencing_token=checked_field(shown, "fencing_token", int),
        expires_at=moment_of(checked_field(shown, "expires_at", str)),
    )


@contextmanager
def _store_errors() -> Iterator[None]:
    """Raise StoreError for what the client calls an error of the service."""
    try:
        yield
    except ServiceError as error:
        raise StoreError(str(error)) from error
