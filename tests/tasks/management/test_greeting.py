"""A worker says what it is: what it serves, which handlers it found, how it stops."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from pytest_django import Settings

from tasks.management import greeting
from tasks.sample import own_handlers
from tasks.scheduling.declarations import schedule
from tasks.worker.process import Until, WorkerProcess
from tests.tasks.support import Handlers


@pytest.fixture
def nothing_found(handlers: Handlers) -> None:
    """Only the sample that comes with the queue is registered."""
    for name in own_handlers():
        del handlers[name]


@pytest.mark.usefixtures("nothing_found", "own_declarations")
def test_a_worker_tells_what_it_serves_and_how_it_stops(
    handlers: Handlers, settings: Settings
) -> None:
    settings.TASK_QUEUE = {"QUEUES": ["default", "mail"]}
    handlers["mail.send"] = handlers["mail.fetch"] = lambda ctx: None
    schedule("nightly", "mail.fetch", cron="0 3 * * *")

    told = greeting.facts(WorkerProcess(threads=1, coroutines=100, processes=2, stop_timeout=5))

    assert told == {
        "queues": "default, mail",
        "slots": "1 thread, 100 coroutines, 2 child processes",
        "handlers": "2: mail.fetch, mail.send",
        "schedules": "1: nightly",
        "stop": "Ctrl-C or SIGTERM: running tasks have 5 s, none after a second signal",
    }


@pytest.mark.parametrize("until", [Until.ONCE, Until.DRAINED])
def test_a_worker_that_ends_by_itself_says_when(until: Until) -> None:
    told = greeting.facts(WorkerProcess(until=until))

    assert told["ends"] == greeting.ENDS[until]


@pytest.mark.usefixtures("nothing_found")
def test_of_many_handlers_the_first_are_named(handlers: Handlers) -> None:
    for number in range(100, 115):
        handlers[f"mail.{number}"] = lambda ctx: None

    told = greeting.facts(WorkerProcess())["handlers"]

    assert told.startswith("15: mail.100, mail.101, ")
    assert told.endswith(", mail.111 and 3 more")


@pytest.mark.usefixtures("nothing_found")
def test_where_handlers_were_looked_for_is_said_if_there_is_none(
    handlers: Handlers, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tests.press.tasks", ModuleType("tests.press.tasks"))
    settings.INSTALLED_APPS = ["django.contrib.auth", "leasing", "tests.shop", "tests.press"]

    assert greeting.no_handler_reason().endswith(
        "Handlers are looked for in the module tasks.py of each app in INSTALLED_APPS: "
        "tests.shop.tasks (missing), tests.press.tasks (no handler in it)."
    )

    handlers["mail.send"] = lambda ctx: None
    assert greeting.no_handler_reason() == ""


@pytest.mark.usefixtures("nothing_found")
def test_a_project_without_an_app_of_its_own_is_told_so(settings: Settings) -> None:
    settings.INSTALLED_APPS = ["django.contrib.auth", "leasing"]

    assert greeting.no_handler_reason().endswith("INSTALLED_APPS lists no app of your own.")
