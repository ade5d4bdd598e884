"""Each app has one migration until the first release, which is edited in place: nothing converts
the tables of a state that was never released.

What follows after it changes tables that are in use, and must be safe while the code of the release
before goes on running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.db.migrations import operations as ops
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import NOT_PROVIDED

APPS = ("leasing", "leasing_tasks")
#: Whoever does not know of these fails, at its next SELECT or INSERT.
BREAKING = (ops.RenameField, ops.RenameModel, ops.AlterModelTable, ops.DeleteModel)


def unsafe(operations: Sequence[Any], made_here: frozenset[str] = frozenset()) -> list[str]:
    """Return those of ``operations`` that would break code that does not know of them. Tables
    that the same migration makes are used by nobody yet."""
    made = {op.name.lower() for op in operations if isinstance(op, ops.CreateModel)}
    found = []
    for op in operations:
        if getattr(op, "model_name", "").lower() in made | made_here:
            continue
        if isinstance(op, BREAKING):
            found.append(op.describe())
        if isinstance(op, ops.AddField) and not _is_optional(op.field):
            found.append(op.describe())
        if isinstance(op, ops.RunSQL):
            found.append(op.describe())
    return found


def _is_optional(field: Any) -> bool:
    """Return True if a row can be inserted without naming the column."""
    return field.null or field.many_to_many or field.db_default is not NOT_PROVIDED


@pytest.mark.parametrize("app", APPS)
def test_an_app_has_one_migration_until_the_first_release(app: str) -> None:
    names = [name for label, name in MigrationLoader(None).disk_migrations if label == app]

    assert names == ["0001_initial"]


@pytest.mark.django_db
def test_migrate_does_nothing_to_tables_of_this_version() -> None:
    call_command("migrate", verbosity=0)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE leasing_tasks_queue DROP COLUMN reason",
        "ALTER TABLE leasing_lease ADD COLUMN formerly integer",
        "DROP INDEX leasing_tasks_attempt_lost",
        "INSERT INTO django_migrations (app, name, applied) "
        "VALUES ('leasing_tasks', '0002_storage', CURRENT_TIMESTAMP)",
    ],
)
@pytest.mark.django_db
def test_migrate_over_a_database_of_an_older_state_ends_with_a_sentence(change: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(change)

    with pytest.raises(CommandError, match="was made by an older state of this code.* remove it"):
        call_command("migrate", verbosity=0)


@pytest.mark.django_db
def test_migrate_accepts_an_app_whose_migration_was_never_applied() -> None:
    MigrationRecorder(connection).migration_qs.filter(app="leasing_tasks").delete()

    call_command("migrate", "leasing_tasks", fake=True, verbosity=0)

    assert ("leasing_tasks", "0001_initial") in MigrationRecorder(connection).applied_migrations()


@pytest.mark.parametrize("app", APPS)
def test_later_migrations_leave_the_release_before_running(app: str) -> None:
    loader = MigrationLoader(None)
    later = [migration for (label, _), migration in loader.disk_migrations.items() if label == app]

    assert {
        migration.name: unsafe(migration.operations)
        for migration in later
        if not migration.initial and unsafe(migration.operations)
    } == {}


@pytest.mark.parametrize(
    ("operation", "is_safe"),
    [
        (ops.AddField("task", "n", models.IntegerField(null=True)), True),
        (ops.AddField("task", "n", models.IntegerField(db_default=0)), True),
        (ops.AddField("task", "n", models.IntegerField(default=0)), False),
        (ops.AddField("task", "n", models.IntegerField()), False),
        (ops.AddField("new", "n", models.IntegerField()), True),
        (ops.RenameField("task", "a", "b"), False),
        (ops.RenameModel("task", "job"), False),
        (ops.AlterModelTable("task", "jobs"), False),
        (ops.DeleteModel("task"), False),
        (ops.RunSQL("DROP TABLE leasing_tasks_task"), False),
        (ops.AddIndex("task", models.Index(fields=["name"], name="i")), True),
    ],
)
def test_what_would_break_it_is_recognised(operation: Any, is_safe: bool) -> None:
    new = ops.CreateModel("New", [("id", models.BigAutoField(primary_key=True))])

    assert unsafe([new, operation]) == ([] if is_safe else [operation.describe()])


@pytest.mark.parametrize("label", APPS)
def test_names_of_indexes_and_constraints_fit_every_database(label: str) -> None:
    for model in apps.get_app_config(label).get_models():
        for named in (*model._meta.constraints, *model._meta.indexes):
            assert len(named.name) <= 30, named.name
