"""System checks of TASK_QUEUE."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.core.checks import run_checks
from pytest_django import Settings

from tasks import registry
from tasks.checks.settings import check_settings
from tests.tasks.support import Handlers


def codes(settings: Settings, **task_queue: Any) -> list[str | None]:
    settings.TASK_QUEUE = task_queue
    return [message.id for message in check_settings()]


def test_the_defaults_are_in_order() -> None:
    assert check_settings() == []


@pytest.mark.django_db
def test_the_checks_are_run_by_django(settings: Settings) -> None:
    settings.TASK_QUEUE = {"POLL_EVERY": 0}

    assert "leasing_tasks.E002" in {message.id for message in run_checks()}


def test_a_full_set_is_in_order(settings: Settings) -> None:
    assert not codes(
        settings,
        MAX_ATTEMPTS=1,
        BACKOFF={"base": 0, "cap": 0.5},
        QUEUES=["default", "mail"],
        SWEEP_EVERY=0.1,
        POLL_EVERY=5,
        STOP_TIMEOUT=0,
        ANSWER_TIMEOUT=0.5,
        HANDLER_ANSWER_TIMEOUT=None,
    )


@pytest.mark.usefixtures("own_handlers")
@pytest.mark.parametrize(
    ("compensate", "reason"),
    [
        ("unbok", "'unbok': which has no handler."),
        ("book", "'book': which is compensated by 'book' itself: nothing undoes an undo."),
        ("again", "'again': which is compensated by 'unbook' itself: nothing undoes an undo."),
        ("other", "does not take this data: 'hotel' is missing"),
        ("strict", "does not take this data: 'seats' is missing"),
        ("narrow", "does not take this data: 'seats' is unknown."),
        ("unbook", ""),
        ("any_data", ""),
    ],
)
def test_a_compensation_has_a_handler_that_takes_the_data_and_none_itself(
    compensate: str, reason: str
) -> None:
    @registry.handler("book", compensate=compensate)
    def book(ctx: Any, trip: int, seats: int = 1) -> None: ...

    @registry.handler("unbook")
    def unbook(ctx: Any, trip: int, seats: int = 1) -> None: ...

    @registry.handler("any_data")
    def any_data(ctx: Any, **data: Any) -> None: ...

    @registry.handler("strict")
    def strict(ctx: Any, trip: int, seats: int) -> None: ...

    @registry.handler("narrow")
    def narrow(ctx: Any, trip: int) -> None: ...

    @registry.handler("other")
    def other(ctx: Any, hotel: str, trip: int, seats: int = 1) -> None: ...

    @registry.handler("again", compensate="unbook")
    def again(ctx: Any, trip: int, seats: int) -> None: ...

    messages = [m for m in check_settings() if compensate in m.msg and "'book' is" in m.msg]

    assert [message.id for message in messages] == ["leasing_tasks.E035"] * bool(reason)
    assert all(reason in message.msg for message in messages)


def test_a_typo_gets_a_suggestion(settings: Settings) -> None:
    settings.TASK_QUEUE = {"MAX_ATEMPTS": 3}

    (message,) = check_settings()

    assert message.id == "leasing_tasks.E001"
    assert "'MAX_ATTEMPTS'" in str(message.hint)


def test_a_queue_alone_is_no_list_of_queues(settings: Settings) -> None:
    settings.TASK_QUEUE = {"QUEUES": "default"}

    (message,) = check_settings()

    assert message.msg == "TASK_QUEUE['QUEUES'] must be a list of queues, not the text 'default'."
    assert message.hint == "Write ['default']."


@pytest.mark.parametrize("name", ["TASKS_QUEUE", "TASKQUEUE", "TASK_QUEUES", "LEASING_TASK_QUEUE"])
def test_settings_under_another_name_are_told_so(settings: Settings, name: str) -> None:
    setattr(settings, name, {"MAX_ATTEMPTS": 3})

    (message,) = check_settings()

    assert (message.id, message.msg, message.hint) == (
        "leasing_tasks.E029",
        f"The setting {name} is ignored: these settings belong in TASK_QUEUE.",
        f"Rename {name} to TASK_QUEUE.",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TASKS_QUEUE", {"url": "amqp://"}),
        ("TASKS_QUEUE", "MAX_ATTEMPTS"),
        ("BACKGROUND", {"MAX_ATTEMPTS": 3}),
        ("CELERY_TASK_QUEUES", {"default": {}}),
    ],
)
def test_settings_of_others_are_left_alone(settings: Settings, name: str, value: Any) -> None:
    setattr(settings, name, value)

    assert check_settings() == []


def test_settings_that_are_no_dictionary_are_told_so(settings: Settings) -> None:
    settings.TASK_QUEUE = ["default"]

    (message,) = check_settings()

    assert message.msg == "TASK_QUEUE must be a dictionary of settings, not ['default']."


#: The settings that are a number of seconds, and their checks.
NUMBERS = [
    ("SWEEP_EVERY", "leasing_tasks.E002"),
    ("POLL_EVERY", "leasing_tasks.E002"),
    ("ANSWER_TIMEOUT", "leasing_tasks.E002"),
    ("HANDLER_ANSWER_TIMEOUT", "leasing_tasks.E002"),
    ("STOP_TIMEOUT", "leasing_tasks.E003"),
    ("EXAMINE_EVERY", "leasing_tasks.E009"),
    ("PRUNE_EVERY", "leasing_tasks.E009"),
    ("SAMPLE_RETENTION", "leasing_tasks.E014"),
    ("CELERY_PATIENCE", "leasing_tasks.E019"),
    ("OUTBOX_RETENTION", "leasing_tasks.E026"),
]

WRONG: list[tuple[str, Any, str]] = [
    ("SWEEP_EVERY", 0, "leasing_tasks.E002"),
    ("SWEEP_EVERY", -1, "leasing_tasks.E002"),
    ("SWEEP_EVERY", "1", "leasing_tasks.E002"),
    ("POLL_EVERY", None, "leasing_tasks.E002"),
    ("POLL_EVERY", True, "leasing_tasks.E002"),
    ("ANSWER_TIMEOUT", 0, "leasing_tasks.E002"),
    ("ANSWER_TIMEOUT", None, "leasing_tasks.E002"),
    ("HANDLER_ANSWER_TIMEOUT", -1, "leasing_tasks.E002"),
    ("HANDLER_ANSWER_TIMEOUT", "1", "leasing_tasks.E002"),
    ("STOP_TIMEOUT", -1, "leasing_tasks.E003"),
    ("STOP_TIMEOUT", "soon", "leasing_tasks.E003"),
    ("MAX_ATTEMPTS", 0, "leasing_tasks.E004"),
    ("MAX_ATTEMPTS", 1.5, "leasing_tasks.E004"),
    ("MAX_ATTEMPTS", True, "leasing_tasks.E004"),
    ("MAX_ATTEMPTS", 32_768, "leasing_tasks.E004"),
    ("BACKOFF", 1, "leasing_tasks.E005"),
    ("BACKOFF", {"base": 1}, "leasing_tasks.E005"),
    ("BACKOFF", {"base": 1, "cap": -1}, "leasing_tasks.E005"),
    ("BACKOFF", {"base": 1, "cap": "1h"}, "leasing_tasks.E005"),
    ("BACKOFF", {"base": 1, "cap": 2, "factor": 3}, "leasing_tasks.E005"),
    *((key, math.inf, code) for key, code in NUMBERS),
    *((key, math.nan, code) for key, code in NUMBERS),
    ("BACKOFF", {"base": 1, "cap": math.inf}, "leasing_tasks.E005"),
    ("RETENTION", {"failed": math.inf}, "leasing_tasks.E010"),
    ("QUEUES", (), "leasing_tasks.E006"),
    ("QUEUES", "default", "leasing_tasks.E006"),
    ("QUEUES", ("default", "a\nb"), "leasing_tasks.E007"),
    ("QUEUES", ("default", 7), "leasing_tasks.E007"),
    ("GENERATOR_LEASE", "", "leasing_tasks.E030"),
    ("GENERATOR_LEASE", None, "leasing_tasks.E030"),
    ("GENERATOR_STORE", "nowhere", "leasing_tasks.E031"),
    ("GENERATOR_STORE", None, "leasing_tasks.E031"),
]


@pytest.mark.parametrize(("key", "value", "code"), WRONG)
def test_a_setting_that_is_out_of_bounds_is_an_error(
    settings: Settings, key: str, value: Any, code: str
) -> None:
    assert codes(settings, **{key: value}) == [code]


def test_a_handlers_queue_must_exist(settings: Settings, handlers: Handlers) -> None:
    handlers.add("reports.build", lambda ctx: None, queue="reports")
    settings.TASK_QUEUE = {"QUEUES": ("default", "mail")}

    (message,) = check_settings()

    assert message.id == "leasing_tasks.E008"
    assert "'reports.build'" in message.msg and "'reports'" in message.msg


CENTRAL = {
    "BACKEND": "leasing.stores.http.HttpStore",
    "URL": "https://leases.example.com/api",
}


def test_in_another_store_the_generators_lease_needs_a_name_of_its_own(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "STORES": {"central": CENTRAL}}

    assert codes(settings, GENERATOR_STORE="central") == ["leasing_tasks.E032"]
    assert not codes(settings, GENERATOR_STORE="central", GENERATOR_LEASE="shop.generator")
    assert not codes(settings, GENERATOR_LEASE="shop.generator")


def test_a_store_that_cannot_be_made_is_reported_once(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "STORES": {"central": {"BACKEND": "no.such.Store"}}}

    assert not codes(settings, GENERATOR_STORE="central", GENERATOR_LEASE="shop.generator")
