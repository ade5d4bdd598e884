"""Stores the outcomes of attempts, of many together where many have ended.

When the database is away, storing is tried again for as long as the worker may believe that the
tasks are still its own, and a little longer; should the answer to an earlier try have been lost
on the way, the rows say so by their grants. What the database does not take of many is tried one
by one, so that no result sinks its neighbours.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

from django.db import Error, connections

from leasing.exceptions import LeaseLost
from leasing.hold.held_grant import detach_all
from tasks.exceptions import NotSerializable
from tasks.execution.outcomes import COMPLETE, FAIL, Ending, Refused
from tasks.log import log
from tasks.models import Task
from tasks.querysets import TaskQuerySet, TaskStatus
from tasks.runtime.tracepoints import points

#: Pauses between the tries to store a result, in seconds.
SETTLE_PAUSES = (0.1, 0.3, 1, 2, 4, 8, 15)


def settle(endings: list[Ending], is_away: Callable[[bool], object] = bool) -> None:
    """Store ``endings``, each under its grant alone. Raises nothing. ``is_away`` is told whether
    the database does not answer."""
    try:
        for ending in endings:
            if ending.dropped:
                _drop(ending)
        _settle(_left(endings), is_away)
    except BaseException:  # pragma: no cover - a fault of ours must reach no worker
        log.task_result_failed(exc_info=True)
    finally:
        is_away(False)
        detach_all([ending.execution.hold for ending in endings])


def _drop(ending: Ending) -> None:
    execution, ending.is_done = ending.execution, True
    reason = f"its attempt was already over ({execution.ended_by})"
    log.task_result_dropped(execution.claimed, verb=ending.verb, reason=reason)
    if ending.verb == COMPLETE:
        try:
            execution.hold.refused(ending.verb, reason)
        except Exception as error:
            log.task_note_failed(execution.claimed, error=error)


def _settle(left: list[Ending], is_away: Callable[[bool], object]) -> None:
    unsure = any(ending.is_unsure for ending in left)
    for pause in (*SETTLE_PAUSES, None):
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
        is_away(not answers)
        if pause is None:
            for ending in left:
                log.task_result_not_stored(
                    ending.execution.claimed, error=failure, exc_info=failure
                )
        elif left:
            if is_first:
                log.task_result_delayed(left[0].execution.claimed, error=failure, waiting=len(left))
            threading.Event().wait(pause)


def _each_alone(endings: list[Ending]) -> None:
    """Store each by itself, as far as that goes."""
    with contextlib.suppress(Error):
        for ending in _not_arrived(_left(endings)):
            with contextlib.suppress(Error):
                _store([ending])


def _store(endings: list[Ending]) -> None:
    """Store all of ``endings``, which are of one database. Raises Error when that does not
    answer; what it refuses is said, and done with."""
    _store_many([each for each in endings if each.verb == COMPLETE], _complete)
    # Those too whose output turned out to be none.
    failed = [each for each in endings if each.verb == FAIL and not each.is_done]
    _store_many(failed, _fail)
    for ending in endings:
        if ending.store is not None and not ending.is_done:
            _store_many([ending], _store_one)


def _store_many(endings: list[Ending], store: Callable[[list[Ending]], Refused]) -> None:
    if not endings:
        return
    try:
        tracer = points.tracer
        refused = store(endings) if tracer is None else tracer.storing(store, endings)
    except Error:
        raise
    except BaseException as failure:  # sys.exit() too, in what asks a retry policy
        if len(endings) > 1:
            for ending in endings:
                _store_many([ending], store)
            return
        refused = [(endings[0], failure)]
    for ending in endings:
        ending.is_done = True
    for ending, error in refused:
        claimed = ending.execution.claimed
        if isinstance(error, NotSerializable) and ending.verb == COMPLETE:
            ending.verb, ending.value, ending.is_done = FAIL, error, False
        elif isinstance(error, LeaseLost):
            log.task_result_dropped(claimed, reason=f"lease lost ({error.reason})")
        else:
            log.task_result_not_stored(claimed, error=error, exc_info=error)


def _complete(endings: list[Ending]) -> Refused:
    known = {id(ending.execution.claimed): ending for ending in endings}
    results = [(ending.execution.claimed, ending.value) for ending in endings]
    refused = _rows(endings).complete_claimed(results)
    return [(known[id(claimed)], error) for claimed, error in refused]


def _fail(endings: list[Ending]) -> Refused:
    known = {id(ending.execution.task): ending for ending in endings}
    failures = [(ending.execution.task, ending.value) for ending in endings]
    _, refused = _rows(endings).fail_many(failures)
    return [(known[id(task)], error) for task, error in refused]


def _store_one(endings: list[Ending]) -> Refused:
    (ending,) = endings
    assert ending.store is not None
    ending.store()
    return []


def _not_arrived(endings: list[Ending]) -> list[Ending]:
    """Those of ``endings`` that no earlier try, whose answer was lost, has stored after all."""
    if not endings:
        return []
    keys = [ending.execution.claimed.id for ending in endings]
    ended = _rows(endings).filter(pk__in=keys, released_at__isnull=False)
    over = ended.exclude(status=TaskStatus.RUNNING).values_list("pk", "grant_id")
    arrived = set(over)
    for ending in endings:
        claimed = ending.execution.claimed
        ending.is_done = (claimed.id, claimed.grant_id) in arrived
    return _left(endings)


def _answers(using: str) -> bool:
    """Whether the database does."""
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return False
    return True


def _rows(endings: list[Ending]) -> TaskQuerySet:
    return Task.objects.using(endings[0].execution.using)


def _left(endings: Iterable[Ending]) -> list[Ending]:
    return [ending for ending in endings if not ending.is_done]
