"""The verbs of schedulers and operators on schedules.

What each verb requires of the row, in addition to its key:

    serve           not paused, due, its due moment as it was read
    declare         nothing: code overrides the row
    pause           not paused
    resume          paused

To serve a due moment, one transaction inserts its unique slot, enqueues the task and moves the
schedule to its next moment. However many schedulers try, one commits; the others find nothing due.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import IntegrityError
from django.db.models import Exists, OuterRef, Q, Subquery

from leasing.db.deletion import delete_up_to, unprotected
from leasing.db.dialects import atomic, lock
from leasing.db.routing import RoutedQuerySet
from leasing.functions import DbNow, after, database_now
from tasks import registry
from tasks.exceptions import InvalidSchedule
from tasks.log import log
from tasks.scheduling import declarations
from tasks.scheduling.declarations import Declaration
from tasks.scheduling.rules import due_slots, rule_of

if TYPE_CHECKING:
    from tasks.models import Schedule, ScheduleSlot, Task

#: The greatest number of slots in one transaction.
SLOT_BATCH = 100
#: The time for which slots are kept; the last one of each schedule is always kept.
SLOTS_KEPT_FOR = timedelta(days=7)
#: The time after which a declaration is confirmed again.
CONFIRMED_EVERY = timedelta(minutes=30)
#: The columns of the rule.
RULE = ("cron", "every", "timezone")


class ScheduleQuerySet(RoutedQuerySet["Schedule"]):
    """Schedules: ``Schedule.objects``."""

    #: Tries to declare a schedule that others store and delete meanwhile.
    TRIES = 3

    def served_here(self) -> Self:
        """Return the schedules that this process may enqueue: it has the handler and, if the
        schedule is declared in code, this process declares it. So a schedule that a deploy removed
        from the code is served until the last process with the old code ends."""
        names = [declaration.name for declaration in declarations.declared()]
        return self.filter(
            Q(declared=False) | Q(name__in=names), task_name__in=registry.names(), paused_at=None
        )

    def due(self, ahead: timedelta = timedelta(0)) -> Self:
        """Return the schedules whose next moment comes within ``ahead``, or is not computed yet."""
        return self.filter(Q(next_at=None) | Q(next_at__lte=after(ahead)))

    def with_last(self) -> Self:
        """Annotate the newest slot: ``last_at``, ``last_task``, ``last_skipped``, ``last_by``."""
        newest = slot_rows().filter(schedule=OuterRef("pk")).order_by("-at")
        columns = {"last_at": "at", "last_task": "task_id", "last_skipped": "skipped"}
        return self.annotate(
            **{
                alias: Subquery(newest.values(column)[:1])
                for alias, column in (columns | {"last_by": "run_by"}).items()
            }
        )

    # Schedulers

    def serve(self, key: int, limit: int = SLOT_BATCH) -> int:
        """Enqueue what is due of the schedule with that ``key``: ``limit`` slots at most.

        Returns how many slots it took; none when others were first. Raises InvalidSchedule,
        UnknownTask, UnknownQueue, InvalidArguments, NotSerializable for rows that no form has seen.
        """
        rows = self.home()
        with atomic(rows.db):
            due = rows.served_here().due().filter(pk=key).annotate(now=DbNow())
            schedule: Any = lock(due, skip_locked=True).first()
            if schedule is None:
                return 0
            now = schedule.now
            if schedule.next_at is None:
                slots: list[datetime] = []
                next_at = schedule.rule.first(now)
            else:
                slots, next_at = due_slots(
                    schedule.rule, schedule.next_at, now, schedule.missed, limit
                )
            as_read = rows.filter(pk=key, next_at=schedule.next_at, paused_at=None)
            if not as_read.update(next_at=next_at):
                return 0
            taken = rows._fill(schedule, slots)
        for slot in taken:
            at = slot.at.isoformat(timespec="seconds")
            log.schedule_fired(schedule=schedule, outcome=_became(slot), slot=at)
        return len(taken)

    def _fill(
        self, schedule: Schedule, moments: list[datetime], by: str = ""
    ) -> list[ScheduleSlot]:
        """Take the slots at those ``moments`` that nobody has, and enqueue for each."""
        slots = slot_rows().using(self.db)
        known = slots.filter(schedule=schedule, at__in=moments)
        had = set(known.values_list("at", flat=True)) if moments else set()
        taken = []
        for at in moments:
            if at in had:
                continue
            task = self._enqueue(schedule)
            skipped = task.is_duplicate
            taken.append(
                slots.model(
                    schedule=schedule,
                    at=at,
                    task=None if skipped else task,
                    skipped=skipped,
                    run_by=by,
                )
            )
        return slots.bulk_create(taken)

    def _enqueue(self, schedule: Schedule) -> Task:
        tasks: Any = apps.get_model("leasing_tasks", "Task")._default_manager.using(self.db)
        task: Task = tasks.enqueue(
            schedule.task_name,
            schedule.task_data,
            queue=schedule.queue,
            priority=schedule.priority,
            unique_key=schedule.unique_key,
        )
        return task

    # Declarations

    def declare(self, declaration: Declaration) -> bool:
        """Write ``declaration`` to its row. Returns True if that changed anything.

        The process that starts last decides: at the end of a deploy that is new code.
        """
        rows = self.home()
        for _ in range(self.TRIES):
            try:
                with atomic(rows.db):
                    changed = rows._declare(declaration)
            except IntegrityError as error:
                refused = error  # Another process stored it first.
            else:
                return changed
        raise refused

    def _declare(self, declaration: Declaration) -> bool:
        wanted = declaration.columns()
        said = {"declared": True, "declared_at": DbNow()}
        present = lock(self.filter(name=declaration.name)).first()
        now = database_now(self.db)
        rule = rule_of(declaration.cron, declaration.every, declaration.timezone)
        if present is None:
            self.create(name=declaration.name, next_at=rule.first(now), **wanted, **said)
            return True
        changed = {k: value for k, value in wanted.items() if getattr(present, k) != value}
        moved = {"next_at": rule.first(now)} if changed.keys() & set(RULE) else {}
        self.filter(pk=present.pk).update(**changed, **moved, **said)
        if changed or not present.declared:
            log.schedule_declared(schedule=present)
        return bool(changed) or not present.declared

    def confirm(self) -> int:
        """Note that what the code of this process declares is still declared."""
        names = [declaration.name for declaration in declarations.declared()]
        old = Q(declared_at__lt=DbNow() - CONFIRMED_EVERY)
        return self.home().filter(old, name__in=names).update(declared_at=DbNow())

    # Operators

    def pause(self, by: str = "", reason: str = "") -> int:
        """Enqueue nothing from now on. Returns how many were not paused before: ``by`` and
        ``reason`` of an earlier pause stay.

        Args:
            by: The operator.
            reason: The reason, shown on the overview and with the schedule.
        """
        rows = self.home().filter(paused_at=None)
        with atomic(rows.db):
            keys = list(lock(rows.order_by("pk")).values_list("pk", flat=True))
            return rows.filter(pk__in=keys).update(
                paused_at=DbNow(), paused_by=by[:200], reason=reason[:500]
            )

    def resume(self) -> int:
        """Go on with the first moment that is yet to come: those of the pause are not made up
        for. Returns how many were paused."""
        return sum(self.home()._resume(key) for key in self._keys())

    def _resume(self, key: int) -> int:
        paused = self.filter(pk=key, paused_at__isnull=False)
        with atomic(self.db):
            schedule: Any = lock(paused.annotate(now=DbNow())).first()
            if schedule is None:
                return 0
            try:
                moment = schedule.rule.after(schedule.now, schedule.next_at or schedule.now)
            except InvalidSchedule:
                moment = None  # The page says so, and the schedulers' logs.
            return paused.update(paused_at=None, paused_by="", reason="", next_at=moment)

    def run_now(self, by: str = "") -> int:
        """Enqueue the task of each now, in addition to its rule, paused or not. Returns the number
        of tasks: none for a schedule without a handler here, or whose previous task has not ended
        and must not overlap.

        Raises UnknownQueue, NotSerializable.
        """
        return sum(self.home()._run_now(key, by) for key in self._keys())

    def _run_now(self, key: int, by: str) -> int:
        with atomic(self.db):
            known = self.filter(pk=key, task_name__in=registry.names())
            schedule = lock(known).first()
            if schedule is None:
                return 0
            (slot,) = self._fill(schedule, [self._free_moment(schedule)], by or "an operator")
        return int(not slot.skipped)

    def _free_moment(self, schedule: Schedule) -> datetime:
        """Now, or as soon after as neither a slot nor the plan has: clocks tick, some slowly."""
        at = database_now(self.db)
        taken = slot_rows().using(self.db).filter(schedule=schedule, at__gte=at)
        others = {schedule.next_at, *taken.values_list("at", flat=True)}
        while at in others:
            at += timedelta(microseconds=1)
        return at

    def _keys(self) -> list[int]:
        return list(self.home().order_by("pk").values_list("pk", flat=True))


class SlotQuerySet(RoutedQuerySet["ScheduleSlot"]):
    """Slots: ``ScheduleSlot.objects``."""

    def prune(self, limit: int = 500) -> int:
        """Delete up to ``limit`` slots older than a week that are not their schedule's last.
        Returns how many; call again while it is ``limit``."""
        rows = self.home()
        newer = rows.filter(schedule=OuterRef("schedule"), at__gt=OuterRef("at"))
        old = rows.filter(Exists(newer), at__lt=DbNow() - SLOTS_KEPT_FOR)
        return delete_up_to(
            unprotected(old).order_by("at"),
            limit,
            lambda keys: rows.filter(pk__in=keys).delete()[0],
        )


def slot_rows() -> SlotQuerySet:
    rows: Any = apps.get_model("leasing_tasks", "ScheduleSlot")._default_manager.all()
    slots: SlotQuerySet = rows
    return slots


def _became(slot: ScheduleSlot) -> str:
    if slot.skipped:
        return "enqueued nothing (its previous task has not ended)"
    return f"enqueued task:{slot.task_id}"
