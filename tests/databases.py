"""Databases other than the tests' own, for modules that need them: a replica, and a second one.

They are made before the first test that asks for them and dropped after the module's last. A test
names them: ``@pytest.mark.django_db(databases=["default", "shard"])``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db import connection, connections
from pytest_django import DjangoDbBlocker

#: The apps whose tables a second database has.
APPS = ("leasing", "leasing_tasks", "shop")


@contextmanager
def made(blocker: DjangoDbBlocker, database: AbstractContextManager[str]) -> Iterator[str]:
    """``database``, for a fixture that comes before those of single tests."""
    with ExitStack() as stack:
        with blocker.unblock():
            name = stack.enter_context(database)
        yield name
        with blocker.unblock():
            stack.close()


@contextmanager
def replica(name: str = "replica") -> Iterator[str]:
    """A second way into the tests' database, by which nothing is written; and which sees what is
    committed. Yields its alias."""
    settings = deepcopy(connection.settings_dict)
    options = settings.setdefault("OPTIONS", {})
    if connection.vendor == "postgresql":
        options["options"] = "-c default_transaction_read_only=on"
    else:
        options["init_command"] = "PRAGMA query_only=ON;"
    settings["TEST"]["MIRROR"] = connection.alias
    with _known(name, settings):
        yield name


@contextmanager
def second(name: str, folder: Path) -> Iterator[str]:
    """A database of its own, with the tables of APPS and nothing in them. Yields its alias."""
    settings = deepcopy(connection.settings_dict)
    if connection.vendor == "postgresql":
        settings.setdefault("OPTIONS", {})["options"] = f"-c search_path={name},public"
    else:
        settings["NAME"] = str(folder / f"{name}.sqlite3")
    with _known(name, settings), closing(connections[name]) as own:
        if connection.vendor == "postgresql":
            _make_schema(own, name)
        else:
            _copy_file(own)
        try:
            yield name
        finally:
            if connection.vendor == "postgresql":
                with own.cursor() as cursor:
                    cursor.execute(f"DROP SCHEMA {name} CASCADE")


@contextmanager
def _known(name: str, settings: dict[str, Any]) -> Iterator[None]:
    connections.settings[name] = settings
    try:
        yield
    finally:
        connections[name].close()
        del connections[name], connections.settings[name]


def _make_schema(own: Any, name: str) -> None:
    tables = [
        model._meta.db_table for app in APPS for model in apps.get_app_config(app).get_models()
    ]
    with own.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {name}")
        for table in tables:
            cursor.execute(f"CREATE TABLE {name}.{table} (LIKE public.{table} INCLUDING ALL)")


def _copy_file(own: Any) -> None:
    own.ensure_connection()
    connection.ensure_connection()
    connection.connection.backup(own.connection)


@contextmanager
def sqlite_by_default() -> Iterator[list[str]]:
    """SQLite with Django's own OPTIONS, on which somebody writes between what a transaction reads
    and its first own write, if they can. Yields what became of that, each time."""
    connection.ensure_connection()
    mode, connection.transaction_mode = connection.transaction_mode, None  # type: ignore[attr-defined]
    tried: list[str] = []

    def write_before(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if connection.in_atomic_block and _writes(sql):
            try:
                other.execute("INSERT INTO shop_order_seen DEFAULT VALUES")
                tried.append("written")
            except sqlite3.OperationalError as error:
                tried.append(str(error))
        return execute(sql, params, many, context)

    with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0)) as other:
        other.isolation_level = None
        other.execute("CREATE TABLE shop_order_seen (id INTEGER PRIMARY KEY)")
        try:
            with connection.execute_wrapper(write_before):
                yield tried
        finally:
            connection.transaction_mode = mode  # type: ignore[attr-defined]
            other.execute("DROP TABLE shop_order_seen")


def _writes(sql: str) -> bool:
    return sql.startswith(("UPDATE", "INSERT", "DELETE")) and not sql.endswith("WHERE 0")
