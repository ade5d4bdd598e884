"""Queues that stand still: nothing of theirs is claimed until someone resumes them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from leasing.db.dialects import after_commit
from leasing.db.routing import RoutedQuerySet
from leasing.functions import DbNow
from leasing.runtime.events import happened
from tasks.notifier import notify_queues
from tasks.registry import check_queue

if TYPE_CHECKING:
    from tasks.models import Queue


class QueueQuerySet(RoutedQuerySet["Queue"]):
    """The state of queues: ``Queue.objects``."""

    def paused(self) -> QueueQuerySet:
        return self.filter(paused_at__isnull=False)

    def pause(self, name: str, *, by: str = "", reason: str = "") -> bool:
        """Pause the queue ``name``: none of its tasks is claimed from now on; running tasks
        continue. Returns True if it was open: ``by`` and ``reason`` of an earlier pause stay.

        Once this has committed, every claim that begins later sees it. Raises UnknownQueue.

        Args:
            name: The queue.
            by: The operator.
            reason: The reason, shown with every task that waits there.
        """
        rows = self._home()
        paused = (
            rows.known(name)
            .filter(paused_at=None)
            .update(paused_at=DbNow(), paused_by=by[:200], reason=reason[:500])
        )
        if paused:
            rows._tell("queue.paused", name, by=by, reason=reason)
        return bool(paused)

    def resume(self, name: str, *, by: str = "") -> bool:
        """Resume the queue ``name``. Returns True if it was paused."""
        rows = self._home()
        resumed = rows.filter(name=name).paused().update(paused_at=None, paused_by="", reason="")
        if resumed:
            rows._tell("queue.resumed", name, by=by)
            notify_queues(rows.db, {name: 0})
        return bool(resumed)

    def known(self, *names: str) -> QueueQuerySet:
        """Return the queues of these names, after making rows for those that have none. Raises
        UnknownQueue."""
        named = self._home().filter(name__in=names)
        unseen = set(names) - set(named.values_list("name", flat=True))
        self.declare([check_queue(name) for name in sorted(unseen)])
        return named

    def declare(self, names: Iterable[str]) -> None:
        """Make rows for the queues that have none, so that operators find them."""
        rows: list[Queue] = [self.model(name=name) for name in names]
        self._home().bulk_create(rows, ignore_conflicts=True)

    def _home(self) -> QueueQuerySet:
        """Every queue of the database that has the tasks."""
        return QueueQuerySet(self.model, using=self.db)

    def _tell(self, event: str, name: str, **details: Any) -> None:
        after_commit(self.db, partial(happened, event, [name], **details))
