"""Giving back the tasks that a worker will not finish, for others to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from django.db import Error

from leasing.holding.keeper import ABANDONED
from leasing.holding.term import detach_all
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.execution.attempt import Attempt, wait_until
from tasks.execution.runner import STOPPED
from tasks.log import log
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask
from tasks.registry import Kind

#: The number of tasks of this process that were given back because their carrier had ended, by
#: kind.
abandoned: Counter[str] = Counter()


def give_back_all(left: list[Attempt], patience: float) -> None:
    """End what can be ended within ``patience`` seconds, and give everything back: the worker is to
    end."""
    # What timed out, and what its handler has ended, is stored or about to be.
    ending = [each for each in left if each.ended_by]
    left = [each for each in left if not each.ended_by]
    interrupted = [each for each in left if each.kind is not Kind.THREAD]
    for attempt in interrupted:
        if attempt.end_by("stop"):
            attempt.end_work()
    until = clock() + patience
    wait_until(lambda: all(each.has_ended for each in interrupted), until)
    if left:
        give_back(left, STOPPED)
    wait_until(lambda: not any(each.is_kept for each in ending), until)


def give_up(attempts: list[Attempt]) -> None:
    """Give back tasks that nothing here carries on any more. Raises nothing."""
    for attempt in attempts:
        abandoned[attempt.kind] += 1
        log.task_abandoned(attempt.claimed)
    # What timed out is stored as that.
    left = [each for each in attempts if each.end_by("stop") or each.ended_by != "timeout"]
    if left:
        give_back(left, ABANDONED)


def give_back(attempts: list[Attempt], reason: str) -> None:
    """Set tasks ready again at once, whatever their handlers still do. Raises nothing."""
    alike: dict[tuple[str, bool], list[Attempt]] = {}
    detach_all(attempts)
    for attempt in attempts:
        happened("attempt.returned", [attempt], reason=reason)
        begun = attempt.carrier is not None
        alike.setdefault((attempt.claimed.using, begun), []).append(attempt)
    for (using, begun), some in alike.items():
        rows, claimed = Task.objects.using(using), [attempt.claimed for attempt in some]
        refused: Sequence[tuple[Task | ClaimedTask, Exception]]
        is_stored = False
        try:
            if begun:
                _, refused = rows.give_back_many([each.task for each in claimed], reason)
            else:
                refused = rows.release_unstarted(claimed, reason)
        except Error as error:
            for each in claimed:
                log.task_return_failed(each, error=error)
        else:
            is_stored = True
            for task, loss in refused:
                log.task_return_needless(task, reason=loss)
        for attempt in some:
            attempt.clear_mark(is_stored=is_stored)
