"""Django's tasks as workers run them: what they are given, what becomes of it, who is told."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils.log import RequireDebugTrue
from pytest_django import DjangoAssertNumQueries, Settings

from leasing.exceptions import LeaseLost
from leasing.functions import database_now
from leasing.holding.keeper import Keeper
from tasks import registry
from tasks.backend import DatabaseBackend
from tasks.django_api import bridge, compat, results
from tasks.django_api.bridge import DatabaseTaskContext
from tasks.django_api.compat import (
    TaskContext,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from tasks.execution import runner
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask
from tasks.worker.process import WorkerProcess
from tests.factories import claimed, make_task
from tests.jobs import mails
from tests.leasing.support import expire
from tests.processes import wait_for
from tests.tasks.support import kept, make_due, row_of

pytestmark = pytest.mark.django_db

READY = TaskResultStatus.READY
RUNNING = TaskResultStatus.RUNNING
FAILED = TaskResultStatus.FAILED
SUCCESSFUL = TaskResultStatus.SUCCESSFUL

Work = Callable[..., Any]

#: What receivers heard: the signal, its sender, the result, the exception being handled.
Heard = list[tuple[str, Any, Any, BaseException | None]]


@pytest.fixture
def work(manual_keeper: Keeper, connection_stays: list[str]) -> Work:
    """Run the task of a result once, on this thread, and refresh the result."""

    def work(result: Any, holder: str = "ann") -> Any:
        waiting = Task.objects.get(pk=result.id)
        make_due(waiting)
        mine = claimed(waiting, holder)
        mine.sent_at = manual_keeper.clock()
        runner.run(kept(mine, manual_keeper))
        result.refresh()
        return result

    return work


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Every signal of Django's about a task that began or ended."""
    reported: Heard = []

    def started(sender: Any, task_result: Any, **kwargs: Any) -> None:
        reported.append(("started", sender, task_result, sys.exception()))

    def finished(sender: Any, task_result: Any, **kwargs: Any) -> None:
        reported.append(("finished", sender, task_result, sys.exception()))

    task_started.connect(started)
    task_finished.connect(finished)
    yield reported
    task_started.disconnect(started)
    task_finished.disconnect(finished)


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    """The contexts that tasks were given."""
    yield mails.seen
    mails.seen.clear()


# What a task is given, and returns


#: How a task is enqueued, by what it is; its status after one attempt, and its value.
RUNS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "a function": (
        lambda: mails.send.enqueue("ann@example.org", subject="hello"),
        SUCCESSFUL,
        {"address": "ann@example.org", "subject": "hello"},
    ),
    "a coroutine": (lambda: mails.send_async.enqueue("ann"), SUCCESSFUL, "ann"),
    "a value that becomes JSON": (lambda: mails.returning.enqueue([1]), SUCCESSFUL, [[1]]),
    "a task of another alias that was sent here": (
        lambda: mails.for_elsewhere.using(backend="default").enqueue(),
        SUCCESSFUL,
        "done",
    ),
    "a last attempt that fails": (lambda: mails.once_only.enqueue(), FAILED, None),
    "a task that gives up": (lambda: mails.give_up.enqueue(), FAILED, None),
}


@pytest.mark.parametrize("what", RUNS)
def test_an_attempt_ends_as_its_function_did(work: Work, what: str) -> None:
    enqueue, status, value = RUNS[what]

    result = work(enqueue())

    assert (result.status, result.is_finished, result.attempts) == (status, True, 1)
    assert (result.worker_ids, len(result.errors)) == (["ann"], int(status == FAILED))
    if status == SUCCESSFUL:
        assert result.return_value == value


def test_a_value_that_is_not_json_fails_the_attempt(work: Work) -> None:
    result = work(mails.returning_object.enqueue())

    assert result.status == READY
    assert [error.exception_class for error in result.errors] == [TypeError]


def test_an_exception_fails_the_attempt_with_its_class_and_traceback(work: Work) -> None:
    result = work(mails.bounce.enqueue("bob@example.org"))

    assert (result.status, result.attempts) == (READY, 1)
    (error,) = result.errors
    assert error.exception_class is mails.BouncedError
    assert "in bounce" in error.traceback
    assert error.traceback.endswith("BouncedError: bob@example.org bounced\n")


@pytest.mark.parametrize("name", ["looking", "looking_async"])
def test_a_task_that_takes_the_context_has_all_that_handlers_have(
    work: Work, seen: list[Any], name: str
) -> None:
    result = work(getattr(mails, name).enqueue("a note"))

    (context,) = seen
    row = Task.objects.get(pk=result.id)
    assert isinstance(context, TaskContext) and isinstance(context, DatabaseTaskContext)
    assert result.return_value == "a note"
    assert (context.attempt, context.fencing_token) == (1, row.fencing_token)
    assert context.task == row
    assert context.stopping is False
    assert context.task_result.id == result.id
    assert (context.task_result.status, context.task_result.worker_ids) == (RUNNING, ["ann"])
    with pytest.raises(LeaseLost):
        context.ensure()
    with pytest.raises(AttributeError):
        context.no_such_thing()


@pytest.mark.parametrize("name", ["looking", "looking_async"])
def test_the_context_of_a_later_attempt_tells_of_those_before(
    work: Work, seen: list[Any], name: str
) -> None:
    result = getattr(mails, name).enqueue("a note")
    make_due(Task.objects.get(pk=result.id))
    expire(claimed(Task.objects.get(pk=result.id), "bob"))
    Task.objects.recover()

    work(result)

    (context,) = seen
    assert context.attempt == context.task_result.attempts == 2
    assert context.task_result.worker_ids == ["bob", "ann"]
    assert len(context.task_result.errors) == 1


# Signals


def test_a_task_that_ends_well_is_told_of_twice(work: Work, heard: Heard) -> None:
    result = work(mails.send.enqueue("a"))

    (started, finished) = heard
    assert started[:2] == ("started", DatabaseBackend)
    assert (started[2].id, started[2].status) == (result.id, RUNNING)
    assert started[2].worker_ids == ["ann"]
    assert finished[:2] == ("finished", DatabaseBackend)
    assert finished[2] == result
    assert finished[2].return_value == {"address": "a", "subject": ""}
    assert finished[3] is None


def test_its_failure_is_told_in_the_except_block_of_its_exception(work: Work, heard: Heard) -> None:
    result = work(mails.once_only.enqueue())

    name, sender, reported, error = heard[-1]
    assert (name, sender) == ("finished", DatabaseBackend)
    assert reported == result
    assert reported.status == FAILED
    assert isinstance(error, mails.BouncedError)
    assert reported.errors[0].exception_class is mails.BouncedError


@pytest.mark.parametrize("level", [logging.DEBUG, logging.CRITICAL])
@pytest.mark.parametrize("heard_of", [True, False])
@pytest.mark.parametrize("gone", ["alias", "backend"])
def test_a_task_under_an_alias_that_is_gone_runs_as_one_of_ours(
    work: Work,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    level: int,
    heard_of: bool,
    gone: str,
) -> None:
    heard: Heard = request.getfixturevalue("heard") if heard_of else []
    caplog.set_level(level, compat.logger.name)
    if gone == "backend":
        monkeypatch.setitem(task_backends.settings, "gone", {"BACKEND": "nowhere.Backend"})
    result = mails.send.enqueue("a")
    waiting = Task.objects.filter(pk=result.id)
    waiting.update(task_data={**waiting.get().task_data, "backend": "gone"})

    assert work(result).status == SUCCESSFUL

    expected = [("started", DatabaseBackend), ("finished", DatabaseBackend)] if heard_of else []
    assert [(name, sender) for name, sender, *_ in heard] == expected


def test_an_attempt_that_is_followed_by_another_finishes_nothing(work: Work, heard: Heard) -> None:
    work(mails.bounce.enqueue("a"))

    assert [name for name, *_ in heard] == ["started"]


def test_a_task_whose_last_worker_died_ends_where_it_is_recovered(heard: Heard) -> None:
    result = mails.once_only.enqueue()
    expire(claimed(Task.objects.get(pk=result.id), "ann"))

    Task.objects.recover()

    ((name, sender, reported, error),) = heard
    assert (name, sender, reported.status, error) == ("finished", DatabaseBackend, FAILED, None)
    assert reported.worker_ids == ["ann"]
    assert reported.errors[0].exception_class is LeaseLost


def test_a_cancelled_task_is_told_to_have_finished(heard: Heard) -> None:
    result = mails.send.enqueue("a")

    Task.objects.filter(pk=result.id).cancel()

    assert [(name, reported.status) for name, _, reported, _ in heard] == [("finished", FAILED)]


def take(*results: Any) -> list[ClaimedTask]:
    for result in results:
        make_due(Task.objects.get(pk=result.id))
    return Task.objects.take("ann", limit=9)


@pytest.mark.usefixtures("unheard")
def test_ends_that_are_stored_together_are_told_as_the_database_has_them(heard: Heard) -> None:
    later = database_now("default")
    results: list[Any] = [mails.send.using(priority=7, run_after=later).enqueue("a")]
    results.append(mails.returning.enqueue([1.5, None]))
    outputs = [{"address": "a"}, ["é"]]

    claimed = take(*results)
    Task.objects.complete_claimed(list(zip(claimed, outputs, strict=True)))

    stored: list[Any] = [task_backends["default"].get_result(each.id) for each in results]
    assert [reported for _, _, reported, _ in heard] == stored
    assert [reported.return_value for _, _, reported, _ in heard] == outputs
    assert [row_of(reported.db_result) for _, _, reported, _ in heard] == [
        row_of(each.db_result) for each in stored
    ]
    assert [reported.db_result.status for _, _, reported, _ in heard] == ["succeeded"] * 2


@pytest.mark.usefixtures("unheard", "on_postgresql")  # the portable form reads them
def test_telling_of_first_attempts_reads_nothing_back(
    heard: Heard, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    claimed = take(mails.send.enqueue("a"), mails.send.enqueue("b"))

    with django_assert_num_queries(1):
        Task.objects.complete_claimed([(each, None) for each in claimed])

    assert [reported.args for _, _, reported, _ in heard] == [["a"], ["b"]]


@pytest.mark.usefixtures("unheard")
def test_the_end_of_a_later_attempt_tells_of_those_before(heard: Heard) -> None:
    result = mails.send.enqueue("a")
    (first,) = take(result)
    Task.objects.fail(first.task, "no luck")
    (second,) = take(result)

    Task.objects.complete_claimed([(second, None)])

    ((_, _, reported, _),) = heard
    assert (reported.attempts, len(reported.errors)) == (2, 1)
    assert reported == task_backends["default"].get_result(result.id)


@pytest.mark.usefixtures("unheard")
def test_an_end_that_is_rolled_back_is_not_told(heard: Heard) -> None:
    claimed = take(mails.send.enqueue("a"))

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Task.objects.complete_claimed([(each, None) for each in claimed])
        raise ZeroDivisionError

    assert heard == []


@pytest.mark.usefixtures("unheard")
def test_what_was_claimed_before_its_task_was_declared_is_told_all_the_same(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = mails.send.enqueue("a")
    with monkeypatch.context() as before:
        before.setattr(registry, "observed", lambda: [])
        claimed = take(result)

    Task.objects.complete_claimed([(each, {}) for each in claimed])

    assert [reported for _, _, reported, _ in heard] == [
        task_backends["default"].get_result(result.id)
    ]


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_no_result_is_made_for_djangos_log_alone(
    work: Work, level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = mails.send.enqueue("a")
    caplog.set_level(level, compat.logger.name)
    made: list[Any] = []
    result_of = results.result_of

    def counted(*args: Any) -> Any:
        made.append(result_of(*args))
        return made[-1]

    monkeypatch.setattr(results, "result_of", counted)
    monkeypatch.setattr(type(task_backends["default"]), "get_result", lambda self, pk: result)

    work(result)

    said = [record for record in caplog.records if record.name == compat.logger.name]
    assert (len(made), len(said)) == (0, 2 if level == logging.INFO else 0)


def test_djangos_log_is_given_no_line_that_no_handler_would_write(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Django's default logging where DEBUG is off."""

    def give(to: Any, **attributes: Any) -> None:
        for name, value in attributes.items():
            monkeypatch.setattr(to, name, value)

    above: Any = compat.logger.parent
    console, mail = logging.NullHandler(logging.INFO), logging.NullHandler(logging.ERROR)
    console.addFilter(RequireDebugTrue())
    give(compat.logger, handlers=[], level=logging.INFO)
    give(above, handlers=[console, mail], level=logging.INFO, propagate=False)
    compat.logger.manager._clear_cache()  # type: ignore[attr-defined]
    heard = compat.is_logged

    assert not heard(task_started)
    assert heard(task_started, logging.ERROR)

    settings.DEBUG = True
    assert heard(task_started)
    settings.DEBUG = False
    with monkeypatch.context() as patch:
        patch.setattr(logging.Logger, "callHandlers", lambda *args: None)
        assert heard(task_started)  # by a tool that follows the program
    give(compat.logger, handlers=[logging.NullHandler()])
    assert heard(task_started)
    give(compat.logger, handlers=[])
    give(above, handlers=[])
    assert heard(task_started)  # as the last resort says
    give(above, handlers=[console])
    give(console, filters=[])
    assert heard(task_started)


def lines_of(result: Any, caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """Return what Django has logged of a task that began and ended, with "its key" for that."""
    said = [record for record in caplog.records if record.name == compat.logger.name]
    kept = ("name", "levelno", "msg", "funcName", "lineno", "exc_info")
    caplog.clear()
    return [
        (
            *(getattr(record, name) for name in kept),
            *("its key" if arg == result.id else arg for arg in record.args or ()),
        )
        for record in said
    ]


@pytest.mark.parametrize("name", ["send", "send_async"])
def test_djangos_log_alone_has_the_lines_that_its_signals_would_have_written(
    work: Work, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.INFO, compat.logger.name)
    alone = lines_of(work(getattr(mails, name).enqueue("a")), caplog)

    heard: Heard = request.getfixturevalue("heard")
    result = work(getattr(mails, name).enqueue("a"))

    assert (len(heard), len(alone)) == (2, 2)
    assert lines_of(result, caplog) == alone


def test_a_log_that_was_disconnected_writes_nothing(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, compat.logger.name)
    task_started.disconnect(compat.log_task_started)
    task_finished.disconnect(compat.log_task_finished)
    try:
        result = work(mails.send.enqueue("a"))
    finally:
        task_started.connect(compat.log_task_started)
        task_finished.connect(compat.log_task_finished)

    assert lines_of(result, caplog) == []


def test_a_log_that_reads_more_of_a_result_is_given_it(work: Work) -> None:
    result = work(mails.send.enqueue("a"))
    task: Any = mails.send

    line: Any = bridge._Line(task, Task.objects.get(pk=result.id), SUCCESSFUL)

    assert line.return_value == {"address": "a", "subject": ""}


def test_what_a_task_does_to_its_arguments_is_not_what_it_was_given(
    work: Work, heard: Heard
) -> None:
    result = work(mails.stamp.enqueue(["a"]))

    assert result.return_value == ["a", "seen"]
    assert [reported.args for _, _, reported, _ in heard] == [[["a"]], [["a"]]]


def test_other_handlers_are_none_of_djangos_business(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    Task.objects.complete(make_task(state="running"))

    assert heard == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_receiver_that_raises_harms_nobody(work: Work) -> None:
    def receiver(**kwargs: Any) -> None:
        raise RuntimeError("a receiver of somebody's")

    task_started.connect(receiver)
    task_finished.connect(receiver)
    try:
        result = work(mails.send.enqueue("a"))
    finally:
        task_started.disconnect(receiver)
        task_finished.disconnect(receiver)

    assert (result.status, result.errors) == (SUCCESSFUL, [])


def test_django_logs_the_end_with_the_traceback(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    result = work(mails.once_only.enqueue())

    (record,) = [
        record
        for record in caplog.records
        if record.levelno == logging.ERROR and "mails.once_only" in record.getMessage()
        if record.name in ("django.tasks", "django_tasks")
    ]
    assert f"id={result.id}" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is mails.BouncedError


# Beside other handlers


@pytest.mark.django_db(transaction=True)
def test_one_worker_runs_named_handlers_and_djangos_tasks() -> None:
    named = Task.objects.enqueue("jobs.echo", {"a": 1})
    results: list[Any] = [mails.send.enqueue("a"), mails.send_async.enqueue("b")]
    worker = WorkerProcess(threads=2, stop_timeout=20)

    def run() -> None:
        worker.run()
        connections.close_all()

    thread = threading.Thread(target=run, name="main thread of a worker")
    thread.start()
    try:
        wait_for(lambda: Task.objects.succeeded().count() == 3, message="all have succeeded")
    finally:
        worker.stop()
        worker.stop()
        thread.join(20)

    named.refresh_from_db()
    assert named.task_output == {"a": 1}
    values = [task_backends["default"].get_result(each.id).return_value for each in results]
    assert values == [{"address": "a", "subject": ""}, "b"]


def test_a_task_can_still_be_called_as_the_function_it_is() -> None:
    assert mails.send.call("a") == {"address": "a", "subject": ""}
    assert mails.returning.call("a") == ("a",)
