"""The lease routes, as clients of the public sample service know them.

A lease is shown with ``created_at`` the moment of its latest grant, which a new grant of the
same resource moves on while the id stays. In addition to the named leases the lists show those
of every other leasable model, under ids such as ``task:17``; they are taken and given back by the
verbs of their own routes.

A request of a holder is judged by its ``lease_key``: see ``keys``. In the compatible mode, whose
clients have none, the holder's name alone finds the term that a request is about. What is then
done, is done with the grant of the row that was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from django.db.models import Q
from django.http import Http404, HttpRequest
from ninja import Router, Status
from ninja.errors import HttpError
from pydantic import Field

from leasing.api.access import Access
from leasing.api.bodies import Between, BothSpellings, Moment, Notice, Request
from leasing.api.errors import BAD_BODY, answers
from leasing.api.keys import (
    IDEMPOTENT,
    HoldersRequest,
    TermOut,
    check_lease_key,
    request_id,
    term_shown,
)
from leasing.api.lists import At, Limit, Page, Source, page_at
from leasing.api.waiting import Wait, answer_with
from leasing.exceptions import LeaseLost
from leasing.functions import EPOCH
from leasing.leasables import find_row, listed
from leasing.models import Leasable, Lease, LeaseState, leasable_models
from leasing.runtime.labels import TASKS
from leasing.validation.names import check_name
from leasing.validation.terms import Terms
from leasing.web.cursors import Order

#: Names that belong to leases of other models: nobody takes them through these routes.
RESERVED = (TASKS, "leasing_tasks.")

may_see, may_change = Access("leasing.view_lease"), Access("leasing.change_lease")

router = Router(tags=["leases"])


class Term(HoldersRequest):
    """A term: of which resource, and whose."""

    resource: str
    holder: str


class Acquire(Request):
    """A request for a lease."""

    resource: str
    holder: str
    ttl: Annotated[float, Between("MIN_TTL", "MAX_TTL")] | None = Field(
        None, description="Seconds until the deadline, and from each renewal. Default: TTL."
    )
    wait: Wait = 0


class LeaseOut(BothSpellings):
    """A lease. Times are null while there is nothing to say: ``expires_at`` too, of a lease
    that nobody ever had."""

    id: int | str
    resource: str
    holder: str
    created_at: Moment | None
    renewed_at: Moment | None
    released_at: Moment | None
    expires_at: Moment | None
    fencing_token: int = Field(description="Increases with every grant and never decreases.")
    grants: int = Field(description="Number of grants.")

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


class LeaseList(Page):
    """Some leases. Named ones are in the order in which they were first acquired, those of rows in
    the order of their latest grant, the newest first; they are mixed by the time of the grant."""

    leases: list[LeaseOut]


@router.get("/healthz", auth=None, response=Notice, tags=["health"])
@router.api_operation(["HEAD"], "/healthz", auth=None, response=Notice, include_in_schema=False)
def healthz(request: HttpRequest) -> Notice:
    """Report that this process answers. Runs no query."""
    return Notice(message="ok")


@router.get("/leases", auth=may_see, response=answers({200: LeaseList}, 400))
def list_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """Leases in any state."""
    return leases_in("all", cursor, limit)


@router.get("/leases/active", auth=may_see, response=answers({200: LeaseList}, 400))
def list_active_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """Leases that are held now."""
    return leases_in("active", cursor, limit)


@router.get("/leases/expired", auth=may_see, response=answers({200: LeaseList}, 400))
def list_expired_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """Leases that their holder did not renew or release in time."""
    return leases_in("expired", cursor, limit)


@router.get("/leases/renewed", auth=may_see, response=answers({200: LeaseList}, 400))
def list_renewed_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """Leases whose latest grant was renewed, in any state."""
    return leases_in("renewed", cursor, limit)


@router.get("/leases/released", auth=may_see, response=answers({200: LeaseList}, 400))
def list_released_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """Leases that were given back, or taken back by an operator."""
    return leases_in("released", cursor, limit)


@router.post(
    "/leases",
    auth=may_change,
    response=answers({201: GrantOut}, *BAD_BODY, 409),
    openapi_extra=IDEMPOTENT,
)
def acquire_lease(request: HttpRequest, body: Acquire) -> Any:
    """Take a lease. 409 while anybody holds it, the same holder too, unless it is the same request
    sent again under its Idempotency-Key; 409 as well when that grant has ended."""
    refuse_reserved(body.resource)
    terms = Terms.check(holder=body.holder, ttl=body.ttl)
    if (again := request_id(request, body)) is not None:
        terms = replace(terms, request_id=again)
    steps = partial(Lease.objects.all().acquiring_named, body.resource, terms)
    return answer_with(request, body.wait, steps, _granted)


def _granted(lease: Lease) -> Status[GrantOut]:
    return Status(201, GrantOut.to_holder(lease, lease.now))


@router.put(
    "/leases/renew", auth=may_change, response=answers({201: GrantOut}, *BAD_BODY, 404, 409)
)
def renew_lease(request: HttpRequest, body: Term) -> Status[GrantOut]:
    """Move the deadline to the lease's ttl from now."""
    lease = term_of(body)
    with lost_is(body):
        Lease.objects.renew(lease)
    assert lease.renewed_at is not None
    return Status(201, GrantOut.to_holder(lease, lease.renewed_at))


@router.delete(
    "/leases/release", auth=may_change, response=answers({201: LeaseOut}, *BAD_BODY, 404, 409)
)
def release_lease(request: HttpRequest, body: Term) -> Status[LeaseOut]:
    """Give a lease back at once. With its lease_key the same request sent again is answered the
    same."""
    lease = term_of(body)
    with lost_is(body):
        Lease.objects.release(lease)
    return Status(201, LeaseOut.of(lease))


@router.get("/leases/{lease_id}", auth=may_see, response=answers({200: LeaseOut}, 404))
def get_lease(request: HttpRequest, lease_id: str) -> LeaseOut:
    """One lease: 17 is a named one, task:17 that of a task."""
    return LeaseOut.of(find(lease_id))


@router.delete(
    "/leases/{lease_id}", auth=may_change, response=answers({200: Notice}, *BAD_BODY, 404, 409)
)
def release_lease_by_id(request: HttpRequest, lease_id: str, body: Term) -> Notice:
    """Give back the lease with that id, if it is the holder's one of that resource."""
    lease = term_of(body)
    if lease.lease_id != lease_id:
        raise HttpError(404, f"The lease {lease_id} does not belong to {body.resource}.")
    with lost_is(body):
        Lease.objects.release(lease)
    return Notice(message=f"{lease.resource} was released.")


def leases_in(state: str, cursor: str, limit: int) -> LeaseList:
    """Return a page of the leases of all leasable models together.

    Args:
        state: The state that all of them have, "renewed", or "all".
        cursor: The cursor of the page; empty: the first page.
        limit: The number of leases, at most.
    """
    sources = [source_of(model, state) for model in leasable_models()]
    rows, following = page_at(cursor, limit, *sources, newest=granted_at)
    return LeaseList(leases=[LeaseOut.of(row) for row in rows], next=following)


def source_of(model: type[Leasable], state: str) -> Source[Leasable]:
    """Return the rows of ``model`` in ``state``, in the order that an index has."""
    rows = listed(model)
    order = Order(model.leases_listed_by)
    if state == "all":
        return Source(rows, order)
    if state == "renewed":
        return Source(rows, order, Q(renewals__gt=0))
    if state == LeaseState.ACTIVE and model.held_is_indexed:
        rows = rows.holding()
    return Source(rows.with_state(), order, Q(state=state))


def granted_at(row: Leasable) -> datetime:
    """Return the moment of the latest grant of ``row``; of one that nobody has had yet, that at
    which it was made."""
    return row.acquired_at or getattr(row, "created_at", None) or EPOCH


def find(lease_id: str) -> Leasable:
    """The row of that lease. Raises Http404."""
    if lease_id.isprintable():
        row = find_row(lease_id)
        if row.lease_id == lease_id:  # 1_7 is 17 to Python.
            return row
    raise Http404("There is no such lease.")


def term_of(body: Term) -> Lease:
    """The named lease of the term that ``body`` proves. Without a lease_key it is the one that the
    holder has.

    Raises HttpError 409 if the key is wrong or the name is not for these routes, 404 if the holder
    has no such lease, and InvalidResource.
    """
    refuse_reserved(body.resource)
    resource, holder = check_name(body.resource, "resource"), check_name(body.holder, "holder")
    lease: Lease | None = Lease.objects.all().home().filter(resource=resource).first()
    if body.lease_key is not None:
        check_lease_key(lease, body.lease_key)
    elif lease is None or lease.holder != holder or lease.released_at is not None:
        raise HttpError(404, f"{holder} does not hold {resource}.")
    assert lease is not None
    return lease


@contextmanager
def lost_is(body: Term) -> Iterator[None]:
    """Answer the loss of a term that was found by the holder's name with 404, as the sample does;
    who has proven the term learns of it by 409."""
    try:
        yield
    except LeaseLost as loss:
        if body.lease_key is not None:
            raise
        raise HttpError(404, str(loss)) from loss


def refuse_reserved(resource: str) -> None:
    """Raise HttpError 409 if ``resource`` is the name of another model's lease."""
    if resource.startswith(RESERVED):
        raise HttpError(409, f"{resource} belongs to a task: use the routes of tasks.")
