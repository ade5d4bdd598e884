"""A forgotten `migrate` is told in a sentence by every command; by pages and API, see
``web/test_unmigrated.py``."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import Error, InterfaceError, OperationalError, ProgrammingError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.db import unapplied
from leasing.db.unapplied import unapplied_reason, unapplied_reason_of
from leasing.management.base import ServiceCommand, TablesCommand

pytestmark = pytest.mark.django_db

REASON = (
    "The database 'default' lacks migrations of this version (leasing_tasks.0001_initial): run "
    "`python manage.py migrate`."
)


@pytest.fixture
def forgotten() -> None:
    """The second app was added, and `migrate` not run since."""
    MigrationRecorder(connection).migration_qs.filter(app="leasing_tasks").delete()


def test_a_migrated_database_lacks_nothing() -> None:
    assert unapplied_reason() == ""


@pytest.mark.usefixtures("forgotten")
def test_what_is_missing_is_named_with_what_to_run() -> None:
    assert unapplied_reason() == REASON


def test_of_many_migrations_the_first_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unapplied, "_names", lambda label: [f"000{n}_more" for n in range(1, 5)])

    assert (
        "(leasing.0001_more, leasing.0002_more, leasing.0003_more, leasing.0004_more and 4 more)"
        in (unapplied_reason())
    )


@pytest.mark.usefixtures("forgotten")
def test_an_app_whose_migrations_are_switched_off_lacks_none(settings: Settings) -> None:
    settings.MIGRATION_MODULES = {"leasing_tasks": None}

    assert unapplied_reason() == ""


@pytest.mark.usefixtures("forgotten")
def test_who_starts_before_the_database_is_there_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(recorder: MigrationRecorder) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(MigrationRecorder, "applied_migrations", refused)

    assert unapplied_reason() == ""


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ProgrammingError('relation "leasing_lease" does not exist'), REASON),
        (OperationalError("no such table: leasing_lease"), REASON),
        (OperationalError("table leasing_lease has no column named grace"), REASON),
        (OperationalError("connection to server at 10.0.0.7 failed"), ""),
        (InterfaceError("connection already closed"), ""),
    ],
)
def test_after_an_error_it_is_looked_for_if_that_can_be_why(error: Error, reason: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert unapplied_reason_of(error) == reason

    assert bool(queries) == bool(reason)


# Commands

OURS = sorted(name for name, app in get_commands().items() if app in ("leasing", "tasks"))
#: Arguments without which a command is refused before it looks.
LISTING = ("api_tokens", "leases", "queues", "schedules", "tasks", "workers")
ARGUMENTS = dict.fromkeys(LISTING, ["list"])
ARGUMENTS["run_as_leader"] = ["race", "--", "true"]


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", OURS)
def test_every_command_ends_with_the_sentence(name: str) -> None:
    with pytest.raises(CommandError) as ended:
        call_command(name, *ARGUMENTS.get(name, []))

    assert (str(ended.value), ended.value.returncode) == (REASON, 1)


@pytest.mark.parametrize("name", OURS)
def test_what_runs_until_it_is_stopped_shows_its_log(name: str) -> None:
    command = load_command_class(get_commands()[name], name)

    assert isinstance(command, ServiceCommand if name.startswith("run_") else TablesCommand)
