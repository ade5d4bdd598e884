"""Routes that show leases, as clients of the public sample service know them.

``created_at`` of a lease is the time of its latest grant: a new grant of the same resource changes
it, but not the id. In addition to the named leases, the lists show those of every other leasable
model, under ids such as ``task:17``; they are acquired and released through routes of their own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.db.models import Q
from django.http import Http404, HttpRequest
from ninja import Query, Router

from leasing.api import health
from leasing.api.access import Access
from leasing.api.bodies import Name, as_json
from leasing.api.errors import answers
from leasing.api.lists import At, Limit, Source, list_route, page_at
from leasing.api.principals import principal_of
from leasing.api.schemas import LeaseList, LeaseNow, LeaseOut
from leasing.functions import EPOCH
from leasing.models import Leasable, Lease, LeaseState, leasable_models
from leasing.models.kinds import listed
from leasing.validation.names import check_name
from leasing.web.cursors import Order

may_see = Access("leasing.view_lease")

router = Router(tags=["leases"])
router.add_decorator(as_json)
router.add_router("", health.router)


#: The link from a list to one of its leases.
ONE: dict[str, Any] = {"get_lease": {"parameters": {"lease_id": "$response.body#/leases/0/id"}}}


@list_route(router, "/leases", may_see, LeaseList, **ONE)
def list_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """List leases in any state."""
    return leases_in(request, "all", cursor, limit)


@list_route(router, "/leases/active", may_see, LeaseList, **ONE)
def list_active_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """List leases that are held now."""
    return leases_in(request, "active", cursor, limit)


@list_route(router, "/leases/expired", may_see, LeaseList, **ONE)
def list_expired_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """List leases that expired: their holder did not renew or release them in time."""
    return leases_in(request, "expired", cursor, limit)


@list_route(router, "/leases/renewed", may_see, LeaseList, **ONE)
def list_renewed_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """List leases whose latest grant was renewed, in any state."""
    return leases_in(request, "renewed", cursor, limit)


@list_route(router, "/leases/released", may_see, LeaseList, **ONE)
def list_released_leases(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> LeaseList:
    """List leases that were released, or revoked by an operator."""
    return leases_in(request, "released", cursor, limit)


@router.get("/leases/named", auth=may_see, response=answers({200: LeaseNow}, 400, 404))
def get_named_lease(
    request: HttpRequest,
    resource: Annotated[Name, Query(description="The name of the resource.")],
) -> LeaseNow:
    """Return the lease of a resource, by its name, with its state."""
    principal_of(request).check_resource(resource)
    lease = Lease.objects.named(check_name(resource, "resource"))
    if lease is None:
        raise Http404(f"Nobody has ever held {resource}.")
    return LeaseNow.of(lease)


def leases_in(request: HttpRequest, state: str, cursor: str, limit: int) -> LeaseList:
    """Return a page of the leases of all leasable models together, as far as the client may see
    them.

    Args:
        request: The client's request.
        state: The state that all of them have, "renewed", or "all".
        cursor: The cursor of the page; empty: the first page.
        limit: The number of leases, at most.
    """
    visible = principal_of(request).leases
    sources = [source_of(visible(listed(model)), state) for model in leasable_models()]
    rows, following = page_at(cursor, limit, *sources, merged_by=granted_at)
    return LeaseList(leases=[LeaseOut.of(row) for row in rows], next=following)


def source_of(rows: Any, state: str) -> Source[Leasable]:
    """Return those of ``rows`` that are in ``state``, in an order that an index serves. All
    ``rows`` are of one model."""
    model: type[Leasable] = rows.model
    order = Order(model.listing.by, parts=model.listing.parts)
    if state == "all":
        return Source(rows, order)
    if state == "renewed":
        return Source(rows, order, Q(renewals__gt=0))
    if state == LeaseState.ACTIVE and model.listing.parts:
        rows = rows.holding()
    return Source(rows.with_state(), order, Q(state=state))


def granted_at(row: Leasable) -> datetime:
    """Return the time of the latest grant of ``row``; if ``row`` was never granted, the time of its
    creation."""
    return row.acquired_at or getattr(row, "created_at", None) or EPOCH
