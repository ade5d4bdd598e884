"""States that the database itself forbids."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import F, UniqueConstraint

from leasing.functions import DbNow, after
from tasks.generator import start_generator
from tasks.models import GeneratorDesiredState, Task, TaskAttempt
from tests.factories import make_task, make_tasks

pytestmark = pytest.mark.django_db

LATER = after(timedelta(seconds=60))

IMPOSSIBLE: list[tuple[str, str, str, dict[str, Any]]] = [
    # constraint, what would be wrong, the state to begin with, the update that must fail
    ("state", "a state that nobody knows", "ready", {"status": "paused"}),
    ("state", "no state", "ready", {"status": ""}),
    (
        "state",
        "running and never leased",
        "ready",
        {"status": "running", "attempts": 1, "started_at": DbNow()},
    ),
    (
        "state",
        "running and given back",
        "returned",
        {"status": "running", "attempts": 1},
    ),
    ("state", "running in no attempt", "running", {"attempts": 0}),
    ("state", "running and never started", "running", {"started_at": None}),
    ("state", "ended at no time", "succeeded", {"processed_at": None}),
    ("state", "failed at no time", "running", {"status": "failed"}),
    ("state", "cancelled at no time", "ready", {"status": "cancelled"}),
    ("state", "ended and ready", "ready", {"processed_at": DbNow()}),
    ("state", "ended and running", "running", {"processed_at": DbNow()}),
    ("counts", "fewer than no attempts", "ready", {"attempts": -1}),
    ("counts", "fewer than no duplicates", "ready", {"duplicates": -1}),
    ("counts", "fewer than no checkpoints", "ready", {"checkpoints": -1}),
    ("attempts", "fewer than no attempts allowed", "ready", {"max_attempts": -1}),
    ("attempts", "more attempts than allowed", "running", {"attempts": 11}),
    ("attempts", "fewer allowed than were made", "failed", {"max_attempts": 0}),
    ("attempts", "ready with no attempt left", "retrying", {"max_attempts": 1}),
    ("key_period", "ended and in the way of others", "succeeded", {"unique_key": "k"}),
    ("key_period", "failed and in the way of others", "failed", {"unique_key": "k"}),
    (
        "key_period",
        "claimed, with the key of one that waits",
        "running",
        {"unique_key": "k", "unique_for": "waiting"},
    ),
    (
        "key_period",
        "claimed once, with the key of one that waits",
        "retrying",
        {"unique_key": "k", "unique_for": "waiting"},
    ),
    (
        "key_period",
        "in its second attempt, with the key of the first",
        "retrying",
        {"unique_key": "k", "unique_for": "running"},
    ),
    (
        "key_period",
        "ended, with the key of one that runs",
        "succeeded",
        {"unique_key": "k", "unique_for": "running"},
    ),
    ("window_end", "a window for ever", "ready", {"unique_for": "window"}),
    (
        "key_period",
        "ended, with the key of a window for ever",
        "succeeded",
        {"unique_key": "k", "unique_for": "window"},
    ),
    ("window_end", "an end of no window", "ready", {"unique_until": LATER}),
    ("slot_state", "waiting and in a slot", "ready", {"slot": "k:0"}),
    ("slot_state", "ended and in a slot", "succeeded", {"slot": "k:0"}),
    ("limit_key", "a limit of nothing", "ready", {"concurrency_limit": 1}),
    ("limit_key", "a key without a limit", "ready", {"concurrency_key": "k"}),
    (
        "limit_key",
        "a limit that lets nothing run",
        "ready",
        {"concurrency_key": "k", "concurrency_limit": 0},
    ),
    (
        "limit_key",
        "a limit of less than nothing",
        "ready",
        {"concurrency_key": "k", "concurrency_limit": -1},
    ),
    (
        "key_period",
        "waiting, with a key of nobody knows what",
        "ready",
        {"unique_key": "k", "unique_for": "always"},
    ),
    ("granted", "held by nobody", "running", {"holder": ""}),
    ("granted", "running without a proof", "running", {"grant_id": None}),
    ("granted", "granted at no time", "running", {"acquired_at": None}),
    ("granted", "a deadline of nobody", "ready", {"expires_at": LATER}),
    ("granted", "a grant that never was", "ready", {"grant_id": uuid.uuid4()}),
    ("renewed", "renewed at no time", "running", {"renewals": 1}),
    ("renewed", "renewed no times", "running", {"renewed_at": DbNow()}),
    ("released", "given back and held", "returned", {"expires_at": LATER}),
    ("released", "given back, never taken", "ready", {"released_at": DbNow()}),
    ("ttl", "held for no time", "running", {"ttl": timedelta(0)}),
]

#: Columns that no two tasks may share, and the state in which they can be set.
ONCE = {"unique_key": "ready", "idempotency_key": "ready", "slot": "running"}
UNIQUE = [each for each in Task._meta.constraints if isinstance(each, UniqueConstraint)]


@pytest.mark.parametrize(
    ("constraint", "state", "update"),
    [pytest.param(name, *rest, id=what) for name, what, *rest in IMPOSSIBLE],
)
def test_an_impossible_state_cannot_be_written(
    constraint: str, state: str, update: dict[str, Any]
) -> None:
    task = make_task(state=state)

    with (
        pytest.raises(IntegrityError, match=rf"leasing_tasks_task_{constraint}\b"),
        transaction.atomic(),
    ):
        Task.objects.filter(pk=task.pk).update(**update)


@pytest.mark.parametrize(
    ("state", "update"),
    [
        ("ready", {"unique_for": "waiting"}),
        ("returned", {"unique_for": "running"}),
        ("running", {"unique_for": "running"}),
        ("retrying", {"unique_for": "finished"}),
        *[
            (state, {"unique_for": "window", "unique_until": LATER})
            for state in ("ready", "running", "retrying", "succeeded", "failed")
        ],
    ],
)
def test_a_key_may_be_kept_in_its_time(state: str, update: dict[str, Any]) -> None:
    task = make_task(state=state)

    assert Task.objects.filter(pk=task.pk).update(unique_key="k", **update) == 1


def test_each_constraint_is_put_to_the_test() -> None:
    tested = {f"leasing_tasks_task_{name}" for name, *_ in IMPOSSIBLE}

    assert tested | {unique.name for unique in UNIQUE} == {
        constraint.name for constraint in Task._meta.constraints
    }


def unique_of(name: str) -> Any:
    """The constraint on that column."""
    return next(each for each in UNIQUE if each.fields == (name,))


@pytest.mark.parametrize(("column", "state"), ONCE.items())
def test_what_one_task_has_no_other_has(column: str, state: str) -> None:
    one, other, *_ = make_tasks(3, state=state)
    Task.objects.filter(pk=one.pk).update(**{column: "a"})

    with pytest.raises(IntegrityError), transaction.atomic():
        Task.objects.filter(pk=other.pk).update(**{column: "a"})
    with pytest.raises(ValidationError, match="already exists"):
        unique_of(column).validate(Task, Task(**{column: "a"}))
    unique_of(column).validate(Task, Task(**{column: "b"}))
    unique_of(column).validate(Task, Task())


@pytest.mark.usefixtures("on_postgresql")
def test_a_row_stands_in_few_indexes() -> None:
    """One that waits in three, one that runs in two: what is not set costs nothing."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(pg_get_expr(indpred, indrelid), 'every row') FROM pg_index"
            " WHERE indrelid = 'leasing_tasks_task'::regclass"
        )
        conditions = [condition for (condition,) in cursor.fetchall()]

    assert conditions.count("every row") == 1
    assert sum("status" in condition for condition in conditions) == 5
    assert sum("NOT NULL" in condition for condition in conditions) == 7
    assert len(conditions) == 12  # one of compensations alone


def test_two_tasks_that_have_not_ended_never_share_a_key() -> None:
    make_task(unique_key="k")
    other = make_task()

    with pytest.raises(IntegrityError), transaction.atomic():
        Task.objects.filter(pk=other.pk).update(unique_key="k")


# Attempts


def test_a_grant_has_one_attempt() -> None:
    record = TaskAttempt.objects.get(task=make_task(state="retrying"))
    record.pk, record._state.adding = None, True

    with pytest.raises(IntegrityError), transaction.atomic():
        record.save(force_insert=True)


@pytest.mark.parametrize(
    "update",
    [
        pytest.param({"refused_at": DbNow()}, id="nothing was refused at that time"),
        pytest.param({"refused_verb": "complete"}, id="refused at no time"),
    ],
)
def test_a_refusal_is_noted_whole_or_not(update: dict[str, Any]) -> None:
    make_task(state="recovered")

    with (
        pytest.raises(IntegrityError, match="leasing_tasks_attempt_refusal"),
        transaction.atomic(),
    ):
        TaskAttempt._base_manager.update(**update)


def test_attempts_go_with_their_task() -> None:
    task = make_task(state="recovered")

    task.delete()

    assert not TaskAttempt.objects.exists()


# The desired state


def test_there_is_one_desired_state() -> None:
    start_generator()

    with (
        pytest.raises(IntegrityError, match="leasing_tasks_generator_single"),
        transaction.atomic(),
    ):
        GeneratorDesiredState.objects.create(id=2)


def test_nothing_is_acknowledged_that_was_not_desired() -> None:
    start_generator()

    with (
        pytest.raises(IntegrityError, match="leasing_tasks_generator_acked"),
        transaction.atomic(),
    ):
        GeneratorDesiredState.objects.update(acknowledged_revision=F("revision") + 1)
