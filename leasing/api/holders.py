"""Routes of holders of named leases: acquire, renew, release.

A request of a holder is judged by its ``lease_key``: see ``keys``. Clients in the compatible mode
have no key, so the holder's name alone finds the term that their request is about. Either way, the
verb then acts for the grant of the row that was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from django.http import HttpRequest
from ninja import Status
from ninja.errors import HttpError

from leasing.api.access import Access
from leasing.api.document import linked
from leasing.api.errors import BAD_BODY, answers, refusal_of
from leasing.api.keys import IDEMPOTENT, check_lease_key, request_id
from leasing.api.principals import principal_of

# GET and POST of /leases have one path, so they must be on one router.
from leasing.api.routes import router
from leasing.api.schemas import (
    Acquire,
    GrantOut,
    LeaseOut,
    Renewed,
    RenewedMany,
    RenewMany,
    Term,
)
from leasing.api.waiting import answer_with
from leasing.exceptions import LeaseLost
from leasing.models import Lease, LeaseEvent, lease_kinds
from leasing.runtime.terminal import TASKS
from leasing.store import Renewal, Renewals
from leasing.validation.names import check_name
from leasing.validation.terms import Terms

#: Prefixes of names that no client can lease through these routes: those of tasks, and those of
#: this site itself. The kinds of leasable rows are reserved too: see ``check_resource``.
RESERVED = (TASKS, "leasing_tasks.")

may_change = Access("leasing.change_lease")

#: The links of an answer that has a lease_key, and of one that shows a lease.
_TERM = {name: f"$response.body#/{name}" for name in ("resource", "holder", "lease_key")}
_ID = {"lease_id": "$response.body#/id"}
OF_TERM: dict[str, dict[str, Any]] = {
    "renew_lease": {"requestBody": _TERM},
    "renew_leases": {"requestBody": {"leases": [_TERM]}},
    "release_lease": {"requestBody": _TERM},
    "release_lease_by_id": {"parameters": _ID, "requestBody": _TERM},
}
OF_LEASE: dict[str, dict[str, Any]] = {
    "get_lease": {"parameters": _ID},
    "get_named_lease": {"parameters": {"resource": "$response.body#/resource"}},
    "list_lease_events": {"parameters": _ID},
    "revoke_lease": {"parameters": _ID, "requestBody": {"reason": "its host is gone"}},
}


@router.post(
    "/leases",
    auth=may_change,
    response=answers({201: GrantOut}, *BAD_BODY, 409),
    openapi_extra=IDEMPOTENT | linked(201, **OF_TERM, **OF_LEASE),
)
def acquire_lease(request: HttpRequest, body: Acquire) -> Any:
    """Acquire a lease. 409 while anyone holds it, including the same holder, unless this is a retry
    with the same Idempotency-Key; also 409 once that grant has ended."""
    check_resource(request, body.resource)
    # Without metadata: the holder is another program than this process.
    terms = Terms.check(holder=body.holder, ttl=body.ttl, metadata={})
    if (again := request_id(request, body)) is not None:
        terms = replace(terms, request_id=again)

    steps = partial(Lease.objects.acquiring_named, body.resource, terms)
    return answer_with(request, body.wait, steps, _granted)


def _granted(lease: Lease) -> Status[GrantOut]:
    return Status(201, GrantOut.to_holder(lease, lease.now))


@router.put(
    "/leases/renew",
    auth=may_change,
    response=answers({201: GrantOut}, *BAD_BODY, 404, 409),
    openapi_extra=linked(201, **OF_TERM),
)
def renew_lease(request: HttpRequest, body: Term) -> Status[GrantOut]:
    """Renew a lease: its deadline is one ttl from now."""
    return Status(201, renewed(body, term_of(request, body)))


@router.put("/leases/renew/batch", auth=may_change, response=answers({200: RenewedMany}, *BAD_BODY))
def renew_leases(request: HttpRequest, body: RenewMany) -> RenewedMany:
    """Renew several leases in one statement. A refused one does not affect the others."""
    names = [term.resource for term in body.leases]
    known = {
        lease.resource: lease for lease in Lease.objects.all().home().filter(resource__in=names)
    }
    proven: dict[int, Lease] = {}
    results: dict[int, Renewed] = {}
    for number, term in enumerate(body.leases):
        with _refused_alone(results, number):
            check_resource(request, term.resource)
            proven[number] = judged(term, known.get(term.resource))
    grants = {lease.pk: lease.grant_id for lease in proven.values() if lease.grant_id}
    renewals = Lease.objects.all().renew_many(grants) if grants else Renewals()
    for number, lease in proven.items():
        with _refused_alone(results, number):
            out = _renewed_together(body.leases[number], lease, renewals)
            results[number] = Renewed(status=201, lease=out)
    return RenewedMany(results=[results[number] for number in range(len(names))])


@router.delete(
    "/leases/release", auth=may_change, response=answers({201: LeaseOut}, *BAD_BODY, 404, 409)
)
def release_lease(request: HttpRequest, body: Term) -> Status[LeaseOut]:
    """Release a lease. A retry with its lease_key gets the same answer."""
    lease = term_of(request, body)
    release(body, lease)
    return Status(201, LeaseOut.of(lease))


def renewed(term: Term, lease: Lease) -> GrantOut:
    """Renew ``lease``, which ``term`` proves."""
    with lost_is(term):
        Lease.objects.renew(lease)
    assert lease.renewed_at is not None
    return GrantOut.to_holder(lease, lease.renewed_at)


def release(term: Term, lease: Lease) -> None:
    """Give back ``lease``, which ``term`` proves."""
    with lost_is(term):
        if lease.released_at is not None:
            # Only the ledger distinguishes a revocation from a release: the row has the token that
            # the revocation raised, and the lease_key does not contain the token of the grant.
            events = LeaseEvent.objects.about(lease)
            if events.filter(kind="revoked", grant_id=lease.grant_id).exists():
                raise LeaseLost(lease.resource, "it was revoked")
        Lease.objects.release(lease)


def _renewed_together(term: Term, lease: Lease, renewals: Renewals) -> GrantOut:
    """Return the answer for ``lease`` from the ``renewals`` of its batch. If its row was locked,
    ``renewals`` does not contain the lease; it is then renewed alone, which waits for the lock."""
    renewal: Renewal | None = renewals.renewed.get(lease.pk)
    if renewal is not None:
        now = renewal.expires_at - timedelta(seconds=renewal.remaining)
        lease.expires_at, lease.renewed_at = renewal.expires_at, now
        lease.yield_to = renewal.yield_to
        lease.ends_at = renewal.expires_at if renewal.is_last else None
        return GrantOut.to_holder(lease, now)
    if lease.pk in renewals.lost:
        with lost_is(term):
            raise LeaseLost(lease.resource, renewals.lost[lease.pk])
    return renewed(term, lease)


@contextmanager
def _refused_alone(results: dict[int, Renewed], number: int) -> Iterator[None]:
    """If the block is refused, store its error as the result of item ``number`` of a batch."""
    try:
        yield
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        results[number] = Renewed(status=refusal[0], error=refusal[1])


def term_of(request: HttpRequest, term: Term) -> Lease:
    """The named lease of ``term``. Errors are those of ``check_resource`` and ``judged``."""
    check_resource(request, term.resource)
    return judged(term, Lease.objects.named(term.resource))


def judged(term: Term, lease: Lease | None) -> Lease:
    """Return ``lease``, which has the name in ``term``, if ``term`` has its key, or has no key but
    the name of its holder.

    Raises HttpError 409 if the key is wrong, 404 if the holder has no such lease, and
    InvalidResource.
    """
    check_name(term.resource, "resource")
    if term.holder is not None:
        check_name(term.holder, "holder")
    if term.lease_key is not None:
        check_lease_key(lease, term.lease_key)
    elif lease is None or lease.holder != term.holder or lease.released_at is not None:
        raise HttpError(404, f"{term.holder} does not hold {term.resource}.")
    assert lease is not None
    return lease


@contextmanager
def lost_is(term: Term) -> Iterator[None]:
    """If the block loses a term that was found by the holder's name, answer 404, as the sample
    does; a client that has proven the term gets 409."""
    try:
        yield
    except LeaseLost as loss:
        if term.lease_key is not None:
            raise
        raise HttpError(404, str(loss)) from loss


def check_resource(request: HttpRequest, resource: str) -> None:
    """Raise HttpError 409 if ``resource`` is the name of another model's lease, 403 if the client
    may not use it. In logs, the ledger and ids, the name of a row's lease begins with the kind of
    the row: "task:17"."""
    principal_of(request).check_resource(resource)
    kind, colon, _ = resource.partition(":")
    if resource.startswith(RESERVED) or (colon and kind in lease_kinds().values()):
        raise HttpError(409, f"{resource} is reserved: leases of tasks and other rows begin so.")
