from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

APPS = ("leasing", "leasing_tasks")
FIRST = "0001_initial"


class Command(migrate.Command):
    # Until the first release each app has one migration, which is edited in place. Django compares
    # names, finds nothing to apply, and the site would fail at its first query.
    # It goes at the first release: CONTRIBUTING, Releasing.
    def handle(self, *args: Any, **options: Any) -> None:
        if _is_older(options["database"]):
            settings = connections[options["database"]].settings_dict
            raise CommandError(
                f"The database {str(settings['NAME'])!r} was made by an older state of this code, "
                "and nothing converts it before the first release: remove it, and run migrate "
                "again."
            )
        super().handle(*args, **options)


def _is_older(using: str) -> bool:
    """Return True if the first migration was applied to the database and made other columns,
    indexes or constraints than this version's, and if one was applied that is gone."""
    connection = connections[using]
    labels = [label for label in APPS if label in apps.app_configs]
    applied = [
        key for key in MigrationRecorder(connection).applied_migrations() if key[0] in labels
    ]
    if any(name != FIRST for _, name in applied):
        return True
    with connection.cursor() as cursor:
        for label, _ in applied:
            for model in apps.get_app_config(label).get_models():
                table, introspection = model._meta.db_table, connection.introspection
                found = introspection.get_table_description(cursor, table)
                named = {each.name for each in (*model._meta.indexes, *model._meta.constraints)}
                columns = {field.column for field in model._meta.local_concrete_fields}
                if {column.name for column in found} != columns:
                    return True
                if not named <= set(introspection.get_constraints(cursor, table)):
                    return True
    return False
