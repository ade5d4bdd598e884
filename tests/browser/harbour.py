"""A site at work, with something on every page, and the addresses of all pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection
from django.db.models import F
from django.urls import reverse

from leasing import audit
from leasing.functions import database_now
from leasing.models import Lease
from tasks.dashboard import listing
from tasks.generator import start_generator
from tasks.models import GeneratorDesiredState, Queue, Sample, Schedule, Task, Worker
from tasks.sample import SLEEP
from tests.factories import make_lease, make_task, make_worker
from tests.leasing.support import expire

#: Names as people give them: longer than any column, and in a script that runs the other way.
LONG = "the-nightly-reconciliation-of-" + "accounts-receivable-" * 6 + "north"
FOREIGN = "מחסן-الميناء-港口"


def fill() -> dict[str, str]:
    """Bring rows in every state, and return the addresses of all pages by what they show."""
    ann = make_worker(name="ann")
    make_worker(name=f"{LONG}-worker"[:200], queues=["default", "reports"])
    make_worker(name="bea", state="late")
    gone = make_worker(name="cid", state="gone")
    make_worker(name="dan", state="stopped")
    for index, restarts in ((1, 0), (2, 12)):
        make_worker(
            name=f"{LONG[:180]}:{index}:5c0ffee5",
            fleet=LONG[:180],
            fleet_index=index,
            fleet_restarts=restarts,
        )
    tasks = {
        state: make_task(state=state, holder="ann")
        for state in (
            *("ready", "scheduled", "running", "stuck", "succeeded", "failed"),
            *("given_up", "cancelled", "retrying", "recovered"),
        )
    }
    make_task(name=SLEEP, state="running", holder=f"{LONG}-worker"[:200])
    Queue.objects.pause("reports", by="olga", reason=f"The server is moved to {FOREIGN}.")
    make_task(queue="reports")
    Task.objects.filter(pk=make_task(state="retrying").pk).update(queue=LONG, name=LONG)
    leases: dict[str, Any] = {
        state: make_lease(state=state) for state in ("active", "expired", "released")
    }
    make_lease(resource=LONG, holder=LONG, renewals=3)
    make_lease(resource=FOREIGN, holder=FOREIGN)
    Schedule.objects.create(name="nightly", task_name=SLEEP, every=timedelta(hours=24))
    Schedule.objects.create(name=LONG[:80], task_name=SLEEP, cron="0 3 * * *")
    start_generator(by="olga", reason="for the show")
    audit.record("olga", "retry", Task, keys=[tasks["failed"].pk], changed=1, reason="once more")
    _sample()
    pages = {
        name: reverse(name)
        for name in (
            *(
                "leasing_tasks:overview",
                "leasing_tasks:list",
                "leasing_tasks:stuck",
                "leasing_tasks:queues",
                "leasing_tasks:schedules",
            ),
            *("leasing_tasks:workers", "leasing_tasks:generator", "leasing:list", "leasing:audit"),
        )
    }
    pages |= {
        f"tasks {state}": f"{reverse('leasing_tasks:list')}?state={state}"
        for state in listing.STATES
    }
    pages |= {
        f"task {state}": reverse("leasing_tasks:detail", args=[task.pk])
        for state, task in tasks.items()
    }
    leases["with a history"] = traded()
    pages |= {
        f"lease {state}": reverse("leasing:detail", args=[lease.lease_id])
        for state, lease in leases.items()
    }
    pages |= {
        "worker": reverse("leasing_tasks:worker", args=[ann.pk]),
        "worker gone": reverse("leasing_tasks:worker", args=[gone.pk]),
        "workers gone": f"{reverse('leasing_tasks:workers')}?state=gone",
        "leases renewed": f"{reverse('leasing:list')}?renewed=1",
        "bulk": f"{reverse('leasing_tasks:bulk', args=['retry'])}?task={tasks['failed'].pk}",
        "nothing found": f"{reverse('leasing_tasks:list')}?name=no-such-task",
        "charts of a day": f"{reverse('leasing_tasks:overview')}?span=24h",
    }
    return pages


def traded() -> Lease:
    """A lease that went from hand to hand: taken over twice, renewed, released."""
    lease = make_lease(resource="berth:traded", holder="ann", renewals=2)
    for holder in ("bea", "cid"):
        expire(lease)
        Lease.objects.acquire("berth:traded", holder=holder, ttl=30)
    lease.refresh_from_db()
    return lease


def clear() -> None:
    """Leave no task, worker, queue, schedule or desired state."""
    for model in (Task, Worker, Queue, Schedule, GeneratorDesiredState):
        model._default_manager.all().delete()


def all_is_well() -> None:
    """One worker, one task that runs, and one that has just come."""
    make_worker(name="ann")
    make_task(state="running", holder="ann")
    make_task()


def back(task: Task, share: float) -> None:
    """Move the last heartbeat of ``task`` back by ``share`` of its ttl."""
    Task.objects.filter(pk=task.pk).update(
        acquired_at=F("acquired_at") - task.ttl * share,
        expires_at=F("expires_at") - task.ttl * share,
    )


def _sample() -> None:
    """Store samples for the charts: ten minutes of ups and downs, with a gap."""
    last = int(database_now(connection.alias).timestamp()) // Sample.SLOT * Sample.SLOT
    Sample.objects.bulk_create(
        Sample(
            slot=last - Sample.SLOT * age,
            queue=queue,
            ready=age % 7,
            running=age % 3,
            completed=age % 5,
            claimed=age % 5 + 1,
            wait_p50=age % 4 / 10,
            wait_p95=age % 4,
            oldest=age % 5,
            renewals=age % 6,
        )
        for age in range(1, 60)
        if age not in (20, 21, 22)
        for queue in ("default", "")
    )
