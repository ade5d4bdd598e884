"""What the overview shows, read by a fixed number of queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest

from leasing.conf import leasing_settings
from leasing.functions import DbNow, database_now
from leasing.leasables import rows_of
from leasing.models import Lease, LeaseState
from leasing.paging import capped_count
from tasks import crew
from tasks.generator import GeneratorStatus, generator_status
from tasks.health import SWEPT_WITHIN, Figures, assess
from tasks.models import Task, Worker
from tasks.signs import GENERATOR_SIGNS, SEVERITY_SIGNS

#: A worker that vanished is shown here for as long.
MOURNED = timedelta(minutes=10)
WORKERS_SHOWN, LEASES_SHOWN = 12, 6


def read(request: HttpRequest) -> dict[str, Any]:
    """The context of the page, with what the user of ``request`` may see."""
    using = leasing_settings.DATABASE
    status = generator_status()
    seen_lately = Worker.objects.using(using).filter(
        stopped_at=None, last_seen_at__gte=DbNow() - MOURNED
    )
    may_see_workers = request.user.has_perm("tasks.view_worker")
    may_see_leases = request.user.has_perm("leasing.view_lease")
    now = database_now(using)
    figures = _figures(using, status, now)
    health = assess(figures)
    workers = seen_lately.with_state().order_by("-pk")[:WORKERS_SHOWN] if may_see_workers else []
    leases = rows_of(Lease).filter(grants__gt=0).order_by("-acquired_at", "-pk")
    return {
        "now": now,
        "figures": figures,
        "health": health,
        "health_sign": SEVERITY_SIGNS[health.severity],
        "needs": [(need, SEVERITY_SIGNS[need.severity]) for need in health.needs],
        "members": crew.with_tasks(workers) if may_see_workers else [],
        "leases": leases[:LEASES_SHOWN] if may_see_leases else [],
        "status": status,
        "lease": status.lease,
        "generator_sign": GENERATOR_SIGNS[status.status],
        "may_see_workers": may_see_workers,
        "may_see_leases": may_see_leases,
    }


def _figures(using: str, status: GeneratorStatus, now: Any) -> Figures:
    tasks = Task.objects.home()
    present = Worker.objects.using(using).present()
    counted = present.aggregate(
        all=Count("pk", filter=Q(concurrency__gt=0)),
        sweepers=Count("pk", filter=Q(sweeps=True)),
    )
    wish = status.wish
    unheard = now - wish.changed_at if wish else None
    is_heard = wish is None or wish.acknowledged_revision == wish.revision
    is_held = status.lease is not None and status.lease.lease_state(now) == LeaseState.ACTIVE
    return Figures(
        ready=capped_count(tasks.ready()),
        scheduled=capped_count(tasks.scheduled()),
        running=capped_count(tasks.running()),
        stuck=capped_count(tasks.lapsed()),
        failed=capped_count(tasks.failed()),
        overdue=capped_count(tasks.running().filter(expires_at__lte=DbNow() - SWEPT_WITHIN)),
        workers=counted["all"],
        sweepers=counted["sweepers"],
        start_unheard=unheard if status.status == "STARTED" else None,
        stop_unheard=unheard if wish and not wish.wanted and is_held and not is_heard else None,
    )
