"""Store the outcomes of attempts, many together if many have ended.

If the database does not answer, storing is tried again while the worker may trust its leases, and a
little longer. If the answer to an earlier try was lost, the grants of the rows show that it was
stored. If the database refuses many together, they are tried one by one, so that one bad result
does not affect the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from django.db import Error, connections

from leasing.exceptions import LeaseLost
from leasing.holding.term import drop_all
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.exceptions import NotSerializable
from tasks.execution.outcomes import COMPLETE, FAIL, Outcome, Refused
from tasks.log import log
from tasks.models import Task
from tasks.querysets import TaskQuerySet, TaskStatus
from tasks.runtime import marks
from tasks.runtime.marks import Marks
from tasks.runtime.timing import USUAL


def store_outcomes(
    outcomes: list[Outcome],
    database_down: Callable[[bool], object] = bool,
    pauses: Sequence[float] = USUAL.store_pauses,
) -> None:
    """Store ``outcomes``, each only under its grant. Raises nothing.

    Args:
        outcomes: The outcomes of attempts that have ended.
        database_down: Called with True if the database does not answer, else with False.
        pauses: The pauses between tries, in seconds.
    """
    try:
        for outcome in outcomes:
            if outcome.dropped:
                _drop(outcome)
        _store_until_stored(_left(outcomes), database_down, pauses)
    except BaseException:  # pragma: no cover - an error here must reach no worker
        log.task_result_failed(exc_info=True)
    finally:
        database_down(False)
        drop_all([outcome.execution.hold for outcome in outcomes])
        if marks.current is not None:
            _clear_marks(marks.current, outcomes)


def _clear_marks(known: Marks, outcomes: list[Outcome]) -> None:
    ours = [each for each in outcomes if not each.dropped]  # whoever ended those sees to them
    known.clear([each.execution.claimed.grant for each in ours if each.is_done and each.verb])
    for each in ours:
        if not (each.is_done and each.verb):
            # One without a verb is lost: until the lease has run out its row looks as it did.
            each.execution.clear_mark(is_stored=False)


def _drop(outcome: Outcome) -> None:
    execution, outcome.is_done = outcome.execution, True
    reason = f"its attempt was already over ({execution.ended_by})"
    log.task_result_dropped(execution.claimed, verb=outcome.verb, reason=reason)
    if outcome.verb == COMPLETE:
        try:
            execution.hold.refused(outcome.verb, reason)
        except Exception as error:
            log.task_note_failed(execution.claimed, error=error)


def _store_until_stored(
    left: list[Outcome], database_down: Callable[[bool], object], pauses: Sequence[float]
) -> None:
    unsure = any(outcome.is_unsure for outcome in left)
    for pause in (*pauses, None):
        if not left:
            return
        try:
            _store(_not_arrived(left) if unsure else left)
            return
        except Error as error:
            failure, is_first, unsure = error, not unsure, True
        using = left[0].execution.using
        connections[using].close()
        answers = _answers(using)
        if answers and len(left) > 1:
            _each_alone(left)
        left = _left(left)
        database_down(not answers)
        if pause is None:
            for outcome in left:
                log.task_result_not_stored(
                    outcome.execution.claimed, error=failure, exc_info=failure
                )
        elif left:
            if is_first:
                log.task_result_delayed(left[0].execution.claimed, error=failure, waiting=len(left))
            threading.Event().wait(pause)


def _each_alone(outcomes: list[Outcome]) -> None:
    """Store each by itself, as far as that goes."""
    with contextlib.suppress(Error):
        for outcome in _not_arrived(_left(outcomes)):
            with contextlib.suppress(Error):
                _store([outcome])


def _store(outcomes: list[Outcome]) -> None:
    """Store all of ``outcomes``, which are of one database. Raises Error when that does not
    answer; what it refuses is said, and done with."""
    _store_many([each for each in outcomes if each.verb == COMPLETE], _complete)
    # Those too whose output turned out to be none.
    failed = [each for each in outcomes if each.verb == FAIL and not each.is_done]
    _store_many(failed, _fail)
    for outcome in outcomes:
        if outcome.store is not None and not outcome.is_done:
            _store_many([outcome], _store_one)


def _store_many(outcomes: list[Outcome], store: Callable[[list[Outcome]], Refused]) -> None:
    if not outcomes:
        return
    try:
        began_at = clock()
        happened("outcomes.storing", outcomes)
        refused = store(outcomes)
        happened("outcomes.stored", outcomes, refused=refused, seconds=clock() - began_at)
    except Error:
        raise
    except BaseException as failure:  # sys.exit() too, in what asks a retry policy
        if len(outcomes) > 1:
            for outcome in outcomes:
                _store_many([outcome], store)
            return
        refused = [(outcomes[0], failure)]
    for outcome in outcomes:
        outcome.is_done = True
    for outcome, error in refused:
        claimed = outcome.execution.claimed
        if isinstance(error, NotSerializable) and outcome.verb == COMPLETE:
            outcome.verb, outcome.value, outcome.is_done = FAIL, error, False
        elif isinstance(error, LeaseLost):
            log.task_result_dropped(claimed, reason=f"lease lost ({error.reason})")
        else:
            log.task_result_not_stored(claimed, error=error, exc_info=error)


def _complete(outcomes: list[Outcome]) -> Refused:
    results = [(outcome.execution.claimed, outcome.value) for outcome in outcomes]
    refused = _rows(outcomes).complete_claimed(results)
    if not refused:
        return []
    known = {id(outcome.execution.claimed): outcome for outcome in outcomes}
    return [(known[id(claimed)], error) for claimed, error in refused]


def _fail(outcomes: list[Outcome]) -> Refused:
    known = {id(outcome.execution.task): outcome for outcome in outcomes}
    failures = [(outcome.execution.task, outcome.value) for outcome in outcomes]
    _, refused = _rows(outcomes).fail_many(failures)
    return [(known[id(task)], error) for task, error in refused]


def _store_one(outcomes: list[Outcome]) -> Refused:
    (outcome,) = outcomes
    assert outcome.store is not None
    outcome.store()
    return []


def _not_arrived(outcomes: list[Outcome]) -> list[Outcome]:
    """Return the part of ``outcomes`` that no earlier try, whose answer was lost, has stored after
    all."""
    if not outcomes:
        return []
    keys = [outcome.execution.claimed.id for outcome in outcomes]
    ended = _rows(outcomes).filter(pk__in=keys, released_at__isnull=False)
    over = ended.exclude(status=TaskStatus.RUNNING).values_list("pk", "grant_id")
    arrived = set(over)
    for outcome in outcomes:
        claimed = outcome.execution.claimed
        outcome.is_done = (claimed.id, claimed.grant_id) in arrived
    return _left(outcomes)


def _answers(using: str) -> bool:
    """Return True if the database answers."""
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return False
    return True


def _rows(outcomes: list[Outcome]) -> TaskQuerySet:
    return Task.objects.using(outcomes[0].execution.using)


def _left(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if not outcome.is_done]
