"""What an operator can do to tasks, one or many: on whom it works, and what follows from it.

The conditions here only say beforehand, and in words, what a verb of the queryset will decide;
that decides by its own, in the statement that changes the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django import forms
from django.http import HttpRequest

from leasing import audit
from leasing.conf import leasing_settings
from leasing.db.deletion import is_protected
from leasing.functions import database_now
from leasing.web.access import may
from tasks.dashboard.forms import CancelForm, DiscardForm, RescheduleForm, RetryForm
from tasks.dashboard.listing import tasks
from tasks.diagnosis import CANCEL, DISCARD, RESCHEDULE, RETRY
from tasks.models import Task, TaskStatus

#: What is read of a task to say whether a verb fits.
STANDING: Final = ("pk", "status", "grants", "cancel_requested_at", "queue", "scheduled_at")

#: What a state is called in a reason.
_IS: Final = {
    TaskStatus.READY: "waiting",
    TaskStatus.RUNNING: "running",
    TaskStatus.SUCCEEDED: "succeeded",
    TaskStatus.FAILED: "failed",
    TaskStatus.CANCELLED: "cancelled",
}

Standing = Mapping[str, Any]
Said = Mapping[str, Any]


@dataclass(frozen=True)
class Verb:
    """Something that can be done to tasks."""

    name: str
    label: str
    icon: str
    #: What the message afterwards begins with.
    done: str
    past: str
    permission: str
    consequence: str
    #: The same of several.
    of_many: str
    form: type[forms.Form]
    statuses: frozenset[str]
    #: The lists of ``tasks.dashboard.listing`` in which it is of use.
    lists: frozenset[str]
    apply: Callable[[Any, Said, str], int] = field(repr=False)
    #: Why it would change nothing of a task in one of its statuses; "" when it would.
    idle: Callable[[Standing, Said, datetime], str] = field(repr=False, default=lambda *_: "")
    is_grave: bool = False

    def blank(self, sent: Any = None) -> forms.Form:
        """Its form, to be filled in or as it was ``sent``; one page may have several."""
        return self.form(sent, auto_id=f"{self.name}_%s")

    def why_not(self, task: Standing, said: Said, now: datetime) -> str:
        """Why it does not fit ``task``; "" when it does."""
        if task["status"] not in self.statuses:
            return _IS[TaskStatus(task["status"])]
        return self.idle(task, said, now)


@dataclass(frozen=True)
class Outlook:
    """What a verb would do to the tasks that were picked. A reason to skip one follows
    a colon or a number: "3 running"."""

    fitting: list[int]
    skipped: Counter[str]


@dataclass(frozen=True)
class Outcome:
    """What a verb did to them."""

    asked: int
    changed: int
    skipped: Mapping[str, int]


def _is_asked(task: Standing, said: Said, now: datetime) -> str:
    return "already asked to stop" if task["cancel_requested_at"] else ""


def _is_without_its_key(task: Standing, said: Said, now: datetime) -> str:
    taken = task.get("is_without_its_key")
    return "unique key taken by another task" if taken else ""


def _is_protected(task: Standing, said: Said, now: datetime) -> str:
    return "protected by a row that refers to it" if task.get("is_protected") else ""


def _is_there(task: Standing, said: Said, now: datetime) -> str:
    start = said.get("scheduled_at")
    if said.get("at_once"):
        is_timed = task["scheduled_at"] <= now
    else:
        is_timed = start is None or start == task["scheduled_at"]
    is_placed = not said.get("queue") or said["queue"] == task["queue"]
    return "already there" if said and is_timed and is_placed else ""


def _reschedule(rows: Any, said: Said, by: str) -> int:
    start = database_now(rows.db) if said["at_once"] else said["scheduled_at"]
    changed: int = rows.reschedule(queue=said["queue"] or None, scheduled_at=start, by=by)
    return changed


def _cancel(rows: Any, said: Said, by: str) -> int:
    changed: int = rows.cancel(by=by, reason=said["reason"])
    return changed


VERBS: Final[Mapping[str, Verb]] = {
    verb.name: verb
    for verb in (
        Verb(
            "retry",
            "Retry",
            "retry",
            "Retried",
            "retried",
            "leasing_tasks.retry_task",
            RETRY.consequence,
            "The tasks become ready now, with one extra attempt where all were used.",
            RetryForm,
            frozenset((TaskStatus.FAILED, TaskStatus.CANCELLED)),
            frozenset(("all", "failed", "cancelled")),
            lambda rows, said, by: rows.retry(by=by),
            _is_without_its_key,
        ),
        Verb(
            "reschedule",
            "Reschedule",
            "clock",
            "Rescheduled",
            "rescheduled",
            "leasing_tasks.reschedule_task",
            RESCHEDULE.consequence,
            "The tasks move to the chosen queue and start no earlier than the chosen time.",
            RescheduleForm,
            frozenset((TaskStatus.READY,)),
            frozenset(("all", "waiting", "retrying", "ready", "scheduled")),
            _reschedule,
            _is_there,
        ),
        Verb(
            "cancel",
            "Cancel",
            "slash",
            "Cancelled or asked to stop",
            "cancelled",
            "leasing_tasks.cancel_task",
            CANCEL.consequence,
            "Waiting tasks end immediately. Running tasks are asked to stop; a handler that never "
            "checks may still complete its task. None of them is retried either way.",
            CancelForm,
            frozenset((TaskStatus.READY, TaskStatus.RUNNING)),
            frozenset(("all", "stuck", "running", "waiting", "retrying", "ready", "scheduled")),
            _cancel,
            _is_asked,
            is_grave=True,
        ),
        Verb(
            "discard",
            "Discard",
            "cross",
            "Discarded",
            "discarded",
            "leasing_tasks.discard_task",
            DISCARD.consequence,
            "The tasks are deleted with their payloads, results and attempts. This cannot be "
            "undone.",
            DiscardForm,
            frozenset(TaskStatus.ended()),
            frozenset(("all", "failed", "succeeded", "cancelled")),
            lambda rows, said, by: rows.discard(by=by),
            _is_protected,
            is_grave=True,
        ),
    )
}


def bulk_verbs(request: HttpRequest, state: str) -> list[Verb]:
    """What the user of ``request`` may do to tasks of the list ``state``."""
    return [v for v in VERBS.values() if state in v.lists and may(request, v.permission)]


def verbs_for(task: Task, now: datetime) -> list[Verb]:
    """What can be done to ``task``, by whoever may."""
    standing = {name: getattr(task, name) for name in STANDING}
    return [verb for verb in VERBS.values() if not verb.why_not(standing, {}, now)]


def outlook(verb: Verb, picked: Mapping[int, int | None], said: Said) -> Outlook:
    """What ``verb`` would do. ``picked`` has the key of each task, and how often it had been
    granted when it was picked, where that is known: what was granted since is another attempt."""
    rows = tasks().filter(pk__in=list(picked))
    found = {
        row["pk"]: row
        for row in rows.values(
            *STANDING,
            is_without_its_key=rows.is_without_its_key(),
            is_protected=is_protected(Task),
        )
    }
    now = database_now(leasing_settings.DATABASE)
    fitting, skipped = [], Counter[str]()
    for key, grants in picked.items():
        task = found.get(key)
        if task is None:
            why = "gone"
        elif grants is not None and grants != task["grants"]:
            why = "claimed meanwhile"
        else:
            why = verb.why_not(task, said, now)
        if why:
            skipped[why] += 1
        else:
            fitting.append(key)
    return Outlook(fitting, skipped)


def perform(
    request: HttpRequest,
    verb: Verb,
    picked: Mapping[int, int | None],
    said: Said,
    wanted: Mapping[str, str] | None = None,
    via: str = "page",
) -> Outcome:
    """Do ``verb`` to the ``picked`` tasks in the name of the user of ``request``, and note it.
    ``wanted`` is the filter by which they were picked, ``via`` where it was asked for."""
    user: Any = request.user
    with audit.recording(
        user,
        verb.name,
        Task,
        keys=list(picked),
        filter=wanted,
        reason=said.get("reason", ""),
        via=via,
    ) as act:
        view = outlook(verb, picked, said)
        rows = tasks().filter(pk__in=view.fitting)
        act.changed = verb.apply(rows, said, act.by) if view.fitting else 0
        if act.changed < len(view.fitting):
            view.skipped["changed meanwhile"] += len(view.fitting) - act.changed
        act.skipped = dict(view.skipped)
    return Outcome(len(picked), act.changed, view.skipped)
