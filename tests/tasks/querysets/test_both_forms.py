"""The oracle of claims by hand: the portable form, on the same random tasks.

Both forms run in savepoints of one transaction, with a clock that stands still. They must claim the
same tasks, and leave every column of every task alike.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import transaction

from leasing.db import sql
from leasing.db.dialects import as_if_of_test
from tasks.models import Queue, Task
from tasks.querysets.sql.cursors import ClaimCursor
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession

pytestmark = [
    pytest.mark.usefixtures("on_postgresql", "three_queues"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
]

QUEUES = ["default", "mails", "reports"]
COUNT = 150
#: What is told of each claimed task.
Claimed = list[tuple[Any, ...]]


@pytest.fixture
def three_queues(settings: Any) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "QUEUES": QUEUES}


def made(dice: random.Random, now: datetime, keys: list[str], *, alike: bool) -> None:
    """Make tasks of any queue, kind, priority and number of attempts, some of them with one of
    ``keys``, whose slots may be taken, and perhaps pause a queue."""
    tasks = []
    for number in range(COUNT):
        key = dice.choice(["", "", "", *keys])
        is_running = dice.random() < 0.1
        max_attempts = dice.choice([1, 1, 3])
        attempts = dice.randrange(max_attempts)
        columns: dict[str, Any] = {
            "name": dice.choice(["jobs.echo", "jobs.other"]),
            "queue": dice.choice(QUEUES),
            "kind": 0 if alike else dice.randrange(3),
            "priority": 0 if alike else dice.choice([0, 0, 5, -1]),
            # No two are due at the same moment: which of them is first is then no question.
            "scheduled_at": now
            + timedelta(seconds=dice.choice([-900, -60, 0, 20]), microseconds=-number),
            "created_at": now - timedelta(hours=1),
            "attempts": attempts,
            "max_attempts": max_attempts,
            "concurrency_key": key,
            "concurrency_limit": dice.choice([1, 2, 3]) if key else None,
            "unique_key": f"key:{number}" if dice.random() < 0.3 else None,
            "unique_for": dice.choice(["waiting", "finished"]),
        }
        if attempts or is_running:
            columns |= {
                "holder": "bob",
                "grant_id": uuid.UUID(int=dice.getrandbits(128), version=4),
                "grants": dice.randint(1, 3),
                "fencing_token": dice.choice([1, 10**15, 2 * 10**16]),
                "acquired_at": now - timedelta(minutes=9),
                "started_at": now - timedelta(minutes=9),
                "expires_at": now - timedelta(minutes=8),
                "progress": [1],
            }
            if columns["unique_for"] == "waiting":
                columns["unique_key"] = None
            if is_running:
                slot = f"{key}:{number}" if key else None
                columns |= {
                    "status": "running",
                    "attempts": attempts + 1,
                    "expires_at": now + timedelta(minutes=1),
                    "slot": slot,
                }
            else:
                columns["released_at"] = now - timedelta(minutes=8)
        tasks.append(Task(**columns))
    Task.objects.bulk_create(tasks)
    if dice.random() < 0.5:
        Queue.objects.pause(dice.choice(QUEUES))


def outcome(claim: Callable[[], Claimed], before: dict[int, Any]) -> tuple[Claimed, Any]:
    """What ``claim`` returns, and every column of every task afterwards; undone."""
    random.seed(7)  # of the queue that a claim begins with
    with transaction.atomic():
        with as_if_of_test("default"):
            answer = claim()
        rows = {row["id"]: row for row in Task.objects.order_by("pk").values()}
        for key, row in rows.items():
            row["grant_id"] = "same" if row["grant_id"] == before[key] else "new"
        transaction.set_rollback(True)
    return answer, rows


@contextmanager
def portable() -> Iterator[None]:
    with patch.object(sql, "serves", lambda using: False):
        yield


def as_worker(
    dice: random.Random, free: int | None, count: int, alike: bool
) -> Callable[[], Claimed]:
    """Claims of a worker, each behind the one before."""
    queues = dice.sample(QUEUES, 1 if alike else dice.randint(1, 3))
    kinds = [0] if alike else dice.sample(range(3), dice.randint(1, 3))
    limits = [dice.randint(1, 40) for _ in range(count)]

    def claim() -> Claimed:
        cursor, answers = ClaimCursor(lasts=3600.0), list[Any]()
        for limit in limits:
            taken = Task.objects.take(
                "cy", queues=queues, kinds=kinds, limit=limit, free=free, ttl=9, cursor=cursor
            )
            answers += sorted((each.id, each.attempts, each.fencing_token) for each in taken)
        return answers

    return claim


def as_caller(
    dice: random.Random, free: int | None, count: int, alike: bool
) -> Callable[[], Claimed]:
    """A claim of every kind, as instances."""
    queues = [dice.choice(QUEUES)]
    limit = dice.randint(1, 40)

    def claim() -> Claimed:
        tasks = Task.objects.claim("cy", queues=queues, limit=limit, free=free, ttl=9)
        return [(task.pk, task.attempts, task.fencing_token, task.expires_at) for task in tasks]

    return claim


def by_key(dice: random.Random, free: int | None, count: int, alike: bool) -> Callable[[], Claimed]:
    """Claims of single tasks."""
    keys = dice.sample(list(Task.objects.values_list("pk", flat=True)), 20)

    def claim() -> Claimed:
        taken = [Task.objects.take_one(key, "cy", queue="mails", ttl=9) for key in keys]
        return [(each.id, each.attempts, each.fencing_token) if each else () for each in taken]

    return claim


CLAIMS: dict[str, Callable[..., Callable[[], Claimed]]] = {
    "worker": as_worker,
    "caller": as_caller,
    "key": by_key,
}


#: The keys that there are, how many begin at once, the number of claims, and True if all are of
#: one kind and priority. Only the portable form gives slots, after what needs none. What may
#: not wait takes the room of others where several queues and kinds are one look; and further on,
#: others of the same priority come before those of a lower one.
CASES: dict[str, tuple[list[str], int | None, int, bool]] = {
    "plain": ([], None, 1, False),
    "keyed": (["a", "b"], None, 1, False),
    "further on": ([], None, 3, True),
    "some wait": ([], 3, 1, True),
    "all wait": ([], 0, 1, True),
}


@pytest.mark.parametrize("rival", [False, True], ids=["alone", "with a rival"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", CLAIMS)
def test_a_claim_by_hand_claims_what_the_portable_form_does(
    how: str,
    case: str,
    seed: int,
    rival: bool,
    database_clock: DatabaseClock,
    other_session: OtherSession,
) -> None:
    """A rival has locked some of the tasks."""
    dice = random.Random(f"{how} {case} {seed}")
    keys, free, count, alike = CASES[case]
    made(dice, database_clock.now, keys, alike=alike)
    before = dict(Task.objects.values_list("pk", "grant_id"))
    claim = CLAIMS[how](dice, free, count, alike)
    if rival:
        locked = dice.sample(list(before), COUNT // 5)
        other_session.begin()
        other_session.run(lambda: list(Task.objects.select_for_update().filter(pk__in=locked)))

    by_hand = outcome(claim, before)
    with portable():
        expected = outcome(claim, before)

    if rival:
        other_session.commit()
    assert by_hand[0] == expected[0]
    differing = {key: row for key, row in by_hand[1].items() if row != expected[1][key]}
    assert differing == {}
