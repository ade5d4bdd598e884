"""Storing what came of tasks and claiming the next ones, by one commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.db import DataError, IntegrityError, transaction

from tasks import postgres, signals
from tasks.querysets.claim import Claiming
from tasks.querysets.many import Batching
from tasks.taken import Taken


class Settling(Claiming, Batching):  # type: ignore[override]
    """What a worker does that has results and places free."""

    def settle_and_take(
        self,
        results: Iterable[tuple[Taken, Any]],
        holder: str,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        ttl: float | timedelta | None = None,
    ) -> tuple[list[Taken], list[tuple[Taken, Exception]]]:
        """``complete_taken`` and ``take``: returns the tasks that were taken, and the results
        that are not stored, each with its error.

        Where it is one commit it is so for both: an error of the connection leaves either both
        done or neither. Raises what ``take`` raises.
        """
        results = list(results)
        rows, terms, names = self._asked(holder, queues, ttl)
        together = postgres.serves(rows.db) and not signals.completed.has_listeners(rows.model)
        if not (together and results and limit > 0):
            refused = rows.complete_taken(results)
            return rows._take_under(terms, names, limit), refused
        try:
            with transaction.atomic(using=rows.db):
                done, told = rows._complete_in_one_statement(results, alone=False)
                taken, more = postgres.take(rows, terms, names, limit)
        except (DataError, IntegrityError):
            refused = rows.complete_taken(results)
            return rows._take_under(terms, names, limit), refused
        rows._tell_completed(told)
        refused = rows._complete_alone(results, done)
        return rows._with_seated(taken, terms, names, limit, more=more), refused
