"""Commands whose database does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import OperationalError, connection

from leasing.management.base import TablesCommand

pytestmark = pytest.mark.django_db


@pytest.fixture
def away() -> Iterator[None]:
    """A database that refuses every statement."""

    def refuse(*args: Any) -> None:
        raise OperationalError("connection refused\n\tIs the server running?")

    with connection.execute_wrapper(refuse):
        yield


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize(
    "command",
    [
        "tasks list",
        "tasks show 1",
        "tasks explain task:1",
        "tasks retry 1",
        "tasks cancel --queue default --yes --reason why",
        "tasks enqueue sample.sleep",
        "tasks workers list",
        "queues list",
        "queues pause default --reason why",
        "workers check web-1",
        "schedules list",
        "schedules run nightly",
        "leases list",
        "leases show report:42",
        "leases ttl --queue default",
        "leases raise-tokens --yes",
        "api_tokens list",
        "prune_tasks",
        "prune_leases",
        "run_recovery --once",
    ],
)
def test_a_command_says_in_one_sentence_that_the_database_is_away(command: str) -> None:
    with pytest.raises(CommandError) as failed:
        call_command(*command.split(), skip_checks=False)

    sentence = "The database 'default' failed: connection refused Is the server running?"
    assert (str(failed.value), failed.value.returncode) == (sentence, 1)


def test_every_command_of_the_packages_does() -> None:
    own = {name: app for name, app in get_commands().items() if app in ("leasing", "tasks")}

    assert "tasks" in own and "leases" in own
    for name, app in own.items():
        assert isinstance(load_command_class(str(app), name), TablesCommand), name
