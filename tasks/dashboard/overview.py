"""What the overview shows: parts that are read one by one, so that one that fails leaves the
others standing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import Count, Q
from django.http import HttpRequest

from leasing.conf import leasing_settings
from leasing.functions import DbNow, database_now
from leasing.web.access import is_live, may
from leasing.web.cache import SHARED_FOR, Kept
from leasing.web.paging import COUNT_CAP, Capped, capped_count
from tasks.dashboard import listing, worker_rows
from tasks.dashboard.badges import GENERATOR_SIGNS, SEVERITY_SIGNS
from tasks.dashboard.charts import series
from tasks.dashboard.health import SWEPT_WITHIN, Figures, assess
from tasks.dashboard.line_chart import trimmed
from tasks.dashboard.queue_rows import Queues, read_queues
from tasks.generator import GeneratorStatus, generator_status
from tasks.log import log
from tasks.models import Sample, Schedule, Task, Worker, WorkerRole, WorkerState
from tasks.querysets.base import lapse

#: A worker that vanished is shown here for as long.
MOURNED = timedelta(minutes=10)
WORKERS_SHOWN, QUEUES_SHOWN = 8, 8
#: How far back charts may look, in seconds, by what the address says.
SPANS: Final = {"10m": 600, "1h": 3_600, "6h": 21_600, "24h": 86_400}
#: How many points a chart has on this page.
POINTS = 60


@dataclass(frozen=True)
class Snapshot:
    """What the page shows to everybody, as of ``now``; ``failed`` could not be read."""

    now: datetime
    failed: list[str]
    at_work: list[Worker]
    members: list[worker_rows.Member]
    queues: Queues | None
    status: GeneratorStatus | None
    figures: Figures
    sampled: tuple[int, int | None] | None


def read(request: HttpRequest, span: str) -> dict[str, Any]:
    """The context of the page, with what the user of ``request`` may see. To a poll some of it
    may be SHARED_FOR old; who opens the page sees it as it is."""
    reading = snapshots.get(anew=not is_live(request))
    seen = reading.value
    queues, status = seen.queues, seen.status
    may_see_workers = request.user.has_perm("leasing_tasks.view_worker")
    health = assess(seen.figures, seen.failed)
    return {
        "now": seen.now + reading.age,
        "failed": seen.failed,
        "figures": seen.figures,
        "health": health,
        "health_sign": SEVERITY_SIGNS[health.severity],
        "needs": [(need, SEVERITY_SIGNS[need.severity]) for need in health.needs],
        "members": seen.members if may_see_workers else [],
        "more_workers": len(seen.at_work) > WORKERS_SHOWN,
        "queues": queues,
        "lines": queues.lines[:QUEUES_SHOWN] if queues else [],
        "sampled": seen.sampled,
        "span": span,
        "status": status,
        "lease": status.lease if status else None,
        "generator_sign": GENERATOR_SIGNS[status.status] if status else None,
        "may_see_workers": may_see_workers,
        "may_see_queues": request.user.has_perm("leasing_tasks.view_queue"),
        "may_control": may(request, "leasing_tasks.control_generator"),
    }


def _snapshot(anew: bool) -> Snapshot:
    now = database_now(leasing_settings.DATABASE)
    failed: list[str] = []

    def part(name: str, read_part: Callable[[], Any], otherwise: Any = None) -> Any:
        try:
            with _apart():
                return read_part()
        except Exception:
            log.page_failed(part=name, exc_info=True)
            failed.append(name)
            return otherwise

    workers: list[Worker] = part("workers", _workers, [])
    queues = part("queues", lambda: read_queues(_present(workers), anew=anew))
    status = part("generator", generator_status)
    figures = part("tasks", lambda: _figures(queues, status, workers, now, anew=anew), Figures())
    sampled = part("samples", lambda: _sampled(now))
    at_work = [worker for worker in workers if worker.role != WorkerRole.GENERATOR]
    members = part("workers’ tasks", lambda: worker_rows.with_tasks(at_work[:WORKERS_SHOWN]), [])
    return Snapshot(now, failed, at_work, members, queues, status, figures, sampled)


#: Of this process.
snapshots = Kept(_snapshot, SHARED_FOR)


def _apart() -> Any:
    """What fails inside a transaction of the request's must not end that."""
    using = leasing_settings.DATABASE
    if connections[using].in_atomic_block:
        return transaction.atomic(using=using)
    return nullcontext()


def _workers() -> list[Worker]:
    """Those that were seen lately, those that are not well first."""
    seen_lately = Worker.objects.using(leasing_settings.DATABASE).filter(
        stopped_at=None, last_seen_at__gte=DbNow() - MOURNED
    )
    rows = list(seen_lately.with_state().defer("handlers").order_by("-pk")[:1_000])
    return sorted(rows, key=lambda row: worker_rows.state_of(row) == WorkerState.LIVE)


def _present(workers: list[Worker]) -> list[Worker]:
    return [worker for worker in workers if worker_rows.state_of(worker) != WorkerState.GONE]


def _sampled(now: datetime) -> tuple[int, int | None] | None:
    """What tells whether the charts have changed: nothing where nobody samples."""
    samples = Sample.objects.using(leasing_settings.DATABASE)
    latest = samples.order_by("-slot").values_list("slot", flat=True).first()
    return None if latest is None else (int(now.timestamp()) // Sample.SLOT, latest)


def read_charts(now: datetime, span: str) -> dict[str, Any]:
    """What the page shows beside what ``read`` returns, as of ``now``."""
    # Up to the latest slot that is over: the one under way has no sample yet.
    until = datetime.fromtimestamp(int(now.timestamp()) // Sample.SLOT * Sample.SLOT, now.tzinfo)
    begin = until - timedelta(seconds=SPANS[span])
    try:
        with _apart():
            return {"charts": trimmed(series(begin, until, points=POINTS))}
    except Exception:
        log.page_failed(part="charts", exc_info=True)
        return {"charts": None}


def _figures(
    queues: Queues | None,
    status: GeneratorStatus | None,
    workers: list[Worker],
    now: datetime,
    *,
    anew: bool,
) -> Figures:
    running = _running()
    present = _present(workers)
    lines = queues.lines if queues else []
    schedules = Schedule.objects.using(leasing_settings.DATABASE).filter(
        paused_at=None, next_at__lt=DbNow() - Schedule.OVERDUE_AFTER
    )
    return Figures(
        running=running["running"],
        stuck=running["stuck"],
        failed=listing.count_in("failed", anew=anew),
        overdue=running["overdue"],
        ready=queues.ready if queues else None,
        scheduled=queues.scheduled if queues else None,
        longest_wait=now - queues.due_since if queues and queues.due_since else None,
        paused=[line for line in lines if line.is_paused],
        unserved=[line for line in lines if line.is_unserved],
        unpublished=[
            line
            for line in lines
            if line.ready and not line.is_paused and _lacks_relay(line.name, present)
        ],
        workers=sum(worker.concurrency > 0 for worker in present),
        sweepers=sum(worker.sweeps for worker in present),
        gone=[w.name for w in workers if worker_rows.state_of(w) == WorkerState.GONE],
        late=[w.name for w in workers if worker_rows.state_of(w) == WorkerState.LATE],
        overdue_schedules=capped_count(schedules),
        **_wish(status, now),
    )


def _lacks_relay(queue: str, present: list[Worker]) -> bool:
    """Whether only Celery workers serve ``queue``, and no relay tells them of its tasks."""
    roles = {worker.role for worker in present if queue in worker.queues}
    is_told = any(worker.role == WorkerRole.RELAY for worker in present)
    return roles == {WorkerRole.CELERY} and not is_told


def _running() -> dict[str, Capped]:
    """How many tasks run, how many of them are stuck, and how many have been for too long."""
    rows = Task.objects.home().running()
    too_long = Q(expires_at__lte=DbNow() - SWEPT_WITHIN)
    seen = rows.order_by()[: COUNT_CAP + 1].aggregate(
        running=Count("pk"),
        stuck=Count("pk", filter=lapse()),
        overdue=Count("pk", filter=too_long),
    )
    return {name: Capped(count) for name, count in seen.items()}


def _wish(status: GeneratorStatus | None, now: datetime) -> dict[str, Any]:
    if status is None or status.wish is None:
        return {}
    wish = status.wish
    unheard = now - wish.changed_at
    is_heard = wish.acknowledged_revision == wish.revision
    return {
        "start_unheard": unheard if status.status == "STARTED" else None,
        "stop_unheard": unheard if not wish.wanted and status.holder and not is_heard else None,
    }
