"""Schemas of requests and responses about leases."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leasing.api.bodies import Between, BothSpellings, Moment, Name, Request, Words
from leasing.api.keys import HoldersRequest, TermOut, term_shown
from leasing.api.lists import Page
from leasing.api.waiting import Wait
from leasing.models import Leasable, Lease
from leasing.store import MAX_RENEWED

#: The greatest length of a reason, as ledgers keep it.
MAX_REASON = 500


class Term(HoldersRequest):
    """A term of a lease, proven by its lease_key, or in the compatible mode by the holder's
    name."""

    resource: Name = Field(examples=["report:42"])
    holder: Name | None = Field(None, examples=["web-1"])

    @model_validator(mode="after")
    def _is_somebodys(self) -> Self:
        if self.lease_key is None and self.holder is None:
            raise ValueError("a holder is required without a lease_key")
        return self


class Acquire(Request):
    """A request for a lease."""

    resource: Name = Field(examples=["report:42"])
    holder: Name = Field(examples=["web-1"])
    ttl: Annotated[float, Between("MIN_TTL", "MAX_TTL")] | None = Field(
        None,
        description="Seconds until the deadline, and from each renewal. Default: TTL.",
        examples=[30],
    )
    wait: Wait = 0


class RenewMany(Request):
    """Leases to renew. A malformed request is refused as a whole; any other error affects one
    lease."""

    leases: list[Term] = Field(min_length=1, max_length=MAX_RENEWED)


class Revoke(Request):
    """The reason for revoking a lease: stored with the event and in the audit."""

    reason: Words = Field(max_length=MAX_REASON, examples=["its host is gone"])


class LeaseOut(BothSpellings):
    """A lease. Times are null until they apply: ``expires_at`` is null for a lease that was never
    granted."""

    id: int | str = Field(examples=[17, "task:17"])
    resource: str = Field(examples=["report:42"])
    holder: str = Field(examples=["web-1"])
    created_at: Moment | None = Field(description="The time of the latest grant.")
    renewed_at: Moment | None = Field(description="The time of its latest renewal.")
    released_at: Moment | None = Field(description="The time of its release or revocation.")
    expires_at: Moment | None = Field(description="The deadline.")
    fencing_token: int = Field(
        description="Increases with every grant and never decreases.", examples=[1769860800000000]
    )
    grants: int = Field(description="Number of grants.", examples=[3])

    @classmethod
    def of(cls, row: Leasable) -> LeaseOut:
        """Return the lease of ``row``, of any model."""
        return cls(**_fields_of(row))


def _fields_of(row: Leasable) -> dict[str, Any]:
    return {
        "id": row.pk if isinstance(row, Lease) else row.lease_id,
        "resource": row.lease_resource,
        "holder": row.holder,
        "created_at": row.acquired_at or getattr(row, "created_at", None),
        "renewed_at": row.renewed_at,
        "released_at": row.released_at,
        "expires_at": row.expires_at if row.grants else None,
        "fencing_token": row.fencing_token,
        "grants": row.grants,
    }


class LeaseNow(LeaseOut):
    """A lease, and its state as of the answer."""

    state: str = Field(
        description="free, active, expired or released, by the database's clock.",
        examples=["active"],
    )

    @classmethod
    def of(cls, row: Leasable) -> LeaseNow:
        """Return the lease of ``row``, which was read with ``now``."""
        return cls(**_fields_of(row), state=row.lease_state(row.now).value)


class GrantOut(LeaseOut, TermOut):
    """A lease, as its holder sees it."""

    @classmethod
    def to_holder(cls, lease: Lease, now: datetime) -> GrantOut:
        """Return the lease for the client that holds it, as of ``now``."""
        return cls(**_fields_of(lease), **term_shown(lease, now))


class Renewed(BaseModel):
    """The result for one lease of a batch, as for a single request."""

    status: int = Field(description="201 renewed; 400, 404, 409 an error.")
    lease: GrantOut | None = None
    error: str | None = None


class RenewedMany(BaseModel):
    """The results of a batch, in the order of the request."""

    results: list[Renewed]


class LeaseList(Page):
    """A page of leases, newest first: named leases by their first grant, leases of rows by their
    latest one, merged by the time of the grant."""

    leases: list[LeaseOut]


class EventOut(BothSpellings):
    """An event of a lease."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    kind: str
    resource: str
    holder: str
    previous_holder: str
    fencing_token: int
    at: Moment
    previous_expired_at: Moment | None = Field(
        description="Takeover: the expiry of the previous term. Revocation: the time at "
        "which the revoked term would have expired."
    )
    reason: str
    actor: str


class EventList(Page):
    """A page of the events of a lease, newest first."""

    events: list[EventOut]
