"""Read the parts of the overview one by one, so that a part that fails does not end the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import F, Q

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_instances
from leasing.db.row_locks import RowLock, row_locks
from leasing.db.unapplied import unapplied_reason_of
from leasing.diagnosis.lease import waited_for
from leasing.functions import DbNow, after
from leasing.humanize import Sentence
from leasing.models import Lease, LeaseEvent
from leasing.web.cache import SHARED_FOR, shared
from leasing.web.counts import Capped
from tasks.dashboard import listing, troubles
from tasks.dashboard.badges import GENERATOR_BADGES, SEVERITY_BADGES
from tasks.dashboard.charts import Chart, series
from tasks.dashboard.health import NAMED, Figures, assess
from tasks.dashboard.line_chart import trimmed
from tasks.dashboard.queue_rows import LATE, Queues, read_queues
from tasks.dashboard.schedule_status import status_of
from tasks.dashboard.worker_rows import by_fleet, state_of, with_tasks
from tasks.diagnosis.reasons import WAITS
from tasks.generator import GeneratorStatus, generator_status
from tasks.log import log
from tasks.maintenance.invariants import Unknown, unknown_by_name
from tasks.models import Sample, Schedule, Task, Worker, WorkerRole, WorkerState

#: The time for which a worker that vanished is still shown here.
GONE_SHOWN_FOR = timedelta(minutes=10)
WORKERS_SHOWN, QUEUES_SHOWN = 8, 8
#: Spans of charts, in seconds, by their names in the address.
SPANS: Final = {"10m": 600, "1h": 3_600, "6h": 21_600, "24h": 86_400}
#: Seconds that polls share the names that no worker knows, and unusual states, which last for
#: minutes.
UNKNOWN_FOR, UNUSUAL_FOR = 10, 10
#: Overdue and paused schedules that are read; people write schedules, so they are few.
SCHEDULES_READ = 100
#: Late tasks whose rows are looked at, for locks on them.
LATE_READ = 100
#: Events of a lease that are read for what its terms usually last.
TERMS_READ = 50
#: Points of a chart on this page.
POINTS = 60


def read(span: str, now: datetime, *, fresh: bool) -> dict[str, Any]:
    """Return the part of the page's context that is the same for all users.

    Args:
        span: The time that the charts show: a name in SPANS.
        now: The database's clock.
        fresh: False if charts, and counts that stopped at their cap, may be what another poll has
            read.
    """
    failed: list[str] = []

    def part(name: str, read_part: Callable[[], Any], otherwise: Any = None) -> Any:
        try:
            with _apart():
                return read_part()
        except Exception as error:
            if unapplied_reason_of(error):  # the whole page says so
                raise
            log.page_failed(part=name, exc_info=True)
            failed.append(name)
            return otherwise

    workers: list[Worker] = part("workers", _workers, [])
    queues = part("queues", lambda: read_queues(_present(workers), now, fresh=fresh))
    status = part("generator", lambda: generator_status(if_used=True))
    figures = part("tasks", lambda: _figures(queues, status, workers, now, fresh=fresh), Figures())
    at_work = [worker for worker in workers if worker.role != WorkerRole.GENERATOR]
    rows = part("workers’ tasks", lambda: by_fleet(with_tasks(at_work[:WORKERS_SHOWN])), [])
    assessment = assess(figures, failed)
    return {
        "charts": part("charts", lambda: _charts(now, span, fresh=fresh)),
        "failed": failed,
        "figures": figures,
        "health": assessment,
        "health_sign": SEVERITY_BADGES[assessment.severity],
        "needs": [(need, SEVERITY_BADGES[need.severity]) for need in assessment.needs],
        "worker_rows": rows,
        "more_workers": len(at_work) > WORKERS_SHOWN,
        "queues": queues,
        "lines": queues.lines[:QUEUES_SHOWN] if queues else [],
        "span": span,
        "status": status,
        "uses_generator": status is None or status.desired is not None,
        "lease": status.lease if status else None,
        "generator_sign": GENERATOR_BADGES[status.status] if status else None,
    }


def _apart() -> Any:
    """Keep a failure in this block from ending the request's transaction."""
    using = leasing_settings.DATABASE
    if connections[using].in_atomic_block:
        return transaction.atomic(using=using)
    return nullcontext()


def _workers() -> list[Worker]:
    """Return the workers that were seen lately, those in trouble first."""

    def seen_lately() -> Any:
        since = DbNow() - GONE_SHOWN_FOR
        rows = Worker.objects.home().filter(stopped_at=None, last_seen_at__gte=since)
        return rows.with_state().defer("handlers").order_by("-pk")[:1_000]

    rows = query_instances((_workers, leasing_settings.DATABASE), seen_lately)
    return sorted(rows, key=lambda row: state_of(row) == WorkerState.LIVE)


def _present(workers: list[Worker]) -> list[Worker]:
    return [worker for worker in workers if state_of(worker) != WorkerState.GONE]


def _charts(now: datetime, span: str, *, fresh: bool) -> list[Chart]:
    """Return the charts up to the latest slot that is over: the one under way has no sample yet."""
    # The slot under way has renewals already, in a row of no queue.
    samples = Sample.objects.exclude(queue="")
    latest = samples.order_by("-slot").values_list("slot", flat=True).first()
    until = datetime.fromtimestamp(int(now.timestamp()) // Sample.SLOT * Sample.SLOT, now.tzinfo)
    begin = until - timedelta(seconds=SPANS[span])
    return shared(
        ("charts", span, latest and until, latest),
        lambda: trimmed(series(begin, until, points=POINTS)),
        fresh=fresh,
        seconds=6 * Sample.SLOT,
    )


def _figures(
    queues: Queues | None,
    status: GeneratorStatus | None,
    workers: list[Worker],
    now: datetime,
    *,
    fresh: bool,
) -> Figures:
    lines = queues.lines if queues else []
    failed = listing.count_of("failed", fresh=fresh)
    read_unusual = partial(_unusual, queues, failed, workers, now)
    unusual = shared("unusual", read_unusual, fresh=fresh, seconds=UNUSUAL_FOR)
    if unusual["deaths"]:  # replaced workers are named there, and are not frozen
        dead = troubles.replaced(workers)
        workers = [worker for worker in workers if worker not in dead]
    present = _present(workers)
    return Figures(
        running=queues.running if queues else None,
        stuck=queues.stuck if queues else None,
        overdue=queues.overdue if queues else None,
        failed=failed,
        ready=queues.ready if queues else None,
        ready_by_queue={line.name: line.ready for line in lines},
        scheduled=queues.scheduled if queues else None,
        oldest=queues.oldest if queues else None,
        reasons=sorted((why for line in lines for why in line.reasons), key=lambda why: why.since),
        paused=[line for line in lines if line.is_paused],
        unserved=[line for line in lines if line.is_unserved],
        unpublished=[
            line
            for line in lines
            if line.ready and not line.is_paused and _lacks_relay(line.name, present)
        ],
        workers=sum(bool(worker.slots) for worker in present),
        sweepers=sum(worker.sweeps for worker in present),
        gone=troubles.silent([w for w in workers if state_of(w) == WorkerState.GONE]),
        late=troubles.silent([w for w in workers if state_of(w) == WorkerState.LATE]),
        slots=troubles.slots_by_kind(workers),
        **unusual,
        failures=shared("failures", troubles.failed_tasks, fresh=fresh, seconds=_failures_for)
        if failed
        else [],
        now=now,
        **_schedules(now),
        unknown=_unknown(queues, fresh=fresh),
        is_deep=queues is not None and queues.is_deep,
        **_desired(status, now),
    )


def _unknown(queues: Queues | None, *, fresh: bool) -> dict[str, Unknown]:
    """Return the waiting tasks that no worker has a handler for, by name."""
    if queues is None or not (queues.ready or queues.scheduled):
        return {}
    read = partial(unknown_by_name, given_back=queues.is_deep)
    return shared("unknown tasks", read, fresh=fresh, seconds=UNKNOWN_FOR)


def _unusual(
    queues: Queues | None, failed: Capped, workers: list[Worker], now: datetime
) -> dict[str, Any]:
    return {
        "deaths": troubles.deaths(workers, now),
        "long_runs": troubles.long_runs(now) if queues is None or queues.running else [],
        "failing": troubles.failing(now),
        "undoing": troubles.failed_compensations() if failed else [],
        "awaited_leases": _awaited_leases(now),
        "locks": _locks() if queues is None or queues.late else {},
    }


def _failures_for(failures: list[troubles.Failures]) -> float:
    """Return the seconds that polls share failures: one more among very many is no news."""
    return UNUSUAL_FOR if sum(each.count for each in failures) == troubles.READ else SHARED_FOR


def _locks() -> dict[RowLock, list[int]]:
    late = Task.objects.home().running().filter(LATE).order_by()
    keys: defaultdict[RowLock, list[int]] = defaultdict(list)
    for key, lock in row_locks(late[:LATE_READ]).items():
        keys[lock].append(key)
    return keys


def _awaited_leases(now: datetime) -> list[tuple[str, Sentence, list[tuple[int, str]]]]:
    """Return the named leases that somebody waits for, the longest held first: the id, a sentence
    that names the waiter and the holder, and the tasks that the waiter runs. Campaigns, which may
    wait for days, are left out."""

    def first() -> Any:
        rows = Lease.objects.home().filter(wanted_until__gt=DbNow(), acquired_at__lt=after(-WAITS))
        return rows.exclude(wanted_by="").order_by("acquired_at")[:NAMED]

    leases = query_instances((_awaited_leases, leasing_settings.DATABASE), first)
    events = LeaseEvent.objects.using(leasing_settings.DATABASE).order_by("-pk")
    running = Task.objects.home().running().order_by("acquired_at")
    return [
        (
            each.lease_id,
            waited_for(each, now, events.about(each)[:TERMS_READ]),
            list(running.filter(holder=each.wanted_by).values_list("pk", "name")[:NAMED]),
        )
        for each in leases
    ]


def _schedules(now: datetime) -> dict[str, Any]:
    """Return the schedules that are overdue or paused, of the first SCHEDULES_READ: overdue ones,
    then the latest paused ones."""

    def first() -> Any:
        some = Q(paused_at__isnull=False) | Q(next_at__lt=DbNow() - Schedule.OVERDUE_AFTER)
        paused_last = F("paused_at").desc(nulls_first=True)
        rows = Schedule.objects.home().filter(some).defer("task_data")
        return rows.order_by(paused_last, "pk")[: SCHEDULES_READ + 1]

    rows = query_instances((_schedules, leasing_settings.DATABASE), first)
    more = len(rows) > SCHEDULES_READ
    paused = [row for row in rows[:SCHEDULES_READ] if row.paused_at is not None]
    return {
        "overdue_schedules": Capped(min(len(rows), SCHEDULES_READ) - len(paused), more=more),
        "paused_schedules": [(row, status_of(row, now)) for row in paused[:NAMED]],
        "more_paused_schedules": Capped(len(paused[NAMED:]), more=more),
    }


def _lacks_relay(queue: str, present: list[Worker]) -> bool:
    """Return True if only Celery workers serve ``queue``, and no relay publishes its tasks."""
    roles = {worker.role for worker in present if queue in worker.queues}
    has_relay = any(worker.role == WorkerRole.RELAY for worker in present)
    return roles == {WorkerRole.CELERY} and not has_relay


def _desired(status: GeneratorStatus | None, now: datetime) -> dict[str, Any]:
    if status is None or status.desired is None:
        return {}
    desired = status.desired
    unheard = now - desired.changed_at
    is_heard = desired.acknowledged_revision == desired.revision
    return {
        "start_unheard": unheard if status.status == "STARTED" else None,
        "stop_unheard": unheard if not desired.wanted and status.holder and not is_heard else None,
    }
