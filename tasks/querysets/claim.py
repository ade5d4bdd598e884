"""Claiming: ready rows become running ones, under a lease."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db.models import F
from django.db.models.functions import Coalesce

from leasing.db.dialects import durable
from leasing.functions import DbNow
from leasing.querysets.claim import Claim
from leasing.validation.names import check_name
from leasing.validation.terms import Terms
from tasks import signals
from tasks.conf import task_settings
from tasks.querysets.base import TaskStatus, check_queue
from tasks.querysets.claimed import Taken, keeping
from tasks.querysets.queues import is_paused
from tasks.querysets.slots import Seating, Seats
from tasks.querysets.sql import claim as postgres
from tasks.querysets.unique import key_once_claimed
from tasks.runtime.tracepoints import points

if TYPE_CHECKING:
    from tasks.models import Task


class Claiming(Seating):
    """What workers begin with."""

    def claim(  # type: ignore[override]
        self,
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
    ) -> Claim[Task]:
        """Lease up to ``limit`` ready tasks of ``queues`` (None: all) to ``holder``, for ``ttl``
        seconds from now and from each heartbeat.

        Higher priority goes first, then the longest due. Queues that are paused and tasks whose
        concurrency key has its limit running are passed over. Which queue is looked at first is
        drawn by lot, so that a full one does not starve the others. When this process has not
        looked for stuck tasks for SWEEP_EVERY, it does so first: a site whose only workers are
        remote ones recovers too.

        Raises UnknownQueue, InvalidResource (the holder), InvalidTTL, LeaseInTransaction.
        """
        rows, terms, names = self._asked(holder, queues, ttl)
        tasks: list[Task] = []
        if postgres.serves(rows.db):
            tasks, more = postgres.claim(rows, terms, names, limit)
            if more and len(tasks) < limit:
                with keeping(tasks):
                    seated = rows._claim_portably(terms, names, limit - len(tasks))
                    tasks = sorted([*tasks, *seated], key=_in_order)
        else:
            tasks = rows._claim_portably(terms, names, limit)
        if points.tracer is not None:
            points.tracer.claimed(tasks)
        if signals.claimed.has_listeners(rows.model):
            for task in tasks:
                signals.send(signals.claimed, task)
        return Claim(tasks, rows.store(terms))

    def take(
        self,
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
    ) -> list[Taken]:
        """``claim``, for workers: without model instances where nothing needs them."""
        rows, terms, names = self._asked(holder, queues, ttl)
        taken: list[Taken] = []
        more = True
        if postgres.serves(rows.db):
            taken, more = postgres.take(rows, terms, names, limit)
        if more and len(taken) < limit:
            with keeping(taken):
                seated = rows._claim_portably(terms, names, limit - len(taken))
                taken += [Taken.of(task) for task in seated]
        rows._tell_taken(taken)
        return taken

    def _tell_taken(self, taken: list[Taken]) -> None:
        if points.tracer is not None:
            points.tracer.claimed(taken)
        if signals.claimed.has_receivers(self.model):
            for each in taken:
                signals.send(signals.claimed, each.task)
        elif taken and signals.claimed.is_noted:
            signals.claimed.note(taken)

    def to_claim(self, queue: Any) -> Self:
        """The tasks of ``queue`` in the order in which they are claimed; none while it is
        paused."""
        open_ = self.filter(~is_paused(queue), queue=queue)
        return open_.order_by("-priority", "scheduled_at", "id")

    def _asked(
        self, holder: str, queues: Sequence[str] | None, ttl: float | timedelta | None
    ) -> tuple[Self, Terms, list[str]]:
        """Check what is asked for, and sweep if that is due. Returns the rows to claim from,
        the terms, and the queues in the order they are looked at."""
        terms = Terms.check(holder=check_name(holder, "holder"), ttl=ttl)
        names = [check_queue(queue) for queue in queues or task_settings.QUEUES]
        random.shuffle(names)
        rows = self.home()
        rows._sweep_if_due()
        return rows, terms, names

    def _claim_portably(self, terms: Terms, queues: Sequence[str], limit: int) -> list[Task]:
        granted: list[tuple[Task, str]] = []
        seats = Seats(self.model, self.db)
        with durable(self.db):
            for queue in queues:
                if len(granted) < limit:
                    ready = self.to_claim(queue)
                    ready.seats = seats
                    granted += ready._grant_locked(terms, limit - len(granted))
        return [task for task, _ in granted]

    def available(self) -> Self:
        return self.ready()

    def granting(self, terms: Terms) -> dict[str, Any]:
        return super().granting(terms) | {
            "status": TaskStatus.RUNNING,
            "attempts": F("attempts") + 1,
            "started_at": Coalesce(F("started_at"), DbNow()),
            "progress": None,
            "progressed_at": DbNow(),
            "unique_key": key_once_claimed(),
        }


def _in_order(task: Task) -> tuple[Any, ...]:
    return (-task.priority, task.scheduled_at, task.pk)
