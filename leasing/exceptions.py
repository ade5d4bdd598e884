"""Exceptions of leases.

LeaseError
├── LeaseHeld           someone holds it; names the holder and the expiry
│   └── LeaseTimeout    ... and still did at the end of the wait
├── LeaseLost           your term has ended
│   └── StaleToken      the target of a write has seen a newer token
├── LeaseInTransaction  asked for inside an atomic block
├── StoreError          the store of the lease does not answer, or refuses the request
├── UnsupportedByStore  the store of the lease cannot do that
├── PayloadMismatch     a key of ``once`` was used with other arguments
├── InvalidResource     the name of a resource or a holder is unusable
└── InvalidTTL          the ttl is not a number, or out of bounds
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from leasing.runtime.terminal import label


class LeaseError(Exception):
    """Something is wrong with a lease."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))

    def __reduce__(self: BaseException) -> Any:
        # Made again without __init__, whose arguments are not always those that ``args`` has.
        # OSError leaves its args to __init__ where a class has its own: they are set once more.
        kind = type(self)
        return kind.__new__, (kind, *self.args), {"args": self.args, **vars(self)}


class LeaseHeld(LeaseError):
    """Someone else holds the lease."""

    def __init__(
        self,
        resource: str,
        holder: str = "",
        expires_at: datetime | None = None,
        remaining: float | None = None,
    ) -> None:
        """The message names the holder and the end of its lease.

        Args:
            resource: The resource that was asked for.
            holder: Its holder, if it is known.
            expires_at: The end of the holder's lease unless it is renewed; None if it is not known.
            remaining: Seconds until then by the database's clock; None if they are not known.
        """
        self.resource = resource
        self.holder = holder
        self.expires_at = expires_at
        self.remaining = remaining
        who = f"held by {holder}" if holder else "being acquired by someone else"
        until = f" until {expires_at.isoformat()}" if expires_at else ""
        super().__init__(f"{label(resource)} is {who}{until}.")


class LeaseTimeout(LeaseHeld):
    """Someone else held the lease until the end of the wait, of ``waited`` seconds."""

    def __init__(
        self,
        resource: str,
        holder: str = "",
        expires_at: datetime | None = None,
        waited: float = 0.0,
        remaining: float | None = None,
    ) -> None:
        """The other arguments are those of ``LeaseHeld``.

        Args:
            waited: Seconds for which the caller has waited.
        """
        super().__init__(resource, holder, expires_at, remaining)
        self.waited = waited
        self.args = (f"Waited {waited:.1f} s: {self}",)


class LeaseLost(LeaseError):
    """The lease is no longer yours."""

    def __init__(self, resource: str, reason: str) -> None:
        self.resource = resource
        self.reason = reason
        super().__init__(f"{label(resource)} was lost: {reason}.")


class StaleToken(LeaseLost):
    """A write was refused, because its target has seen a newer fencing token."""


class LeaseInTransaction(LeaseError):
    """A lease cannot be taken inside a transaction: if that rolled back, a token that was already
    used would be granted again, and the next holder could miss what is not yet committed. Take the
    lease first, then begin the transaction: with hold: with transaction.atomic(): ... A view under
    ATOMIC_REQUESTS needs @transaction.non_atomic_requests. If neither is possible, hold(...,
    separate=True) takes the lease over a connection of its own, though not on SQLite."""


class StoreError(LeaseError):
    """The store of the lease does not answer, or refuses the request. Without an answer, what was
    asked may have been done all the same."""


class UnsupportedByStore(LeaseError):
    """The store of the lease cannot do what was asked for."""


class PayloadMismatch(LeaseError):
    """The same key was used with another payload."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"{key} was already used with a different payload.")


class InvalidResource(LeaseError, ValueError):
    """A name is not 1 to 200 printable characters."""


class InvalidTTL(LeaseError, ValueError):
    """A ttl is not a number of seconds within the configured bounds."""
