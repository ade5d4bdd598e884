"""Migrations of our apps, and tables of others, that the database lacks."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

from django.apps import apps
from django.db import Error, OperationalError, ProgrammingError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from leasing.conf import leasing_settings
from leasing.db.routing import OWN_APPS

#: Names that a sentence lists.
MAX_NAMED = 4
_WORD = re.compile(r"\w+")


def unapplied_reason() -> str:
    """Return a sentence with the migrations of our apps that were not applied to their database,
    and the command that does it. Empty if all were, and if the database does not answer: a
    process that waits for it may start before it does.
    """
    try:
        return find_unapplied()
    except Error:
        return ""


def find_unapplied() -> str:
    """Return the same sentence, or raise Error if the database does not answer.

    Reads the names of our own migrations only, not the graph of all: a command of a large project
    would take seconds more.
    """
    using = leasing_settings.DATABASE
    connection = connections[using]
    was_open = connection.connection is not None
    try:
        applied = set(MigrationRecorder(connection).applied_migrations())
    finally:
        if not was_open:
            connection.close()  # a process that only waits would keep it
    labels = [label for label in OWN_APPS if label in apps.app_configs]
    missing = [
        f"{label}.{name}"
        for label in labels
        for name in _names(label)
        if (label, name) not in applied
    ]
    return _sentence(missing, using) if missing else ""


def unapplied_reason_of(error: Exception) -> str:
    """Return ``unapplied_reason()`` if ``error`` may be of a table or a column that a forgotten
    migration would have made, or else a sentence with the table of another app that it names. Empty
    for all others: a database that is away is not asked again, for the answer would take as long
    once more."""
    # SQLite's.
    is_missing = isinstance(error, OperationalError) and any(
        words in str(error) for words in ("no such ", "has no column")
    )
    if not (is_missing or isinstance(error, ProgrammingError)):
        return ""
    return unapplied_reason() or _missing_table(str(error))


def _missing_table(text: str) -> str:
    """Return a sentence with the table that ``text``, of an error, names, if there is none."""
    using = leasing_settings.DATABASE
    introspection = connections[using].introspection
    try:
        missing = set(introspection.django_table_names()) - set(introspection.table_names())
    except Error:
        return ""
    named = missing & set(_WORD.findall(text))
    return f"The database {using!r} lacks the table {named.pop()}: {_run(using)}." if named else ""


def _names(label: str) -> list[str]:
    """Return the names of the app's migrations; none if the settings switch them off."""
    module, _ = MigrationLoader.migrations_module(label)
    if module is None:
        return []
    found = pkgutil.iter_modules(import_module(module).__path__)
    return sorted(each.name for each in found if not each.ispkg and each.name[0] not in "_~")


def _sentence(missing: list[str], using: str) -> str:
    named = ", ".join(missing[:MAX_NAMED])
    if len(missing) > MAX_NAMED:
        named += f" and {len(missing) - MAX_NAMED} more"
    return f"The database {using!r} lacks migrations of this version ({named}): {_run(using)}."


def _run(using: str) -> str:
    option = "" if using == "default" else f" --database {using}"
    return f"run `python manage.py migrate{option}`"
