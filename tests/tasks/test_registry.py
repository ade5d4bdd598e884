"""Names and the code they stand for."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from leasing import leased
from leasing.exceptions import InvalidResource
from leasing.holding.term import Term
from tasks import handler, registry, sample
from tasks.exceptions import TaskError, UnknownTask
from tasks.execution.context import Context
from tasks.models import Task
from tests.factories import claimed, make_task
from tests.jobs import tasks as jobs
from tests.logs import logged
from tests.plugin import ROOT
from tests.tasks.support import Handlers

pytestmark = pytest.mark.usefixtures("handlers")


def build(ctx: Any, report_id: int) -> None: ...


def test_what_was_registered_is_found_by_name_and_by_function() -> None:
    assert handler("reports.build", queue="reports", max_attempts=3)(build) is build

    found = registry.find("reports.build")
    assert found is registry.find(build)
    assert (found.name, found.function) == ("reports.build", build)
    assert (found.queue, found.max_attempts) == ("reports", 3)


def test_a_handler_says_nothing_of_queue_and_attempts_by_default() -> None:
    handler("reports.build")(build)

    assert registry.find(build) == registry.Handler("reports.build", build, "default", None)


@pytest.mark.parametrize("name", ["nobody", "os.system", "tasks.sample.sleep", ""])
def test_a_name_that_was_not_registered_is_not_found_whatever_it_could_import(name: str) -> None:
    with pytest.raises(UnknownTask, match="No handler is registered") as refusal:
        registry.find(name)

    assert isinstance(refusal.value, TaskError)
    assert isinstance(refusal.value, LookupError)


def test_an_unknown_name_is_told_with_the_one_that_was_meant_and_where_names_come_from() -> None:
    where = "Handlers are looked for in the module tasks.py of each app in INSTALLED_APPS."
    with pytest.raises(UnknownTask) as refusal:
        registry.find("jobs.ecko")
    assert str(refusal.value) == (
        f"No handler is registered for 'jobs.ecko'. Did you mean 'jobs.echo'? {where}"
    )

    with pytest.raises(UnknownTask, match=r"Known: .*jobs\.\w+.* Handlers are looked for"):
        registry.find("xyzzy")
    with pytest.raises(UnknownTask, match=r"build at .*: decorate it with @handler\.$"):
        registry.find(build)


def test_looking_a_name_up_imports_nothing() -> None:
    before = set(sys.modules)

    with pytest.raises(UnknownTask):
        registry.find("antigravity.fly")

    assert set(sys.modules) == before


def test_a_name_stands_for_one_piece_of_code() -> None:
    handler("reports.build")(build)

    with pytest.raises(ValueError, match=r"'reports.build' is already used by .*\.build"):

        @handler("reports.build")
        def other(ctx: Any) -> None: ...

    assert registry.find("reports.build").function is build


def send(ctx: Any) -> None: ...


def test_a_handler_runs_tasks_of_its_former_names() -> None:
    handler("reports.make", aliases=["reports.build", "build"])(build)

    found = registry.find("reports.make")
    assert registry.get("reports.build") is registry.get("build") is registry.find(build) is found
    assert (found.name, found.aliases) == ("reports.make", ("reports.build", "build"))
    assert {"reports.build", "build", "reports.make"} <= set(registry.names())
    assert registry.kinds()["build"] == "thread"
    assert registry.Kind.THREAD in registry.kinds_in_use()


@pytest.mark.django_db
def test_what_is_enqueued_by_a_former_name_gets_the_new_one() -> None:
    handler("reports.make", aliases=["reports.build"])(build)

    assert Task.objects.enqueue("reports.build", {"report_id": 1}).name == "reports.make"


@pytest.mark.django_db
def test_an_enqueue_that_is_repeated_after_a_rename_is_the_same(handlers: Handlers) -> None:
    handler("reports.build")(build)
    first = Task.objects.enqueue("reports.build", {"report_id": 1}, idempotency_key="k")
    del handlers["reports.build"]
    handler("reports.make", aliases=["reports.build"])(build)

    again = Task.objects.enqueue("reports.make", {"report_id": 1}, idempotency_key="k")

    assert (again.pk, again.name) == (first.pk, "reports.build")


@pytest.mark.django_db
def test_the_end_of_a_task_of_a_former_name_is_reported() -> None:
    reported: list[str] = []
    handler("make", aliases=["old"], on_end=lambda task: reported.append(task.name))(build)
    task = make_task(name="make", data={"report_id": 1}, state="running")
    Task.objects.filter(pk=task.pk).update(name="old")
    task.refresh_from_db()

    Task.objects.complete(task)

    assert reported == ["old"] and "old" in registry.observed()


@pytest.mark.parametrize(
    ("name", "aliases"), [("mine", ["theirs"]), ("mine", ["old"]), ("old", []), ("mine", ["make"])]
)
def test_a_name_or_alias_of_other_code_is_refused(name: str, aliases: list[str]) -> None:
    handler("theirs")(build)
    handler("make", aliases=["old"])(build)
    before = [registry.find(each) for each in sorted(registry.names())]

    with pytest.raises(ValueError, match=r"already used by .*\.build") as refusal:
        handler(name, aliases=aliases)(send)

    assert ("as an alias of 'make'" in str(refusal.value)) == ("old" in (name, *aliases))
    assert [registry.find(each) for each in sorted(registry.names())] == before


@pytest.mark.parametrize("aliases", [["mine"], ["old", "old"]])
def test_aliases_differ_from_the_name_and_from_each_other(aliases: list[str]) -> None:
    with pytest.raises(ValueError, match="must differ"):
        handler("mine", aliases=aliases)(build)


def test_aliases_are_a_list_of_names() -> None:
    with pytest.raises(TypeError, match=r"aliases=\['old'\]"):
        handler("mine", aliases="old")(build)
    with pytest.raises(InvalidResource, match="alias of the task"):
        handler("mine", aliases=[" old"])(build)


def test_an_alias_that_was_dropped_is_known_no_more() -> None:
    handler("make", aliases=["old"])(build)
    handler("make")(build)

    assert registry.get("old") is None and registry.get("make") is not None


def test_the_same_code_may_be_registered_again() -> None:
    """A module that is imported twice, or reloaded, registers its functions twice."""

    def again() -> Any:
        def build(ctx: Any) -> None: ...

        return build

    handler("reports.build")(again())
    second = again()
    handler("reports.build", max_attempts=2)(second)

    assert registry.find("reports.build").function is second
    assert registry.find("reports.build").max_attempts == 2


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", " a", "a ", None, 7])
def test_a_name_must_be_a_name(name: Any) -> None:
    with pytest.raises(InvalidResource, match="name of the task"):
        handler(name)


@pytest.mark.parametrize("limit", [0, -1, timedelta(0), timedelta(days=3651), float("nan")])
@pytest.mark.parametrize("name", ["timeout", "progress_timeout"])
def test_a_handler_has_limits_that_its_tasks_may_have(name: str, limit: Any) -> None:
    with pytest.raises(ValueError, match=f"^The {name} must be "):
        handler("reports.build", **{name: limit})(build)


@pytest.mark.parametrize("attempts", [0, -1, 32_768])
def test_a_handler_is_allowed_as_many_attempts_as_a_task(attempts: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 32767"):
        handler("reports.build", max_attempts=attempts)


# Functions that can be no handler


def without_parameters() -> None: ...
def with_data_first(report_id: int, day: str = "mon") -> None: ...
def with_self(self: Any, report_id: int) -> None: ...
def with_named_data_only(*, ctx: Any) -> None: ...
def with_data_only(**data: Any) -> None: ...
def with_data_by_position(ctx: Any, report_id: int, /) -> None: ...


FIRST = "cannot be a handler: its first parameter must be the context"
UNFIT: list[tuple[Callable[..., Any], str]] = [
    (without_parameters, f"without_parameters() {FIRST}: without_parameters(ctx)."),
    (
        with_data_first,
        f"with_data_first(report_id, day=...) {FIRST}: with_data_first(ctx, report_id, day=...).",
    ),
    (with_self, f"with_self(self, report_id) {FIRST}: with_self(ctx, report_id)."),
    (with_named_data_only, f"with_named_data_only(*, ctx) {FIRST}."),
    (with_data_only, f"with_data_only(**data) {FIRST}: with_data_only(ctx, **data)."),
    (
        with_data_by_position,
        "with_data_by_position(ctx, report_id, /) cannot be a handler: data is passed by name, and "
        "'report_id' is positional only.",
    ),
]


@pytest.mark.parametrize(
    ("function", "said"), UNFIT, ids=lambda each: getattr(each, "__name__", "")
)
@pytest.mark.parametrize("wrapper", [lambda function: function, transaction.atomic])
def test_a_function_that_cannot_be_called_with_context_and_data_is_no_handler(
    function: Callable[..., Any], said: str, wrapper: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError) as error:
        handler("reports.build")(wrapper(function))

    assert str(error.value) == said
    assert "reports.build" not in registry.names()


def test_a_generator_is_no_handler() -> None:
    def pages(ctx: Any) -> Iterator[int]:
        yield 1

    async def apages(ctx: Any) -> AsyncIterator[int]:
        yield 1

    for function in (pages, apages, transaction.atomic(pages)):
        with pytest.raises(TypeError, match="pages cannot be a handler: it is a generator"):
            handler("reports.build")(function)


def by_another_name(job: Context) -> None: ...
def unused(_: Any, report_id: int) -> None: ...
def by_position(context: Any, /, **data: Any) -> None: ...


class Building:
    def build(self, ctx: Any, report_id: int) -> None: ...


@pytest.mark.parametrize(
    "function", [by_another_name, unused, by_position, Building().build, lambda ctx, **data: data]
)
def test_the_context_may_have_another_name(function: Callable[..., Any]) -> None:
    assert handler("reports.build")(function) is function


def test_a_decorator_may_add_and_take_arguments() -> None:
    """Its wrapper hides the parameters."""

    def connected(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **data: Any) -> Any:
            return function("a connection", *args, **data)

        return call

    @handler("reports.build")
    @connected
    def build(connection: str, ctx: Any, report_id: int) -> None: ...

    assert registry.find("reports.build").parameters.mismatch({"report": 1}) == ""


def test_a_transaction_around_a_handler_hides_nothing_of_it() -> None:
    handler("reports.build")(transaction.atomic(build))

    found = registry.find("reports.build").parameters
    assert found.mismatch({"report_id": 1}) == ""
    assert (
        found.mismatch({})
        == "build(ctx, report_id) does not take this data: 'report_id' is missing."
    )


def test_a_lease_around_a_handler_hides_nothing_of_it() -> None:
    @handler("reports.build")
    @leased("report:{report_id}")
    def build(ctx: Any, report_id: int, hold: Term) -> None: ...

    found = registry.find("reports.build").parameters
    assert found.mismatch({"report_id": 1}) == ""
    assert "'hold' is unknown" in found.mismatch({"report_id": 1, "hold": 1})


@pytest.mark.parametrize("key", ["report:{id}", "report:{}", "{ctx}"])
def test_a_concurrency_key_is_made_of_data(key: str) -> None:
    with pytest.raises(TypeError, match=r"but build\(ctx, report_id\) takes no such data"):
        handler("reports.build", concurrency_key=key)(build)

    handler("reports.build", concurrency_key="report:{report_id}")(build)


def test_a_default_that_no_data_could_have_makes_no_key() -> None:
    def sort(ctx: Any, by: object = sorted) -> None: ...

    with pytest.raises(TypeError, match=r"uses \{by\}: The default of 'by' is not JSON"):
        handler("reports.sort", concurrency_key="by:{by}")(sort)

    handler("reports.sort", concurrency_key="by")(sort)


def test_names_are_listed_in_order() -> None:
    handler("b")(build)
    handler("a")(build)

    names = registry.names()
    assert names == sorted(names)
    assert {"a", "b", sample.SLEEP} <= set(names)


def test_the_tasks_modules_of_installed_apps_are_found_at_start() -> None:
    assert registry.find("jobs.echo").function is jobs.echo


@pytest.mark.slow
def test_any_installed_apps_tasks_module_is_found(tmp_path: Path) -> None:
    app = tmp_path / "bakery"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "tasks.py").write_text(
        "from tasks import handler\n@handler('bakery.sell')\ndef sell(ctx): ...\n"
    )
    (tmp_path / "bakery_settings.py").write_text(
        "from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'bakery']\n"
    )
    code = (
        "import django; django.setup()\n"
        "from tasks import registry\nprint(registry.find('bakery.sell').function.__module__)"
    )

    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
        "DJANGO_SETTINGS_MODULE": "bakery_settings",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True
    )

    assert (done.stdout, done.stderr) == ("bakery.tasks\n", "")


@override_settings(TASK_QUEUE={"QUEUES": ("mail",)})
def test_a_handler_may_name_a_queue_that_a_check_finds_missing() -> None:
    """It is registered while settings load; the check says so when all is there."""
    handler("reports.build", queue="nowhere")(build)

    assert registry.find(build).queue == "nowhere"


@pytest.mark.django_db
def test_an_end_is_told_to_the_handler_it_is_of() -> None:
    reported: list[tuple[int, str]] = []
    registry.handler("jobs.observed", on_end=lambda task: reported.append((task.pk, task.status)))(
        build
    )
    well, badly, again, dropped = (
        Task.objects.enqueue("jobs.observed", {"report_id": 1}, max_attempts=n)
        for n in (1, 1, 2, 1)
    )
    make_task(state="succeeded")

    Task.objects.complete(claimed(well, "ann"))
    Task.objects.fail(claimed(badly, "ann"), "no luck")
    Task.objects.fail(claimed(again, "ann"), "no luck")
    Task.objects.filter(pk=dropped.pk).cancel()

    assert reported == [(well.pk, "succeeded"), (badly.pk, "failed"), (dropped.pk, "cancelled")]
    assert "jobs.observed" in registry.observed()


@pytest.mark.django_db
def test_who_fails_to_hear_of_an_end_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def hear(task: object) -> None:
        raise RuntimeError("a bug of the hearer's")

    registry.handler("jobs.observed", on_end=hear)(build)
    task = claimed(Task.objects.enqueue("jobs.observed", {"report_id": 1}), "ann")

    assert Task.objects.complete_many([(task, None)]) == ([task], [])
    assert "task.end_not_told" in logged(caplog)
