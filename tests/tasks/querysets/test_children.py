"""Children: tasks that are cancelled with the task that they name as their parent."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from leasing.db.row_reader import instance_of
from tasks import handler
from tasks.maintenance import recovery
from tasks.models import Task, TaskStatus
from tasks.querysets import operator
from tasks.testing import run, run_handler
from tests.factories import make_task
from tests.leasing.support import OtherSession, just_before_the_update
from tests.limits import Limits
from tests.tasks.support import Reported, end_well, row_of

pytestmark = pytest.mark.django_db

ECHO = "jobs.echo"
DAY = timedelta(days=1)


def rows(*tasks: Task) -> Any:
    return Task.objects.filter(pk__in=[task.pk for task in tasks])


def states(*tasks: Task) -> list[str]:
    return [row_of(task)["status"] for task in tasks]


# Enqueued


@pytest.mark.parametrize("keys", [{}, {"unique_key": "k"}, {"idempotency_key": "i"}])
def test_a_child_names_its_parent_which_is_given_as_a_task_or_by_its_key(
    keys: Any,
) -> None:
    parent = make_task()

    child = Task.objects.enqueue(ECHO, parent=parent, **keys)
    grandchild = Task.objects.enqueue(ECHO, parent=child.pk)
    (one, two) = Task.objects.enqueue_many(ECHO, [{}, {}], parent=child)

    assert (child.parent_id, grandchild.parent_id) == (parent.pk, child.pk)
    assert [row_of(each)["parent_id"] for each in (child, grandchild, one, two)] == [
        parent.pk,
        *[child.pk] * 3,
    ]
    assert list(child.children.order_by("pk")) == [grandchild, one, two]
    assert row_of(parent)["parent_id"] is None


@pytest.mark.usefixtures("own_handlers")
def test_a_handler_names_its_task_by_its_context(django_capture_on_commit_callbacks: Any) -> None:
    @handler("part")
    def part(ctx: Any) -> None: ...

    @handler("whole")
    def whole(ctx: Any) -> None:
        part.using(parent=ctx).enqueue()
        part.using(parent=ctx).enqueue_on_commit()
        part.using(parent=ctx).enqueue_many([part.data()])

    task = whole.enqueue()
    with django_capture_on_commit_callbacks(execute=True):
        run(task)

    assert [child.parent_id for child in Task.objects.filter(name="part")] == [task.pk] * 3


@pytest.mark.usefixtures("own_handlers")
def test_a_handler_that_enqueues_children_runs_with_a_context_in_memory() -> None:
    @handler("part")
    def part(ctx: Any) -> None: ...

    @handler("whole")
    def whole(ctx: Any) -> None:
        part.using(parent=ctx).enqueue()

    run_handler("whole")

    assert Task.objects.filter(name="part").count() == 1


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        (Task(name=ECHO), "enqueue it before its children"),
        (0, "parent's key must be a whole number from 1"),
        (2**63, "parent's key must be a whole number from 1"),
        (True, "parent's key must be a whole number from 1"),
    ],
)
def test_a_parent_that_is_not_stored_is_refused(parent: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Task.objects.enqueue(ECHO, parent=parent)

    assert not Task.objects.exists()


@pytest.mark.django_db(databases=["default", "shard"])
@pytest.mark.usefixtures("shard")
def test_a_parent_in_another_database_is_refused() -> None:
    parent = Task.objects.using("shard").enqueue(ECHO)

    with pytest.raises(ValueError, match="shard"):
        Task.objects.enqueue(ECHO, parent=parent)

    assert not Task.objects.exists()


def test_a_task_that_replaces_another_has_its_own_parent() -> None:
    one, two = make_task(), make_task()
    Task.objects.enqueue(ECHO, unique_key="k", parent=one)

    task = Task.objects.enqueue(ECHO, unique_key="k", on_duplicate="replace", parent=two)

    assert (task.is_duplicate, task.parent_id, row_of(task)["parent_id"]) == (True, two.pk, two.pk)


def test_saving_a_stale_instance_does_not_change_the_parent() -> None:
    task = make_task(parent=make_task())
    before = row_of(task)["parent_id"]
    task.parent = None

    task.save()

    assert row_of(task)["parent_id"] == before


# Cancelled


def test_a_cancellation_goes_down_level_by_level(reported: Reported) -> None:
    parent = make_task(state="running")
    child = make_task(parent=parent)
    running = make_task(state="running", parent=parent)
    grandchild, other = make_task(parent=running), make_task()
    reported.clear()

    assert rows(parent).cancel(by="ann", reason="wrong month") == 4

    assert states(parent, child, running, grandchild, other) == [
        "running",
        "cancelled",
        "running",
        "cancelled",
        "ready",
    ]
    for task, text in (
        (parent, "cancelled by ann: wrong month"),
        (child, "cancelled by ann: with its parent: wrong month"),
        (running, "cancelled by ann: with its parent: wrong month"),
        (grandchild, "cancelled by ann: with its parent: wrong month"),
    ):
        row = row_of(task)
        assert (row["cancel_requested_by"], row["last_error"]) == ("ann", text)
        assert row["cancel_requested_at"] is not None
    told = {"by": "ann", "reason": "with its parent: wrong month"}
    assert reported == [("cancelled", child.pk, told), ("cancelled", grandchild.pk, told)]
    Task.objects.accept_cancel(running, "ann")
    assert states(running) == ["cancelled"]


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_what_has_ended_stops_the_way_down(state: str) -> None:
    parent = make_task()
    ended = make_task(state=state, parent=parent)
    grandchild = make_task(parent=ended)

    assert rows(parent).cancel() == 1
    assert rows(ended).cancel() == 0

    assert states(parent, ended, grandchild) == ["cancelled", state, "ready"]


def children_of(parent: Task, count: int) -> None:
    made = Task.objects.enqueue_many(parent.name, [parent.task_data] * count)
    Task.objects.filter(pk__in=[each.pk for each in made]).update(parent=parent)


def test_more_children_than_a_batch_holds_are_all_cancelled() -> None:
    parent = make_task()
    children_of(parent, operator.BULK_BATCH + 1)

    assert rows(parent).cancel() == operator.BULK_BATCH + 2

    assert not Task.objects.exclude(status="cancelled").exists()


def test_a_child_that_ends_between_the_lock_and_the_update_is_left_alone() -> None:
    """As could happen on a database without row locks."""
    parent = make_task(state="succeeded")
    child = make_task(state="running", parent=parent)
    rows(parent).update(status=TaskStatus.CANCELLED)

    with just_before_the_update(lambda: end_well(child)):
        recovery.examine()

    assert states(child) == ["succeeded"]
    assert row_of(child)["cancel_requested_at"] is None


# Left behind


def test_what_the_death_of_a_canceller_leaves_behind_is_cancelled_by_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = make_task()
    child = make_task(parent=parent)
    grandchildren = [make_task(parent=child), make_task(state="running", parent=child)]

    class Killed(BaseException): ...

    def die(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        # Between the first level, whose transaction has committed, and the next.
        patch.setattr(operator, "notify_holders", die)
        rows(parent).cancel("ann")
    assert states(parent, child) == ["cancelled", "ready"]

    (finding,) = recovery.examine().findings

    assert (finding.kind, finding.count, finding.repaired) == ("left_behind", 3, 3)
    assert states(child, *grandchildren) == ["cancelled", "cancelled", "running"]
    assert row_of(grandchildren[1])["cancel_requested_by"] == "recovery"
    assert recovery.examine().findings == []


def test_children_of_more_parents_than_are_looked_up_at_a_time_are_all_cancelled(
    limits: Limits,
) -> None:
    limits(max_counted=2)
    children = [make_task(parent=make_task(state="cancelled")) for _ in range(5)]

    assert recovery.cancel_left_behind() == 5

    assert states(*children) == ["cancelled"] * 5


def test_a_child_that_its_parent_enqueues_after_it_was_asked_to_stop_is_left_behind_no_more() -> (
    None
):
    parent = make_task(state="running")
    rows(parent).cancel("ann")
    late = Task.objects.enqueue(ECHO, parent=parent)
    Task.objects.accept_cancel(parent, "ann")

    recovery.examine()

    assert states(parent, late) == ["cancelled", "cancelled"]


def test_a_parent_that_completes_all_the_same_takes_no_later_child_with_it() -> None:
    parent = make_task(state="running")
    rows(parent).cancel("ann")
    Task.objects.complete(parent)
    late = Task.objects.enqueue(ECHO, parent=parent)

    recovery.examine()

    assert states(parent, late) == ["succeeded", "ready"]


# Retried and deleted


def test_a_child_that_is_retried_outlives_its_cancelled_parent() -> None:
    parent = make_task()
    child = make_task(parent=parent)
    rows(parent).cancel()

    assert rows(child).retry(by="ann") == 1
    recovery.examine()

    assert (states(child), row_of(child)["parent_id"]) == (["ready"], None)


def test_a_child_that_is_retried_while_its_parent_is_open_stays_a_child() -> None:
    parent = make_task()
    child = make_task(parent=parent)
    rows(child).cancel()
    failed = make_task(state="failed", parent=parent)

    assert rows(child, failed).retry() == 2

    assert [row_of(each)["parent_id"] for each in (child, failed)] == [parent.pk] * 2


@pytest.mark.parametrize("others", [0, operator.BULK_BATCH - 2, operator.BULK_BATCH - 1])
def test_a_tree_that_is_retried_as_a_whole_stays_a_tree(others: int) -> None:
    """Also if its members are in two batches."""
    parent = make_task()
    children_of(parent, others)
    child = make_task(parent=parent)
    grandchild = make_task(parent=child)
    rows(parent).cancel()

    assert Task.objects.all().retry() == 3 + others
    recovery.examine()

    assert states(parent, child, grandchild) == ["ready"] * 3
    assert [row_of(each)["parent_id"] for each in (child, grandchild)] == [parent.pk, child.pk]


@pytest.mark.parametrize("verb", ["prune", "discard"])
def test_the_deletion_of_a_parent_leaves_its_children_without_one(verb: str) -> None:
    parent = make_task(state="succeeded")
    running = make_task(state="running", parent=parent)
    child, other = make_task(parent=parent), make_task(parent=running)
    before = row_of(running)

    deleted = rows(parent).discard() if verb == "discard" else rows(parent).prune(-before["ttl"])

    assert deleted == 1
    assert not rows(parent).exists()
    assert [row_of(each)["parent_id"] for each in (child, other)] == [None, running.pk]
    assert row_of(running) == before | {"parent_id": None}
    Task.objects.complete(running)


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["prune", "discard"])
def test_a_parent_whose_child_somebody_has_locked_is_passed_over_not_waited_for(
    verb: str, other_session: OtherSession
) -> None:
    """Two that deleted parents of each other's rows waited for each other: a deadlock."""
    parent, free = make_task(state="succeeded"), make_task(state="succeeded")
    child, own = make_task(parent=parent), make_task(parent=free)
    other_session.lock(child)

    def delete() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        mine: Any = rows(parent, free)
        count: int = mine.discard() if verb == "discard" else mine.prune(-DAY)
        return count

    assert delete() == 1
    assert [row_of(each)["parent_id"] for each in (child, own)] == [parent.pk, None]

    other_session.commit()
    assert delete() == 1
    assert row_of(child)["parent_id"] is None


def test_the_parent_makes_no_instance_dearer() -> None:
    """As with a foreign key an instance was made by ``from_db``, which takes ten times as long."""
    columns = {field.attname: None for field in Task._meta.concrete_fields} | {"parent_id": 7}
    entered = set()

    def note(frame: Any, event: str, arg: object) -> None:
        entered.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        task = instance_of(Task, "default", columns)
    finally:
        sys.setprofile(None)

    assert task.parent_id == 7
    assert "instance_of" in entered and "from_db" not in entered
