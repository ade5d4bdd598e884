"""Claiming: ready rows become running ones, under a lease."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db.models import F
from django.db.models.functions import Coalesce

from leasing.claim import Claim
from leasing.dialects import durable
from leasing.functions import DbNow
from leasing.names import check_name
from leasing.terms import Terms
from tasks import signals
from tasks.conf import task_settings
from tasks.querysets.base import TaskStatus, check_queue
from tasks.querysets.queues import is_paused
from tasks.querysets.slots import Seating, Seats
from tasks.querysets.unique import key_once_claimed
from tasks.taken import Taken

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
        terms = Terms.check(holder=check_name(holder, "holder"), ttl=ttl)
        names = [check_queue(queue) for queue in queues or task_settings.QUEUES]
        random.shuffle(names)
        rows = self.home()
        rows._sweep_if_due()
        granted: list[tuple[Task, str]] = []
        seats = Seats(rows.model, rows.db)
        with durable(rows.db):
            for queue in names:
                if len(granted) < limit:
                    open_ = rows.filter(~is_paused(queue), queue=queue)
                    ready = open_.order_by("-priority", "scheduled_at", "id")
                    ready.seats = seats
                    granted += ready._grant_locked(terms, limit - len(granted))
        return Claim(rows._tell_granted(granted), rows.store(terms))

    def take(
        self,
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
    ) -> list[Taken]:
        """``claim``, for workers: without model instances where nothing needs them."""
        return [Taken.of(task) for task in self.claim(holder, queues=queues, limit=limit, ttl=ttl)]

    def _tell_granted(self, granted: list[tuple[Task, str]]) -> list[Task]:
        for task, _ in granted:
            signals.send(signals.claimed, task)
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
