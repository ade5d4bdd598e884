"""The JSON of leases: what is asked, what is answered."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leasing.api.bodies import Between, BothSpellings, Moment, Name, Request
from leasing.api.keys import HoldersRequest, TermOut, term_shown
from leasing.api.lists import Page
from leasing.api.waiting import Wait
from leasing.models import Leasable, Lease

#: Leases that are renewed by one request.
MAX_BATCH = 100
#: The greatest length of a reason, as ledgers keep it.
MAX_REASON = 500


class Term(HoldersRequest):
    """A term: of which resource, and whose. It is proven by its lease_key, or in the compatible
    mode by the holder's name."""

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
    """Terms that go on. What is wrong in their form refuses all; what else is wrong with one, that
    one."""

    leases: list[Term] = Field(min_length=1, max_length=MAX_BATCH)


class Revoke(Request):
    """Why an operator takes a lease away: stored with the event and in the audit."""

    reason: str = Field(min_length=1, max_length=MAX_REASON, examples=["its host is gone"])


class LeaseOut(BothSpellings):
    """A lease. Times are null while there is nothing to say: ``expires_at`` too, of a lease
    that nobody ever had."""

    id: int | str = Field(examples=[17, "task:17"])
    resource: str = Field(examples=["report:42"])
    holder: str = Field(examples=["web-1"])
    created_at: Moment | None = Field(description="The time of the latest grant.")
    renewed_at: Moment | None = Field(description="The time of its latest renewal.")
    released_at: Moment | None = Field(description="When it was released or revoked.")
    expires_at: Moment | None = Field(description="The deadline.")
    fencing_token: int = Field(
        description="Increases with every grant and never decreases.", examples=[1769860800000000]
    )
    grants: int = Field(description="Number of grants.", examples=[3])

    @classmethod
    def of(cls, row: Leasable) -> LeaseOut:
        """The lease of ``row``, of any model."""
        return cls(
            id=row.pk if isinstance(row, Lease) else row.lease_id,
            resource=row.lease_resource,
            holder=row.holder,
            created_at=row.acquired_at or getattr(row, "created_at", None),
            renewed_at=row.renewed_at,
            released_at=row.released_at,
            expires_at=row.expires_at if row.grants else None,
            fencing_token=row.fencing_token,
            grants=row.grants,
        )


class GrantOut(LeaseOut, TermOut):
    """A lease, for its holder."""

    @classmethod
    def to_holder(cls, lease: Lease, now: datetime) -> GrantOut:
        """The lease for the client that holds it, as it was written ``now``."""
        return cls(**vars(LeaseOut.of(lease)), **term_shown(lease, now))


class Renewed(BaseModel):
    """The answer for one lease of a batch: as it would have been answered alone."""

    status: int = Field(description="201 renewed; 400, 404, 409 an error.")
    lease: GrantOut | None = None
    error: str | None = None


class RenewedMany(BaseModel):
    """The answers for the leases of a batch, in their order."""

    results: list[Renewed]


class LeaseList(Page):
    """Some leases. Named ones are in the order in which they were first acquired, those of rows in
    the order of their latest grant, the newest first; they are mixed by the time of the grant."""

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
        description="When the term before expired, of a takeover; when the term would have, of a "
        "revocation."
    )
    reason: str
    actor: str


class EventList(Page):
    """Some events of a lease, newest first."""

    events: list[EventOut]
