"""Migrations are safe while the code of the release before goes on running.

The first migration of an app makes its tables; what follows changes tables that are in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.db.migrations import operations as ops
from django.db.migrations.loader import MigrationLoader
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


@pytest.mark.once
@pytest.mark.parametrize("label", APPS)
def test_names_of_indexes_and_constraints_fit_every_database(label: str) -> None:
    for model in apps.get_app_config(label).get_models():
        for named in (*model._meta.constraints, *model._meta.indexes):
            assert len(named.name) <= 30, named.name
