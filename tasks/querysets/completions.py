"""Complete the tasks of a worker; on PostgreSQL many in one statement."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import DataError, IntegrityError, connections, transaction

from leasing.db import postgres
from leasing.db.dialects import after_commit
from tasks import registry, signals
from tasks.exceptions import NotSerializable
from tasks.notifier import notify_ended, waited_for
from tasks.payload import OUTPUT, dumped_json
from tasks.querysets import ends
from tasks.querysets.base import TaskRows
from tasks.querysets.claimed import ClaimedTask, Completed, resource_of
from tasks.querysets.sql import complete

#: Outputs of more characters than this go to the database one by one.
LARGEST = 16_000_000

Refused = list[tuple[ClaimedTask, Exception]]


def complete_claimed(rows: TaskRows, results: Iterable[tuple[ClaimedTask, Any]]) -> Refused:
    """Complete each task with its output. Returns the refused ones, each with its error."""
    results = list(results)
    if signals.completed.has_receivers(rows.model) or not postgres.serves(rows.db):
        return _by_instances(rows, results)
    done, reported, logged = _in_one_statement(rows, results)
    left: list[tuple[ClaimedTask, Any]] = []
    if len(done) < len(results):
        left = [result for result in results if id(result[0]) not in done]
        results = [result for result in results if id(result[0]) in done]
    _tell([each for each, _ in results], reported, logged, rows.db)
    return [refusal for result in left for refusal in _by_instances(rows, [result])]


def _by_instances(rows: TaskRows, results: list[tuple[ClaimedTask, Any]]) -> Refused:
    taken = {id(each.task): each for each, _ in results}
    _, refused = ends.complete(rows, [(each.task, output) for each, output in results])
    return [(taken[id(task)], error) for task, error in refused]


def _in_one_statement(
    rows: TaskRows, results: list[tuple[ClaimedTask, Any]]
) -> tuple[set[int], list[Completed], list[ClaimedTask]]:
    """Complete the tasks for which this is possible. Returns the ``id()`` of each, those of which
    an ``on_end`` is to be told, and those that it is to log."""
    asked, outputs, reported, logged = _asked_together(results)
    if not asked:
        return set(), [], []
    try:
        with _statement(rows.db):
            done = complete.complete(
                rows, [each for each, _ in asked.values()], outputs, timed=bool(reported)
            )
    except (DataError, IntegrityError):
        return set(), [], []
    completed = [
        Completed(asked[key][0], _as_json(asked[key][1]) or "null", at)
        for key in reported
        if (at := done.get(key))
    ]
    log = [asked[key][0] for key in logged if key in done]
    return {id(asked[key][0]) for key in done}, completed, log


def _tell(
    done: list[ClaimedTask], completed: list[Completed], logged: list[ClaimedTask], using: str
) -> None:
    """Log and count the tasks that are ``done``, call ``on_end`` for those ``completed``, have it
    log the others that are to be ``logged``, and notify those who wait for one."""

    def tell() -> None:
        if done and signals.completed.is_noted:
            signals.completed.note(done)
        for each in completed:
            registry.report_end(each)
        registry.log_successes(logged)
        if waited_for:
            notify_ended(using, [resource_of(each.id) for each in done])

    if completed or logged or waited_for or signals.completed.is_noted:
        after_commit(using, tell)


def _asked_together(
    results: list[tuple[ClaimedTask, Any]],
) -> tuple[dict[int, tuple[ClaimedTask, Any]], str, list[int], list[int]]:
    """Return the part of ``results`` that one statement may store, by their keys and in their
    order; all their outputs as one text of JSON; the keys of those whose end is to be reported;
    and of those whose end is only to be logged."""
    asked: dict[int, tuple[ClaimedTask, Any]] = {}
    reported: list[int] = []
    logged: list[int] = []
    asks: dict[str, tuple[bool, bool] | None] = {}
    for result in sorted(results, key=lambda result: result[0].id):
        each = result[0]
        key, name = each.id, each.name
        if key in asked:
            continue
        if name not in asks:
            asks[name] = _asks_of(name)
        if (ask := asks[name]) is not None:
            is_reported, is_logged = ask
            if is_reported and not each.can_be_reported:
                continue
            if is_reported:
                reported.append(key)
            elif is_logged:
                logged.append(key)
        asked[key] = result
    # Together they take half as long as one by one, and are seldom refused.
    text = _as_json([output for _, output in asked.values()])
    if text is None or len(text) > LARGEST:
        asked, text = _small_enough(asked)
    return asked, text, [key for key in reported if key in asked], logged


def _asks_of(name: str) -> tuple[bool, bool] | None:
    """Return if the success of the tasks called ``name`` is to be reported, and if it is to be
    logged; None: neither."""
    handler = registry.get(name)
    if handler is None or handler.on_end is None:
        return None
    return handler.reports_success, handler.logs_success


def _small_enough(
    asked: dict[int, tuple[ClaimedTask, Any]],
) -> tuple[dict[int, tuple[ClaimedTask, Any]], str]:
    """Return the part of ``asked`` whose output may be stored, as far as they fit into one
    statement, and their outputs as JSON."""
    texts: dict[int, str] = {}
    room = LARGEST
    for key, (_, output) in asked.items():
        text = _as_json(output)
        if text is not None and len(text) <= room:
            texts[key] = text
            room -= len(text)
    return {key: asked[key] for key in texts}, f"[{','.join(texts.values())}]"


def _as_json(output: Any) -> str | None:
    """``output`` as text, if it may be stored."""
    try:
        return dumped_json(output, OUTPUT)
    except NotSerializable:
        return None


def _statement(using: str) -> AbstractContextManager[object]:
    """Around one statement: within a transaction an error of it is to harm nothing else."""
    inside = connections[using].in_atomic_block
    return transaction.atomic(using=using) if inside else nullcontext()
