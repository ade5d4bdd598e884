"""Complete the tasks of a worker; on PostgreSQL many in one statement."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import DataError, IntegrityError, connections, transaction

from leasing.db import sql
from tasks.exceptions import NotSerializable
from tasks.payload import OUTPUT, dumped_json
from tasks.querysets import ends
from tasks.querysets.base import TaskRows
from tasks.querysets.claimed import ClaimedTask
from tasks.querysets.sql import complete

#: Outputs of more characters than this go to the database one by one.
LARGEST = 16_000_000

Refused = list[tuple[ClaimedTask, Exception]]


def complete_claimed(rows: TaskRows, results: Iterable[tuple[ClaimedTask, Any]]) -> Refused:
    """Complete each task with its output. Returns the refused ones, each with its error."""
    results = list(results)
    if not sql.serves(rows.db):
        return _by_instances(rows, results)
    done = _in_one_statement(rows, results)
    if done:
        rows._tell("task.completed", done)
    left: list[tuple[ClaimedTask, Any]] = []
    if len(done) < len(results):
        ended = set(map(id, done))
        left = [result for result in results if id(result[0]) not in ended]
    return [refusal for result in left for refusal in _by_instances(rows, [result])]


def _by_instances(rows: TaskRows, results: list[tuple[ClaimedTask, Any]]) -> Refused:
    taken = {id(each.task): each for each, _ in results}
    _, refused = ends.complete(rows, [(each.task, output) for each, output in results])
    return [(taken[id(task)], error) for task, error in refused]


def _in_one_statement(rows: TaskRows, results: list[tuple[ClaimedTask, Any]]) -> list[ClaimedTask]:
    """Complete the tasks for which this is possible, and return them."""
    asked: dict[int, tuple[ClaimedTask, Any]] = {}
    for result in sorted(results, key=lambda result: result[0].id):
        asked.setdefault(result[0].id, result)
    # Together they take half as long as one by one, and are seldom refused.
    text = _as_json([output for _, output in asked.values()])
    if text is None or len(text) > LARGEST:
        asked, text = _small_enough(asked)
    if not asked:
        return []
    try:
        with _statement(rows.db):
            done = complete.complete(rows, [each for each, _ in asked.values()], text)
    except (DataError, IntegrityError):
        return []
    for key, at in done.items():
        each, output = asked[key]
        each.end(output, at)
    return [asked[key][0] for key in done]


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
