"""Routes of one lease, by its id: "17" is a named lease, "task:17" the lease of a task.

These routes are registered after the other routes of leases, whose paths look like that of a lease.
"""

from __future__ import annotations

from django.http import Http404, HttpRequest
from ninja.errors import HttpError

from leasing import audit
from leasing.api.access import Access, caller
from leasing.api.bodies import Notice
from leasing.api.errors import BAD_BODY, answers

# This import registers the routes of holders before those below.
from leasing.api.holders import may_change, release, term_of
from leasing.api.lists import At, Limit, Source, page_at
from leasing.api.principals import principal_of
from leasing.api.routes import may_see, router
from leasing.api.schemas import EventList, EventOut, LeaseOut, Revoke, Term
from leasing.conf import leasing_settings
from leasing.models import Leasable, LeaseEvent
from leasing.models.kinds import find_row, rows_of

__all__ = ["router"]

may_revoke = Access("leasing.revoke_lease")


@router.get("/leases/{lease_id}", auth=may_see, response=answers({200: LeaseOut}, 404))
def get_lease(request: HttpRequest, lease_id: str) -> LeaseOut:
    """Return one lease: 17 is a named lease, task:17 the lease of a task."""
    return LeaseOut.of(find(request, lease_id))


@router.delete(
    "/leases/{lease_id}",
    auth=may_change,
    response=answers({200: Notice}, *BAD_BODY, 404, 409),
)
def release_lease_by_id(request: HttpRequest, lease_id: str, body: Term) -> Notice:
    """Release the lease with that id, if the holder has it under that resource."""
    lease = term_of(request, body)
    if lease.lease_id != lease_id:
        raise HttpError(404, f"The lease {lease_id} does not belong to {body.resource}.")
    release(body, lease)
    return Notice(message=f"{lease.resource} was released.")


@router.put(
    "/leases/{lease_id}/revoke",
    auth=may_revoke,
    response=answers({200: LeaseOut}, *BAD_BODY, 404, 409),
)
def revoke_lease(request: HttpRequest, lease_id: str, body: Revoke) -> LeaseOut:
    """Revoke a lease: later writes of its holder are refused. 409 if nobody holds it."""
    row = find(request, lease_id)
    model, name = type(row), caller(request)
    with audit.recording(
        name, "revoke", model, keys=[row.pk], reason=body.reason, via="api"
    ) as act:
        act.changed = rows_of(model).filter(pk=row.pk).revoke(reason=body.reason, by=act.by)
    if not act.changed:
        raise HttpError(409, f"Nothing changed: {row.lease_resource} is not held.")
    return LeaseOut.of(find(request, lease_id))


@router.get("/leases/{lease_id}/events", auth=may_see, response=answers({200: EventList}, 400, 404))
def list_lease_events(
    request: HttpRequest, lease_id: str, limit: Limit = 100, cursor: At = ""
) -> EventList:
    """List the events of a lease. Renewals are only counted; a task has attempts instead."""
    events = LeaseEvent.objects.using(leasing_settings.DATABASE).about(find(request, lease_id))
    rows, following = page_at(cursor, limit, Source(events))
    return EventList(events=[EventOut.model_validate(each) for each in rows], next=following)


def find(request: HttpRequest, lease_id: str) -> Leasable:
    """Return the row of that lease. Raises Http404 if there is none, or the client may not see
    it."""
    if lease_id.isprintable():
        row = find_row(lease_id)
        every = rows_of(type(row))
        seen = principal_of(request).leases(every)
        # Python reads 1_7 as 17, too.
        if row.lease_id == lease_id and (seen is every or seen.filter(pk=row.pk).exists()):
            return row
    raise Http404("There is no such lease.")
