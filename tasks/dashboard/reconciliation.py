"""The state of each idempotency key, of enqueues and of ``leasing.once``, in one row shape.

open            no final state; nobody works on it, nor will by itself
perhaps_twice   final, but begun by more than one: an earlier attempt of the task was lost, or
                a late result refused; the work of ``once`` was granted more than once
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.db.models import Case, Exists, F, OuterRef, Q, Value, When
from django.db.models.functions import Coalesce

from leasing.dashboard.lease_lists import INTERNAL
from leasing.functions import after
from leasing.models import OnceKey
from leasing.web.badges import Badge
from leasing.web.counts import Capped, Tally, count_together
from leasing.web.export import Column, plain
from tasks.models import AttemptOutcome, Task, TaskAttempt, TaskStatus

#: The time without anybody working on a key before it counts as open: recovery and claims take
#: seconds.
GRACE: Final = timedelta(seconds=15)
OPEN, PERHAPS_TWICE = "open", "perhaps_twice"
#: The conditions of the lists, by name.
LISTS: Final[Mapping[str, Q]] = {
    "findings": ~Q(finding=""),
    OPEN: Q(finding=OPEN),
    PERHAPS_TWICE: Q(finding=PERHAPS_TWICE),
    "all": Q(),
}
BADGES: Final = {
    OPEN: Badge("open", "warn", "alert", "▲"),
    PERHAPS_TWICE: Badge("perhaps twice", "crit", "swap", "⇄"),
}
KEYS: Final = [
    *plain("source", "key"),
    Column("id", lambda row: row.lease_id),
    *plain("state", "moment"),
    Column("token", lambda row: row.fencing_token),
    *plain("attempts", "finding"),
]


def enqueued() -> Any:
    """Return the tasks with an idempotency key."""
    is_running = Q(status=TaskStatus.RUNNING)
    idle_since = Case(When(is_running, then=F("expires_at")), default=F("scheduled_at"))
    attempts = TaskAttempt.objects.filter(task=OuterRef("pk"))
    lost = Q(outcome=AttemptOutcome.LOST) & ~Q(grant_id=OuterRef("grant_id"))
    again = Exists(attempts.filter(lost | Q(refused_verb="complete")))
    rows = Task.objects.home().filter(idempotency_key__isnull=False).annotate(since=idle_since)
    return _with_finding(
        rows.only("fencing_token", "attempts"),
        "enqueue",
        Q(processed_at=None, since__lte=after(-GRACE)),
        Q(again, processed_at__isnull=False),
        key=F("idempotency_key"),
        state=F("status"),
        moment=Coalesce(
            "processed_at", Case(When(is_running, then=F("acquired_at")), default=F("since"))
        ),
    )


def done_once() -> Any:
    """Return the keys of ``once`` that were ever granted, but those of workers' own services."""
    rows = OnceKey.objects.home().filter(grants__gt=0).exclude(INTERNAL[OnceKey]).with_state()
    return _with_finding(
        rows.only("key", "fencing_token", "attempts"),
        "once",
        Q(finished_at=None, expires_at__lte=after(-GRACE)),
        Q(finished_at__isnull=False, attempts__gt=1, settled_by=""),
        state=Case(
            When(~Q(settled_by=""), then=Value("settled")),
            When(finished_at__isnull=False, then=Value("finished")),
            default=F("state"),
        ),
        moment=Coalesce("finished_at", "acquired_at"),
    )


def _with_finding(rows: Any, source: str, is_open: Q, is_twice: Q, **columns: Any) -> Any:
    finding = Case(
        When(is_open, then=Value(OPEN)),
        When(is_twice, then=Value(PERHAPS_TWICE)),
        default=Value(""),
    )
    return rows.annotate(source=Value(source), finding=finding, **columns)


def counts(sources: Iterable[Any]) -> dict[str, Capped]:
    """Return the number of keys in each of LISTS; one statement counts the newest of them."""
    counted = count_together({rows.model: Tally(rows.order_by("-pk"), LISTS) for rows in sources})
    return {name: sum((each[name] for each in counted.values()), Capped(0)) for name in LISTS}
