"""A forgotten `migrate` is told in a sentence: by commands, and by pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from pytest_django import Settings

from leasing.db import unapplied
from leasing.db.unapplied import unapplied_reason
from leasing.management.base import ServiceCommand, TablesCommand
from leasing.models import Lease

pytestmark = [pytest.mark.once, pytest.mark.django_db]

REASON = (
    "The database 'default' lacks migrations of this version (leasing_tasks.0001_initial, "
    "leasing_tasks.0002_storage): run `python manage.py migrate`."
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


# Commands

OURS = sorted(name for name, app in get_commands().items() if app in ("leasing", "tasks"))
#: Arguments without which a command is refused before it looks.
ARGUMENTS = dict.fromkeys(("leases", "queues", "schedules", "tasks", "workers"), ["list"])
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


# Pages


@pytest.fixture
def table_missing() -> Iterator[None]:
    """The table of leases is not there, as `migrate` has not run."""
    table, elsewhere = Lease._meta.db_table, "a_table_elsewhere"
    recorded = MigrationRecorder(connection).migration_qs.filter(app="leasing")
    names = list(recorded.values_list("name", flat=True))
    with connection.schema_editor() as editor:
        editor.alter_db_table(Lease, table, elsewhere)
    recorded.delete()
    yield
    with connection.schema_editor() as editor:
        editor.alter_db_table(Lease, elsewhere, table)
    for name in names:
        MigrationRecorder(connection).record_applied("leasing", name)


@pytest.mark.django_db(transaction=True)
def test_a_page_says_it_instead_of_an_error(admin_client: Client, table_missing: None) -> None:
    answer = admin_client.get("/ops/leases/")

    assert answer.status_code == 503
    assert "lacks migrations of this version (leasing.0001_initial)" in answer.content.decode()
    assert "run `python manage.py migrate`" in answer.content.decode()


def test_another_error_of_the_database_stays_an_error(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OperationalError("no space left on device")

    monkeypatch.setattr("leasing.dashboard.lease_lists.section", fail)

    with pytest.raises(OperationalError, match="no space"):
        admin_client.get("/ops/leases/")
