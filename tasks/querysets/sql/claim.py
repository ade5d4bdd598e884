"""PostgreSQL's one-statement forms of claims.

A claim locks what it finds, grants, and answers in one round trip where the portable form takes
five. The texts are in ``claim_text``.

The grants are random numbers of this process: as many as may be claimed travel with the request,
for the database takes a microsecond to make one. They are no number with the key put into it:
whoever sees one grant of a claim could tell the others.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import connections

from leasing.db.cached_cursors import fetch_all, new_cursor
from leasing.db.row_reader import reader
from leasing.db.statements import array_of, joined
from leasing.functions import EPOCH
from leasing.runtime.clock import clock
from leasing.runtime.events import is_heard
from leasing.validation.terms import Terms
from tasks import registry
from tasks.querysets.claim_request import ClaimRequest
from tasks.querysets.claimed import (
    ClaimedTask,
    ClaimTerm,
    keeping,
)
from tasks.querysets.sql.claim_text import (
    claim_statement,
    take_after_statement,
    take_one_statement,
    take_statement,
)
from tasks.querysets.sql.cursors import ClaimCursor
from tasks.querysets.sql.plans import plan_took, planned
from tasks.querysets.sql.statements import cached_statement

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.base import TaskRows

#: A request's number, a queue and a kind that it looks at.
Place = tuple[int, str, int]

#: Of the bytes with the version and the variant of a UUID, what they are of a random one.
_VERSION = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))

#: Numbers that stand in a statement as constants, as nothing else that may stand there.
_PLACES = {name: f"<{name} {secrets.token_hex()}>" for name in ("most", "requests")}

#: As ``json.loads`` does it, without a look at what may stand around a text.
_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once


def take(
    rows: TaskRows,
    terms: Terms,
    queues: Sequence[str],
    requests: Sequence[ClaimRequest],
    claim_cursor: ClaimCursor,
) -> tuple[list[ClaimedTask], bool]:
    """Grant ready tasks of ``rows`` that need no seat, as many as ``requests`` ask for. Returns
    them, and whether it came past tasks that need one."""
    places = [
        (number, queue, kind)
        for number, request in enumerate(requests, 1)
        for queue in queues
        for kind in request.kinds
    ]
    after = claim_cursor.after(places)
    claimed, are_keyed = _take(rows, terms, places, requests, after)
    again: list[int] = []
    for number, request in enumerate(requests, 1):
        if request.left > 0:
            if claim_cursor.end(request.kinds) and not request.passed_over:
                again.append(number)
        else:
            claim_cursor.go_on(each for each in claimed if each.kind in request.kinds)
    if again and not are_keyed:
        places = [place for place in places if place[0] in again]
        with keeping(claimed):
            more, are_keyed = _take(rows, terms, places, requests, None)
            claimed += more
    return claimed, are_keyed


def _take(
    rows: TaskRows,
    terms: Terms,
    places: Sequence[Place],
    requests: Sequence[ClaimRequest],
    after: list[int | None] | None,
) -> tuple[list[ClaimedTask], bool]:
    numbers, queues, kinds = map(list, zip(*places, strict=True))
    rooms = [request.left for request in requests]
    parameters = {
        **_parameters(terms, queues, sum(rooms)),
        "requests": array_of(numbers),
        "kinds": array_of(kinds),
        "rooms": array_of(rooms),
        "free": array_of([request.free_left for request in requests]),
        "soon": array_of([request.soon_left for request in requests]),
        "reported": array_of(registry.observed()),
    }
    most = sum(rooms)
    if after is None:
        statement = _timed("take", rows, take_statement, most, requests=len(requests))
        claimed, said = _answered(rows, terms, statement, parameters)
    else:
        statement = _timed("take after", rows, take_after_statement, most, requests=len(requests))
        parameters["after"] = joined("NULL" if each is None else str(each) for each in after)
        sent_at, answers = _answers(rows, statement, parameters)
        answers.sort()  # by what they begin with, in which no two are the same
        claimed, said = _claimed(rows, terms, sent_at, [answer[3:] for answer in answers])
    found = [each.kind for each in claimed]
    for number, request in enumerate(requests, 1):
        request.found += sum(map(found.count, request.kinds))
        request.passed_over = request.passed_over or bool(said >> number & 1)
    return claimed, bool(said & 1)


def take_one(rows: TaskRows, terms: Terms, queue: str, key: int) -> tuple[list[ClaimedTask], bool]:
    """``take``, of the task with this ``key`` alone."""
    reported = array_of(registry.observed())
    parameters = {**_parameters(terms, [queue], 1), "reported": reported, "key": key}
    statement = _timed("take one", rows, take_one_statement, 1)
    claimed, said = _answered(rows, terms, statement, parameters)
    return claimed, bool(said)


def _timed(
    what: str, rows: TaskRows, compiled: Callable[..., str], limit: int, **numbers: int
) -> str:
    # How long they have waited is read where somebody counts, and nowhere else.
    timed = is_heard("attempt.ran")
    make = partial(compiled, timed=timed)
    return _numbered((what, timed), rows, make, most=_most(limit), **numbers)


def _numbered(what: Any, rows: TaskRows, compiled: Callable[..., str], **numbers: int) -> str:
    """Return the statement with these ``numbers`` as constants: Django compiles one for all, which
    takes longer than most claims."""

    def make(rows: TaskRows) -> str:
        places = {name: _PLACES[name] for name in numbers}
        text = cached_statement(what, rows, partial(compiled, **places))
        for name, number in numbers.items():
            text = text.replace(_PLACES[name], str(number))
        return text

    return cached_statement((what, *numbers.values()), rows, make)


def _most(limit: int) -> int:
    """Return the limit of a claim, rounded so that few statements serve for all of them."""
    most = 16
    while most < limit:
        most *= 16
    return most


def _answers(
    rows: TaskRows, statement: str, parameters: dict[str, Any]
) -> tuple[float, list[tuple[Any, ...]]]:
    """Return the moment at which the statement was sent, and its rows."""
    text = planned(statement)
    sent_at = clock()
    answers = fetch_all(connections[rows.db], text, parameters, known_as=statement)
    plan_took(clock() - sent_at, len(answers))
    return sent_at, answers


def _answered(
    rows: TaskRows, terms: Terms, statement: str, parameters: dict[str, Any]
) -> tuple[list[ClaimedTask], int]:
    sent_at, answers = _answers(rows, statement, parameters)
    said, _, data, *_ = answers[0]
    return ([], said) if data is None else _claimed(rows, terms, sent_at, answers)


def _claimed(
    rows: TaskRows, terms: Terms, sent_at: float, answers: list[tuple[Any, ...]]
) -> tuple[list[ClaimedTask], int]:
    if not answers:
        return [], 0
    said, microseconds, *_ = answers[0]
    now = EPOCH + timedelta(microseconds=microseconds)
    term = ClaimTerm(terms.holder, terms.ttl, now, now + terms.ttl, now, sent_at, rows.db)
    return [ClaimedTask(term, _read(data), *others) for _, _, data, *others in answers], said


def _read(data: str) -> dict[str, Any]:
    value: dict[str, Any] = _scan(data, 0)[0]
    return value


def claim(
    rows: TaskRows, terms: Terms, queues: Sequence[str], request: ClaimRequest
) -> tuple[list[Task], bool]:
    """Grant ready tasks of every kind that need no seat, as many as ``request`` asks for, with
    every column, as model instances. Returns them, and whether there may be more."""
    limit = request.left
    statement = planned(_numbered("claim", rows, claim_statement, most=_most(limit)))
    parameters = {**_parameters(terms, queues, limit), "limit": limit, "free": request.free_left}
    sent_at = clock()
    # A hundred instances that Django reads and makes take longer than the statement.
    with new_cursor(connections[rows.db]) as cursor:
        cursor.execute(statement, parameters)
        answers = cursor.fetchall()
    plan_took(clock() - sent_at, len(answers))
    read = reader(rows.model, rows.db)
    passed_over, now, *_ = answers[0]
    # Behind the columns of a task is what the answer is ordered by.
    claimed = [columns for _, _, *columns, _, _ in answers if columns[read.key] is not None]
    tasks: list[Task] = read.rows(claimed)
    for task in tasks:
        task.now, task.sent_at = now, sent_at
    request.found += len(tasks)
    return tasks, bool(passed_over)


def _parameters(terms: Terms, queues: Sequence[str], limit: int) -> dict[str, Any]:
    noise = _new_grants(limit)
    parameters: dict[str, Any] = {"holder": terms.holder, "ttl": terms.ttl}
    parameters["queues"] = array_of(list(queues))
    if terms.request_id is not None:
        begin = terms.begin_of_grants
        noise = b"".join(begin + noise[at : at + 8] for at in range(8, 16 * limit, 16))
    return {**parameters, "noise": noise}


def _new_grants(count: int) -> bytes:
    """The bytes of as many of what ``uuid4`` makes."""
    noise = bytearray(os.urandom(16 * count))
    noise[6::16] = noise[6::16].translate(_VERSION)
    noise[8::16] = noise[8::16].translate(_VARIANT)
    return bytes(noise)
