"""Compensation: a task that fails for good is undone by another, once, whatever dies."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from tasks import handler, registry
from tasks.dashboard.operator_actions import ACTIONS
from tasks.diagnosis import diagnose
from tasks.exceptions import GiveUp, UnknownTask
from tasks.models import Task, TaskStatus, TaskStep
from tasks.testing import FakeContext, drain, run, run_handler
from tests.factories import claimed, make_task
from tests.leasing.support import OtherSession, expire, just_before_the_update
from tests.pages import Page, get, signed_in
from tests.tasks.support import row_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_handlers")]

OPERATES = tuple(f"leasing_tasks.{verb}_task" for verb in ("view", "retry", "discard"))
STEPS = ("flight", "hotel", "car", "tickets", "mail")
NOW = timedelta(0)


class Shop:
    """Two handlers: ``shop.book`` fails for good after some of STEPS, ``shop.unbook`` undoes it."""

    def __init__(self) -> None:
        #: The steps after which ``shop.book`` fails.
        self.fails_after = 3
        #: The number of the next attempts of ``shop.unbook`` that fail.
        self.failures = 0
        self.calls: list[str] = []

        @handler("shop.book", compensate="shop.unbook")
        def book(ctx: Any, trip: int, seats: int = 1) -> None:
            for step in STEPS[: self.fails_after]:
                ctx.step(step, self.call, f"{step} {trip}")
            ctx.checkpoint({"seen": self.fails_after})
            raise GiveUp("sold out")

        @handler("shop.unbook", max_attempts=2)
        def unbook(ctx: Any, trip: int, seats: int = 1) -> list[Any]:
            failed = ctx.compensated()
            for step in failed.steps:
                self.call(f"no {step.output}")
            if self.failures:
                self.failures -= 1
                raise OSError("unreachable")
            return [failed.task.pk, *(step.name for step in failed.steps)]

        self.book, self.unbook = book, unbook

    def call(self, what: str) -> str:
        self.calls.append(what)
        return what


@pytest.fixture
def shop() -> Shop:
    return Shop()


def rows(*tasks: Task) -> Any:
    return Task.objects.filter(pk__in=[task.pk for task in tasks])


def undo_of(task: Task) -> Task:
    return Task.objects.get(parent=task.pk)


def failed(shop: Shop) -> Task:
    return run(shop.book.enqueue(trip=7))


def settle(undo: Task, how: str) -> None:
    """Bring the compensation into a state."""
    match how:
        case "running":
            claimed(undo, "ann")
        case "failed":
            Task.objects.fail(claimed(undo, "ann"), GiveUp("no way"))
        case "cancelled":
            rows(undo).cancel("ann")
        case "succeeded":
            run(undo)


def skipped(action: str, task: Task) -> str:
    """Why the action leaves the task alone."""
    found = ACTIONS[action]
    (row,) = found.annotated(rows(task))
    return found.skip_reason(row, {})


# The four deaths


def test_a_task_that_gave_up_after_three_of_five_steps_is_undone_once_the_last_step_first(
    shop: Shop,
) -> None:
    task = shop.book.using(priority=5).enqueue(trip=7)

    drain()
    Task.objects.recover()

    undo = undo_of(task)
    assert (undo.name, undo.status, undo.priority) == ("shop.unbook", "succeeded", 5)
    assert (undo.idempotency_key, undo.task_data) == (f"undo:{task.pk}:1", {"trip": 7})
    assert undo.task_output == [task.pk, "car", "hotel", "flight"]
    assert shop.calls[3:] == ["no car 7", "no hotel 7", "no flight 7"]


def test_a_compensation_whose_worker_is_killed_goes_on_in_another_and_is_no_second_one(
    shop: Shop,
) -> None:
    task = failed(shop)
    expire(claimed(undo_of(task), "killed"))

    assert Task.objects.recover() == 1
    run(undo_of(task))

    undo = undo_of(task)
    assert (undo.status, undo.attempts) == ("succeeded", 2)
    assert shop.calls[3:] == ["no car 7", "no hotel 7", "no flight 7"]


@pytest.mark.parametrize("knows", [True, False])
def test_a_task_lost_at_its_last_attempt_is_undone_whichever_process_recovers_it(
    shop: Shop, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = shop.book.using(max_attempts=1).enqueue(trip=7)
    mine = claimed(task, "killed")
    Task.objects.finish_step(mine, "flight", "flight 7")
    expire(mine)

    with monkeypatch.context() as patch:
        if not knows:  # another project's recovery, or an older release's
            patch.setattr(registry, "_handlers", {})
        assert Task.objects.recover() == 1
        assert Task.objects.recover() == 0

    run(undo_of(task))
    assert shop.calls == ["no flight 7"]


@pytest.mark.parametrize("delete", ["prune", "discard"])
def test_a_failed_task_is_not_deleted_before_it_is_undone_nor_the_compensation_before_it(
    shop: Shop, delete: str
) -> None:
    def deleted(task: Task) -> int:
        found = rows(task)
        count: int = found.prune(NOW) if delete == "prune" else found.discard("ann")
        return count

    task = failed(shop)
    undo = undo_of(task)
    assert deleted(task) == 0
    settle(undo, "failed")
    assert deleted(task) == 0
    rows(undo).retry("ann")
    run(undo)
    assert shop.calls[3:] == ["no car 7", "no hotel 7", "no flight 7"]

    assert deleted(undo) == 0
    assert deleted(task) == 1
    assert deleted(undo) == 1


@pytest.mark.parametrize("delete", ["prune", "discard"])
def test_a_child_that_compensates_nothing_is_deleted_before_its_parent(delete: str) -> None:
    child = rows(make_task(parent=make_task(), state="succeeded"))

    assert (child.prune(NOW) if delete == "prune" else child.discard("ann")) == 1


# Enqueued with the failure


def test_failure_and_compensation_are_one_commit(shop: Shop) -> None:
    mine = claimed(shop.book.enqueue(trip=7), "ann")

    class Killed(BaseException): ...

    with pytest.raises(Killed), transaction.atomic():
        Task.objects.fail(mine, GiveUp("sold out"))
        raise Killed
    assert (Task.objects.count(), row_of(mine)["status"]) == (1, "running")

    Task.objects.fail(mine, GiveUp("sold out"))
    assert Task.objects.filter(compensation="").count() == 1


def test_many_failures_have_a_compensation_each(shop: Shop) -> None:
    tasks = [claimed(shop.book.enqueue(trip=number), "ann") for number in range(3)]
    plain = claimed(Task.objects.enqueue("jobs.echo"), "ann")

    Task.objects.fail_many([(task, GiveUp("sold out")) for task in [*tasks, plain]])

    undone = Task.objects.filter(compensation="").order_by("parent")
    assert [each.parent_id for each in undone] == [task.pk for task in tasks]


@pytest.mark.parametrize("how", ["retried", "cancelled", "succeeded"])
def test_what_did_not_fail_for_good_has_no_compensation(shop: Shop, how: str) -> None:
    mine = claimed(shop.book.enqueue(trip=7), "ann")
    match how:
        case "retried":
            Task.objects.fail(mine, ValueError("again"))
        case "cancelled":
            rows(mine).cancel("bob")
            Task.objects.accept_cancel(mine, "bob")
        case "succeeded":
            Task.objects.complete(mine)

    assert Task.objects.count() == 1


def test_a_compensation_that_its_process_cannot_enqueue_waits_in_the_queue_of_the_task() -> None:
    @handler("shop.book", compensate="shop.unbook")
    def book(ctx: Any, trip: int) -> None: ...

    task = claimed(Task.objects.enqueue("shop.book", {"trip": 7}, priority=3), "ann")
    Task.objects.fail(task, GiveUp("sold out"))

    undo = undo_of(task)
    assert (undo.name, undo.queue, undo.priority, undo.status) == (
        *("shop.unbook", "default", 3),
        "ready",
    )
    assert undo.task_data == {"trip": 7}
    with pytest.raises(UnknownTask):
        run(undo)


def test_nothing_undoes_a_compensation(shop: Shop) -> None:
    handler("shop.unbook", compensate="shop.book")(registry.find("shop.unbook").function)
    task = failed(shop)

    settle(undo_of(task), "failed")

    assert Task.objects.count() == 2


def test_a_replacement_has_the_compensation_of_its_own_handler(shop: Shop) -> None:
    Task.objects.enqueue("shop.book", {"trip": 7}, unique_key="k")

    task = Task.objects.enqueue("jobs.echo", unique_key="k", on_duplicate="replace")

    assert (task.is_duplicate, row_of(task)["compensation"]) == (True, None)


@pytest.mark.parametrize("key", ["undo:", "undo:7:1"])
def test_the_keys_of_compensations_are_refused_to_others(key: str) -> None:
    with pytest.raises(ValueError, match=f"reserved for compensations: '{key}'"):
        Task.objects.enqueue("jobs.echo", idempotency_key=key)

    assert not Task.objects.exists()


def test_a_name_that_is_none_is_refused_as_a_compensation() -> None:
    with pytest.raises(ValueError, match="name of the compensation"):
        handler("shop.book", compensate="")


# What the handler of a compensation reads


def test_a_task_that_compensates_none_gives_up(shop: Shop) -> None:
    task = run(shop.unbook.enqueue(trip=7))

    assert task.status == "failed"
    assert f"task:{task.pk} is the compensation of no task" in task.last_error


def test_a_compensation_whose_task_was_deleted_gives_up(shop: Shop) -> None:
    task = failed(shop)
    Task.objects.filter(pk=task.pk).delete()

    undo = run(Task.objects.get(compensation=""))

    assert (undo.status, shop.calls[3:]) == ("failed", [])


def test_a_coroutine_reads_the_steps_too(shop: Shop) -> None:
    async def unbook(ctx: Any, trip: int) -> list[str]:
        return [step.name for step in (await ctx.acompensated()).steps]

    registry._handlers["shop.unbook"] = registry.Handler("shop.unbook", unbook)

    assert run(undo_of(failed(shop))).task_output == ["car", "hotel", "flight"]


def test_a_context_in_memory_has_the_steps_that_a_test_gives_it(shop: Shop) -> None:
    ctx = FakeContext(compensates={"flight": "f", "hotel": "h"})

    run_handler("shop.unbook", {"trip": 7}, ctx=ctx)

    assert shop.calls == ["no h", "no f"]
    assert [step.name for step in asyncio.run(ctx.acompensated()).steps] == ["hotel", "flight"]


# Retried by an operator


@pytest.mark.parametrize("state", ["ready", "running", "failed"])
def test_a_task_is_not_retried_while_its_compensation_is_open(shop: Shop, state: str) -> None:
    task = failed(shop)
    settle(undo_of(task), state)

    assert rows(task).retry("ann") == 0

    assert (row_of(task)["status"], task.step_set.count()) == ("failed", 3)


def test_a_retry_after_the_compensation_does_all_steps_again_and_can_be_undone_again(
    shop: Shop,
) -> None:
    task = failed(shop)
    settle(undo_of(task), "succeeded")
    shop.calls.clear()

    assert rows(task).retry("ann") == 1
    assert (task.step_set.count(), row_of(task)["checkpoint"]) == (0, None)
    shop.fails_after = 2
    drain()

    assert shop.calls == ["flight 7", "hotel 7", "no hotel 7", "no flight 7"]
    keys = Task.objects.filter(compensation="").order_by("pk").values_list("idempotency_key")
    assert list(keys) == [(f"undo:{task.pk}:1",), (f"undo:{task.pk}:2",)]


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("whose", ["another child of the task", "the compensation of another"])
def test_a_retry_waits_for_nobody_who_has_locked(
    whose: str, shop: Shop, other_session: OtherSession
) -> None:
    task = failed(shop)
    settle(undo_of(task), "succeeded")
    is_child = whose == "another child of the task"
    other_session.lock(make_task(parent=task) if is_child else undo_of(failed(shop)))

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '5s'")
        assert rows(task).retry("ann") == 1


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_retry_waits_for_whoever_has_locked_the_compensation_of_the_task(
    shop: Shop, other_session: OtherSession
) -> None:
    """Or that one could retry it at the same time."""
    task = failed(shop)
    settle(undo_of(task), "cancelled")
    other_session.lock(undo_of(task))

    with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '50ms'")
        rows(task).retry("ann")


def test_a_retry_forgets_the_steps_of_no_other_task_that_was_undone(shop: Shop) -> None:
    task, other = failed(shop), failed(shop)
    for each in (task, other):
        settle(undo_of(each), "succeeded")

    rows(task).retry("ann")

    assert [each.step_set.count() for each in (task, other)] == [0, 3]


def test_a_retry_after_a_cancelled_compensation_keeps_the_steps(shop: Shop) -> None:
    task = failed(shop)
    settle(undo_of(task), "cancelled")

    assert rows(task).retry("ann") == 1

    assert (task.step_set.count(), row_of(task)["checkpoint"]) == (3, {"seen": 3})


def test_a_retry_of_a_later_life_that_was_cancelled_keeps_its_steps(shop: Shop) -> None:
    """The compensation of the life before has the number of attempts that the row has."""
    task = failed(shop)
    settle(undo_of(task), "succeeded")
    rows(task).retry("ann")
    mine = claimed(task, "ann")
    Task.objects.finish_step(mine, "flight", "flight 8")
    Task.objects.snooze(mine, 60)
    rows(task).cancel("bob")

    assert rows(task).retry("ann") == 1

    assert list(TaskStep.objects.values_list("output", flat=True)) == ["flight 8"]


@pytest.mark.parametrize("after", ["nothing", "a retry", "a retry that failed too"])
def test_a_compensation_is_retried_unless_its_task_was(shop: Shop, after: str) -> None:
    task = failed(shop)
    undo = undo_of(task)
    settle(undo, "cancelled")
    if after != "nothing":
        rows(task).retry("ann")
    if after == "a retry that failed too":
        run(task)

    assert rows(undo).retry("ann") == (after == "nothing")


def test_a_compensation_that_opens_just_before_the_retry_of_its_task_stops_it(shop: Shop) -> None:
    task = failed(shop)
    undo = undo_of(task)
    settle(undo, "cancelled")

    def reopen() -> None:
        rows(undo).update(status=TaskStatus.READY, processed_at=None)

    with just_before_the_update(reopen):
        assert rows(task).retry("ann") == 0

    assert row_of(task)["status"] == "failed"


# What operators read


@pytest.mark.parametrize(
    ("state", "what", "is_open"),
    [
        ("ready", "will undo what it did", True),
        ("running", "undoes what it did", True),
        ("failed", "was to undo what it did, and failed. Until someone retries", True),
        ("succeeded", "has undone what it did", False),
        ("cancelled", "was to undo what it did, and was cancelled", False),
    ],
)
def test_operators_read_how_far_the_compensation_is(
    shop: Shop, state: str, what: str, is_open: bool
) -> None:
    task = failed(shop)
    undo = undo_of(task)
    settle(undo, state)

    assert diagnose(task).next.startswith(f"task:{undo.pk} {what}")
    assert skipped("retry", task) == is_open * "its compensation has not succeeded"
    assert skipped("discard", task) == is_open * "it is undone by another task"
    assert bool(diagnose(task).actions) != is_open


def offered(page: Page, panel: str) -> set[str]:
    """The actions with a button."""
    named = {f"/{name}/": name for name in ACTIONS}
    forms = [each["action"] for each in page.all(f"{panel} form") if each["action"]]
    inside = {name for end, name in named.items() for each in forms if each.endswith(end)}
    return inside | {each["value"] for each in page.all(f"{panel} button[name=action]")}


@pytest.mark.parametrize(
    ("panel", "address"),
    [
        ("[data-answer=do]", "/ops/tasks/{}/"),
        (".leasing-panel", "/admin/leasing_tasks/task/{}/change/"),
    ],
)
def test_no_action_is_offered_that_a_compensation_keeps_from_being_done(
    shop: Shop, panel: str, address: str
) -> None:
    operator = signed_in(*OPERATES, is_staff=True)
    task = failed(shop)
    undo = undo_of(task)

    def buttons(of: Task) -> set[str]:
        return offered(get(operator, address.format(of.pk)), panel)

    settle(undo, "failed")
    assert buttons(task) == set()
    assert buttons(undo) == {"retry", "discard"}
    rows(undo).retry("ann")
    run(undo)
    assert buttons(task) == {"retry", "discard"}
    assert buttons(undo) == set()
    rows(task).retry("ann")
    rows(undo).update(status=TaskStatus.CANCELLED)
    assert buttons(undo) == {"discard"}


def test_the_page_says_why_a_compensation_keeps_an_action_from_being_done(shop: Shop) -> None:
    viewer = signed_in("leasing_tasks.view_task")
    task = failed(shop)
    said = [each.text for each in get(viewer, f"/ops/tasks/{task.pk}/").all("[data-refused]")]
    assert said == [
        "Retry: not now, its compensation has not succeeded.",
        "Discard: not now, it is undone by another task.",
    ]
    undo = run(undo_of(task))
    (only,) = get(viewer, f"/ops/tasks/{undo.pk}/").all("[data-refused]")
    assert only.text == "Discard: not now, it is the undoing of another task."
    assert get(viewer, f"/ops/tasks/{task.pk}/").all("[data-refused]") == []


def test_operators_read_what_a_compensation_is(shop: Shop) -> None:
    task = failed(shop)
    undo = undo_of(task)
    settle(undo, "failed")
    undo.refresh_from_db()
    said = f"What task:{task.pk} did is undone in part, until someone retries this task."
    assert diagnose(undo).next == said
    assert (skipped("retry", undo), skipped("discard", undo)) == ("", "")

    rows(undo).retry("ann")
    run(undo)
    assert skipped("discard", undo) == "it is the undoing of another task"
    rows(task).retry("ann")
    rows(undo).update(status=TaskStatus.CANCELLED)
    assert skipped("retry", undo) == "the task that it undoes was retried or deleted"


def test_a_failed_task_whose_compensation_was_discarded_says_so(shop: Shop) -> None:
    task = failed(shop)
    settle(undo_of(task), "failed")
    rows(undo_of(task)).discard("ann")

    assert diagnose(task).next.endswith("Its compensation shop.unbook is gone.")
    assert rows(task).retry("ann") == 1
    assert task.step_set.count() == 3
