"""Django's tasks on the queue, as their documentation has them: declaring, enqueuing, results."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import django
import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.conf import global_settings
from django.core.checks import run_checks
from django.db import transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from leasing.functions import DbNow, database_now
from tasks import discovery, handler, registry
from tasks.backend import DatabaseBackend
from tasks.django_api import bridge, compat
from tasks.django_api.compat import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
)
from tasks.django_api.results import DatabaseTaskResult
from tasks.exceptions import NotSerializable
from tasks.models import Task, TaskAttempt
from tests.factories import claimed, make_task
from tests.jobs import mails
from tests.jobs import tasks as jobs
from tests.leasing.support import expire
from tests.limits import Limits
from tests.tasks.support import Handlers, make_due, row_of

pytestmark = pytest.mark.django_db

READY = TaskResultStatus.READY
RUNNING = TaskResultStatus.RUNNING
FAILED = TaskResultStatus.FAILED
SUCCESSFUL = TaskResultStatus.SUCCESSFUL


def default() -> DatabaseBackend:
    found = task_backends["default"]
    assert isinstance(found, DatabaseBackend)
    return found


def row(result: Any) -> Task:
    return Task.objects.get(pk=result.id)


def taken(result: Any, holder: str = "ann") -> Task:
    """The row of ``result``, due and claimed by ``holder``."""
    make_due(row(result))
    return claimed(row(result), holder)


def serve(settings: Settings, alias: str, *queues: str) -> None:
    """Have the backend of that alias serve these queues alone."""
    backend = {**settings.TASKS[alias], "QUEUES": list(queues)}
    settings.TASKS = {**settings.TASKS, alias: backend}


@pytest.fixture
def aside(handlers: Handlers) -> None:
    """Remove the declarations of a test after it."""


# What the backend says of itself


# Declaring


def test_a_decorated_function_is_something_that_workers_may_run() -> None:
    known = registry.find("tests.jobs.mails.send")

    assert known.queue == "default"
    assert "tests.jobs.mails.send" in registry.names()


@pytest.mark.parametrize("name", ["for_elsewhere", "once_only"])
def test_so_is_one_that_was_declared_for_another_alias(name: str) -> None:
    assert f"tests.jobs.mails.{name}" in registry.names()


def test_a_copy_for_another_queue_leaves_the_declared_one_as_it_is() -> None:
    before = registry.find("tests.jobs.mails.send")

    mails.send.using(priority=3, run_after=timezone.now())

    assert registry.find("tests.jobs.mails.send") is before
    assert bridge.find("tests.jobs.mails.send") is mails.send


def plain(context: Any = None) -> None: ...


def no_context(first: Any) -> None: ...


def named(name: str) -> Any:
    def fresh() -> None: ...

    fresh.__qualname__ = name
    return fresh


@pytest.mark.usefixtures("aside")
def test_a_function_that_was_defined_anew_takes_the_place_of_the_old() -> None:
    first, second = task(named("plain")), task(named("plain"))

    assert first != second
    assert bridge.find(f"{__name__}.plain") is second


def all_of_it(**keywords: Any) -> Any:
    """A task with the keywords of this backend's own, whatever Django's decorator passes on."""
    return DatabaseBackend.task_class(
        func=plain,
        priority=0,
        backend="default",
        queue_name="default",
        run_after=None,
        **keywords,
    )


def inner() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


def already_a_handlers() -> Any:
    handler(f"{__name__}.plain")(lambda ctx: None)
    return task(plain)


#: What is no task, by what it would be, and what its refusal names.
INVALID: dict[str, tuple[Callable[[], Any], str]] = {
    "a function within another": (lambda: task(inner()), "."),
    "a context by another name": (lambda: task(takes_context=True)(no_context), "."),
    "a name that is a handler's": (already_a_handlers, "is already used by"),
    "a name too long for a row": (lambda: task(named("x" * 200)), "200"),
    "no attempt": (lambda: all_of_it(max_attempts=0), "max_attempts"),
    "attempts without end": (lambda: all_of_it(max_attempts=40_000), "max_attempts"),
    "a priority too low": (lambda: mails.send.using(priority=-101), "."),
    "a priority too high": (lambda: mails.send.using(priority=101), "."),
    "half a priority": (lambda: mails.send.using(priority=1.5), "."),  # type: ignore[arg-type]
    "a queue of another backend": (lambda: mails.send.using(queue_name="nowhere"), "."),
    "a moment without a zone": (lambda: mails.send.using(run_after=datetime(2030, 1, 1)), "."),
}


@pytest.mark.usefixtures("aside")
@pytest.mark.parametrize("what", INVALID)
def test_what_is_no_task_of_this_backend_is_refused(what: str) -> None:
    declare, named = INVALID[what]
    with pytest.raises(InvalidTask, match=named):
        declare()


@pytest.mark.usefixtures("aside")
def test_a_task_has_the_keywords_of_handlers() -> None:
    keywords: dict[str, Any] = {
        "max_attempts": 3,
        "retry": lambda error, attempt: None,
        "timeout": timedelta(seconds=60),
        "progress_timeout": timedelta(seconds=5),
        "concurrency_key": "account:{kwargs[account]}",
        "concurrency_limit": 2,
        "process": True,
    }

    all_of_it(**keywords)

    known = registry.find(f"{__name__}.plain")
    assert {key: getattr(known, key) for key in keywords} == keywords


@pytest.mark.usefixtures("aside")
@pytest.mark.skipif(django.VERSION[:2] == (6, 0), reason="its decorator passes no keywords on")
def test_the_decorator_passes_them_on() -> None:
    decorator: Any = task

    decorator(max_attempts=3)(plain)

    assert registry.find(f"{__name__}.plain").max_attempts == 3


@pytest.mark.usefixtures("aside")
def test_the_options_of_the_backend_are_what_a_task_does_not_say() -> None:
    task(backend="second")(plain)

    known = registry.find(f"{__name__}.plain")
    assert (known.max_attempts, known.timeout) == (1, timedelta(seconds=60))


# Enqueuing


def test_enqueuing_is_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(1):
        mails.send.enqueue("ann@example.org", subject="hello")


def test_what_was_enqueued_is_ready_and_nothing_has_happened_to_it() -> None:
    result = mails.send.enqueue("ann@example.org", subject="hello")

    assert result.task == mails.send
    assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
    assert (result.args, result.kwargs) == (["ann@example.org"], {"subject": "hello"})
    assert (result.errors, result.worker_ids, result.backend) == ([], [], "default")
    assert result.enqueued_at == row(result).created_at
    assert result.started_at is result.finished_at is result.last_attempted_at is None
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_the_row_has_the_dotted_name_and_the_arguments() -> None:
    stored = row(mails.send.enqueue("ann@example.org", subject="hello"))

    assert stored.name == "tests.jobs.mails.send"
    assert stored.queue == "default"
    assert stored.max_attempts == 10
    assert stored.scheduled_at == stored.created_at
    assert stored.task_data == {
        "args": ["ann@example.org"],
        "kwargs": {"subject": "hello"},
        "backend": "default",
    }


def test_the_identifier_is_a_short_string() -> None:
    result = mails.send.enqueue("a")

    assert isinstance(result.id, str)
    assert len(result.id) <= 64


def test_arguments_become_what_json_makes_of_them() -> None:
    result = mails.returning.enqueue({"a": (1, b"two")})

    assert result.args == [{"a": [1, "two"]}]
    assert row(result).task_data["args"] == [{"a": [1, "two"]}]


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), "\0", UUID(int=7), date.min])
def test_arguments_that_are_not_json_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        mails.returning.enqueue(value)

    assert not Task.objects.exists()


def test_the_refusal_of_what_only_a_database_refuses_says_so() -> None:
    with pytest.raises(NotSerializable, match="NUL"):
        mails.returning.enqueue(value="\0")


def test_a_task_is_enqueued_with_the_callers_transaction() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        mails.send.enqueue("a")
        raise ZeroDivisionError

    assert not Task.objects.exists()


def test_a_copy_says_when_where_and_how_urgently() -> None:
    later = database_now("default") + timedelta(hours=1)
    with_all = mails.send.using(
        priority=-100, queue_name="default", run_after=later, backend="second"
    )

    result = with_all.enqueue("a")

    assert result.task == with_all
    assert result.backend == "second"
    assert task_backends["default"].get_result(result.id) == result
    assert (row(result).priority, row(result).scheduled_at) == (-100, later)
    assert list(Task.objects.scheduled()) == [row(result)]


def test_the_option_of_the_alias_limits_attempts() -> None:
    assert row(mails.send.using(backend="second").enqueue("a")).max_attempts == 1


def test_the_task_itself_limits_attempts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(task_backends["default"].options, "max_attempts", 7)
    limited = DatabaseBackend.task_class(
        func=mails.send.func,
        priority=0,
        backend="default",
        queue_name="default",
        run_after=None,
        max_attempts=3,
    )

    assert row(mails.send.enqueue("a")).max_attempts == 7
    assert row(limited.enqueue("a")).max_attempts == 3


def test_a_task_is_validated_again_as_it_is_enqueued(settings: Settings) -> None:
    serve(settings, "default", "other")

    with pytest.raises(InvalidTask):
        mails.send.enqueue("a")


def test_a_task_is_not_validated_twice_under_the_same_queues(
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> None:
    validated: list[Any] = []
    monkeypatch.setattr(default(), "_validated", {})
    monkeypatch.setattr(bridge, "declare", lambda task, defaults: validated.append(task))
    limits(max_validated=1)

    for each in (mails.send, mails.send, mails.bounce, mails.send):
        each.enqueue("a")

    assert validated == [mails.send, mails.bounce, mails.send]


def test_a_backend_for_any_queue_knows_those_that_there_are(settings: Settings) -> None:
    settings.TASK_QUEUE = {"QUEUES": ["default", "mail"]}
    in_mail = mails.once_only.using(queue_name="mail")
    result = in_mail.enqueue()
    assert row(result).queue == "mail"
    assert default().get_result(result.id).task == in_mail

    with pytest.raises(InvalidTask, match="nowhere"):
        mails.once_only.using(queue_name="nowhere").enqueue()


def test_the_signal_of_an_enqueue_names_the_backends_class() -> None:
    heard: list[tuple[Any, str, Any]] = []

    def receiver(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append((sender, task_result.id, task_result.status))

    task_enqueued.connect(receiver)
    try:
        result = mails.send.enqueue("a")
    finally:
        task_enqueued.disconnect(receiver)

    assert heard == [(DatabaseBackend, result.id, READY)]


@pytest.mark.django_db(transaction=True)
def test_everything_has_an_asynchronous_form() -> None:
    async def story() -> Any:
        result = await mails.send.aenqueue("a", subject="b")
        same = await mails.send.aget_result(result.id)
        assert same == result
        assert await task_backends["default"].aget_result(result.id) == result
        with pytest.raises(TaskResultDoesNotExist):
            await task_backends["default"].aget_result("0")
        await same.arefresh()
        return same

    result = async_to_sync(story)()

    assert (result.status, result.args, result.kwargs) == (READY, ["a"], {"subject": "b"})


# Results


def test_a_result_is_read_by_one_query_however_many_attempts_there_were(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    result = mails.send.enqueue("a")
    for n in range(3):
        Task.objects.fail(taken(result, f"worker-{n}"), ValueError(f"no luck {n}"))

    with django_assert_num_queries(1):
        found = default().get_result(result.id)
    with django_assert_num_queries(1):
        result.refresh()

    assert result == found
    assert found.worker_ids == ["worker-0", "worker-1", "worker-2"]
    assert [error.traceback for error in found.errors] == [
        f"ValueError: no luck {n}\n" for n in range(3)
    ]


@pytest.mark.parametrize(
    "result_id",
    [
        "",
        "0",
        "1",
        "01",
        "-1",
        "1.0",
        " 1",
        "one",
        str(2**63 - 1),
        str(2**63),
        "9" * 5_000,
        "²",
        "1\0",
        "3f2b8c1e-7d54-4a06-9e1b-5c80d2a6f917",
    ],
)
def test_a_result_that_is_not_there_does_not_exist(result_id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default().get_result(result_id)


def test_only_the_identifier_itself_finds_a_result() -> None:
    result = mails.send.enqueue("a")

    with pytest.raises(TaskResultDoesNotExist):
        default().get_result(f"0{result.id}")


@pytest.mark.parametrize("name", ["jobs.echo", "gone.for_good"])
def test_a_row_that_is_no_task_of_djangos_here_is_no_result(handlers: Handlers, name: str) -> None:
    handlers[name] = plain
    other = make_task(name=name, data={})
    del handlers[name]

    with pytest.raises(TaskResultDoesNotExist, match=name):
        default().get_result(str(other.pk))


def test_a_result_of_another_task_is_a_mismatch() -> None:
    result = mails.send.enqueue("a")

    with pytest.raises(Exception, match=r"does not match.*mails\.send"):
        mails.bounce.get_result(result.id)


def test_what_yesterdays_settings_let_in_can_be_read_under_todays(settings: Settings) -> None:
    result = mails.send.using(priority=7).enqueue("a")
    serve(settings, "default", "other")
    row_pk = Task.objects.filter(pk=result.id)
    row_pk.update(task_data={**row(result).task_data, "backend": "gone"})

    found = default().get_result(result.id)

    assert (found.backend, found.task.priority) == ("gone", 7)


def test_results_are_equal_and_hashed_as_those_of_any_backend() -> None:
    assert DatabaseTaskResult.__eq__ is TaskResult.__eq__
    assert DatabaseTaskResult.__hash__ is TaskResult.__hash__
    result = mails.send.enqueue("a")
    assert result == default().get_result(result.id)
    assert result != mails.send.enqueue("a")


def test_a_result_leads_to_its_row() -> None:
    result: Any = mails.send.enqueue("a")

    found: Any = default().get_result(result.id)

    assert result.db_result == found.db_result == row(result)
    assert row_of(found.db_result) == row_of(result.db_result)


def test_a_task_may_be_enqueued_by_its_name_as_any_other() -> None:
    stored = Task.objects.enqueue("tests.jobs.mails.once_only", {"kwargs": {}}, unique_key="k")

    found = default().get_result(str(stored.pk))

    assert (found.task, found.args, found.kwargs) == (mails.once_only, [], {})
    assert found.backend == "second"
    assert stored.max_attempts == 1


# The life of a result


def test_a_claimed_task_runs_under_its_worker() -> None:
    result = mails.send.enqueue("a")
    mine = taken(result)

    result.refresh()

    assert (result.status, result.attempts, result.worker_ids) == (RUNNING, 1, ["ann"])
    assert result.started_at == result.last_attempted_at == mine.acquired_at
    assert result.finished_at is None


def test_a_completed_task_has_its_value() -> None:
    result: Any = mails.send.enqueue("a")
    Task.objects.complete(taken(result), [1, None])

    result.refresh()

    assert (result.status, result.is_finished) == (SUCCESSFUL, True)
    assert result.return_value == [1, None]
    assert result.finished_at == row(result).processed_at
    assert (result.attempts, result.worker_ids, result.errors) == (1, ["ann"], [])


def test_a_failed_attempt_is_an_error_and_the_task_is_ready_again() -> None:
    result = mails.send.enqueue("a")
    Task.objects.fail(taken(result), ValueError("no luck"))

    result.refresh()

    assert (result.status, result.is_finished) == (READY, False)
    assert (result.attempts, result.worker_ids) == (1, ["ann"])
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert error.traceback == "ValueError: no luck\n"
    assert result.finished_at is None


def test_attempts_before_and_after_are_all_told() -> None:
    result: Any = mails.send.enqueue("a")
    Task.objects.fail(taken(result, "ann"), mails.BouncedError("full"))
    Task.objects.give_back(taken(result, "bob"), "its worker was stopped")
    expire(taken(result, "cy"))
    Task.objects.recover()
    first = row(result).started_at
    last = taken(result, "dee")

    result.refresh()
    assert (result.attempts, result.worker_ids) == (3, ["ann", "cy", "dee"])
    Task.objects.complete(last, "at last")
    result.refresh()

    assert (result.status, result.return_value) == (SUCCESSFUL, "at last")
    assert (result.attempts, result.worker_ids) == (3, ["ann", "cy", "dee"])
    assert [error.exception_class_path for error in result.errors] == [
        "tests.jobs.mails.BouncedError",
        "leasing.exceptions.LeaseLost",
    ]
    assert "cy did not renew" in result.errors[1].traceback
    assert (result.started_at, result.last_attempted_at) == (first, last.acquired_at)


def test_the_last_failure_is_for_good() -> None:
    result = mails.once_only.enqueue()
    Task.objects.fail(taken(result), "the machine says no")

    result.refresh()

    assert (result.status, result.is_finished) == (FAILED, True)
    assert result.finished_at == row(result).processed_at
    assert [error.exception_class_path for error in result.errors] == ["tasks.exceptions.TaskError"]
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_task_has_failed(running: bool) -> None:
    result = mails.send.enqueue("a")
    if running:
        TaskAttempt.of(taken(result), "cancelled", "alice changed her mind").save()
    ended = {"status": "cancelled", "processed_at": DbNow()}
    Task.objects.filter(pk=result.id).update(last_error="alice changed her mind", **ended)

    result.refresh()

    assert (result.status, result.is_finished) == (FAILED, True)
    (error,) = result.errors
    assert error.exception_class.__name__ == "TaskCancelled"
    assert error.traceback == "alice changed her mind"
    assert result.worker_ids == (["ann"] if running else [])


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (mails.BouncedError.InnerError("x"), "tests.jobs.mails.BouncedError.InnerError"),
        (SystemExit(1), "builtins.SystemExit"),
    ],
)
def test_an_error_says_where_its_class_is_found(error: BaseException, path: str) -> None:
    result = mails.send.enqueue("a")
    Task.objects.fail(taken(result), error)

    result.refresh()

    assert result.errors[0].exception_class_path == path


# System checks


def complaints(**params: Any) -> list[str | None]:
    return [message.id for message in DatabaseBackend("odd", params).check()]


def test_the_settings_of_this_suite_are_in_order(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    assert complaints() == []
    with django_assert_num_queries(0):
        assert task_backends["second"].check() == []


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"OPTIONS": {"max_atempts": 3}}, "leasing_tasks.E021"),
        ({"OPTIONS": {"max_attempts": 0}}, "leasing_tasks.E022"),
        ({"OPTIONS": {"max_attempts": True}}, "leasing_tasks.E022"),
        ({"OPTIONS": {"max_attempts": "3"}}, "leasing_tasks.E022"),
        ({"OPTIONS": {"timeout": 0}}, "leasing_tasks.E024"),
        ({"OPTIONS": {"timeout": "a minute"}}, "leasing_tasks.E024"),
        ({"OPTIONS": {"timeout": float("inf")}}, "leasing_tasks.E024"),
        ({"OPTIONS": {"modules": "shop.mails"}}, "leasing_tasks.E025"),
        ({"QUEUES": ["default", "mail"]}, "leasing_tasks.E023"),
    ],
)
def test_options_of_the_backend_that_are_out_of_bounds_are_found(
    params: dict[str, Any], code: str
) -> None:
    assert complaints(**params) == [code]


def test_a_misspelt_option_is_told_what_was_probably_meant() -> None:
    (message,) = DatabaseBackend("odd", {"OPTIONS": {"max_atempts": 3}}).check()
    assert message.hint == "Did you mean 'max_attempts'?"

    (message,) = DatabaseBackend("odd", {"OPTIONS": {"id_function": "uuid.uuid7"}}).check()
    assert message.hint == "Known: max_attempts, modules, timeout."


@pytest.mark.parametrize("app", ["leasing", "tasks"])
def test_an_app_that_is_not_installed_is_missed(monkeypatch: pytest.MonkeyPatch, app: str) -> None:
    is_installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != app and is_installed(name))

    assert complaints() == ["leasing_tasks.E020"]


def test_django_runs_these_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(task_backends["default"].options, "max_attempts", -1)

    assert "leasing_tasks.E022" in {message.id for message in run_checks()}


# Nothing is loaded that nobody asked for


@pytest.mark.slow
def test_importing_the_queue_does_not_import_djangos_tasks() -> None:
    code = (
        "import sys, tasks.registry\n"
        "sys.exit(any(name in sys.modules for name in ('django.tasks', 'django_tasks')))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("ending", ["Error", ""])
def test_the_exceptions_of_the_backport_may_have_their_old_or_new_names(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    backport: Any = pytest.importorskip("django_tasks.exceptions")
    renamed: dict[str, type] = {f"InvalidTask{ending}": InvalidTask}
    renamed[f"InvalidTaskBackend{ending}"] = InvalidTaskBackend
    kept = {name: each for name, each in vars(backport).items() if "InvalidTask" not in name}
    monkeypatch.setitem(sys.modules, backport.__name__, SimpleNamespace(**kept, **renamed))

    found = runpy.run_path(str(compat.__file__))

    assert found["InvalidTask"] is InvalidTask
    assert found["InvalidTaskBackend"] is InvalidTaskBackend


def test_without_settings_for_django_tasks_nothing_is_looked_for(settings: Settings) -> None:
    del settings.TASKS

    assert discovery.backends() == []


def test_nor_is_it_where_they_are_what_django_has_by_itself(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_settings, "TASKS", settings.TASKS, raising=False)

    assert discovery.backends() == []


@pytest.mark.usefixtures("aside")
def test_a_task_for_another_alias_is_found_in_the_tasks_module_of_an_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "plain", task(backend="elsewhere")(plain), raising=False)
    assert f"{__name__}.plain" not in registry.names()

    discovery.discover()

    assert f"{__name__}.plain" in registry.names()


@pytest.mark.usefixtures("aside")
def test_a_task_for_another_alias_may_have_a_queue_of_its_own(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(settings, "elsewhere", "mail")
    theirs = task(backend="elsewhere", queue_name="mail")(plain)
    monkeypatch.setattr(jobs, "plain", theirs, raising=False)

    discovery.discover()

    assert "leasing_tasks.E008" not in {message.id for message in run_checks()}
    assert Task.objects.enqueue(f"{__name__}.plain").queue == "default"
    moved = theirs.using(backend="default", queue_name="default").enqueue()
    assert (row(moved).name, row(moved).queue) == (f"{__name__}.plain", "default")


def test_settings_for_django_tasks_harm_nobody_who_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "find_spec", lambda name: None)

    assert discovery.backends() == []


def test_backends_of_others_are_left_alone(settings: Settings) -> None:
    settings.TASKS = {
        "default": {"BACKEND": "tests.jobs.backends.ForgetfulBackend"},
        "broken": {"BACKEND": "nowhere.Backend"},
        "ours": {"BACKEND": "tasks.backend.DatabaseBackend"},
    }

    assert [each.alias for each in discovery.backends()] == ["ours"]


@pytest.mark.slow
def test_a_backend_can_be_built_and_tasks_declared_before_there_are_models() -> None:
    code = (
        "from django.conf import settings\n"
        "settings.configure(TASKS={'default': {'BACKEND': 'tasks.backend.DatabaseBackend'}})\n"
        "from tasks.django_api.compat import task\n"
        "def early(): ...\n"
        "assert task(early).name == 'early'\n"
    )

    done = subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=60)
    assert done.returncode == 0


def test_a_moment_keeps_its_offset() -> None:
    moment = datetime(2030, 1, 1, 12, tzinfo=UTC)
    result = mails.send.using(run_after=moment).enqueue("a")
    Task.objects.fail(taken(result), "no luck")

    assert default().get_result(result.id).task.run_after == moment
