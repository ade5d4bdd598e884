"""The few operations that differ between databases, each with its portable form."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseInTransaction

_TOO_STRICT = (
    "This needs transactions under READ COMMITTED. Set the isolation_level in the OPTIONS of the "
    "database {using}, or default_transaction_isolation for its role."
)

#: The channel of PostgreSQL on which releases are notified.
CHANNEL = "leasing_released"
#: psycopg's number for it.
READ_COMMITTED = 2
#: Packets that ask whether the server is there and may stay unanswered.
KEEPALIVES = 3

Rows = TypeVar("Rows", bound="models.QuerySet[Any, Any]")
#: The alias of a database, or this thread's connection to it, which takes a while to look up.
Database = str | BaseDatabaseWrapper


def lock(rows: Rows, *, skip_locked: bool = False, of: tuple[str, ...] = ()) -> Rows:
    """Lock ``rows`` until the transaction ends, as weakly as updating them allows.

    PostgreSQL's plain FOR UPDATE would also wait for inserts of child rows. SQLite has no row
    locks, and Django silently omits the clause: there the write lock of the database protects the
    rows, and the conditions of the update that follows.

    Args:
        rows: The rows.
        skip_locked: True to leave out rows that others have locked, rather than wait for them.
        of: The relations whose rows are locked; empty: all.
    """
    take_write_lock(rows)
    features = connections[rows.db].features
    return rows.select_for_update(
        skip_locked=skip_locked and features.has_select_for_update_skip_locked,
        of=of,
        no_key=features.has_select_for_no_key_update,
    )


def take_write_lock(rows: models.QuerySet[Any]) -> None:
    """On SQLite take the write lock of the database of ``rows``, until the transaction ends.

    IMMEDIATE has taken it at BEGIN. By Django's defaults a transaction takes it with its first
    write, and cannot once it has read and somebody else has written: that fails at once with
    "database is locked", however long the timeout. A write that changes nothing waits its turn.
    """
    connection: Any = connections[rows.db]
    if connection.vendor != "sqlite" or connection.transaction_mode not in (None, "DEFERRED"):
        return
    quote, meta = connection.ops.quote_name, rows.model._meta
    table, key = quote(meta.db_table), quote(meta.pk_fields[0].column)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {key} = {key} WHERE 0")


def lock_names(using: str, names: Iterable[str]) -> set[str]:
    """Lock those of ``names`` that no other transaction has locked, until this one ends, and
    return them. It waits for none: the process that has one may have been stopped in the middle of
    its work.

    Where there are no such locks every name is returned: SQLite has one writer, and elsewhere
    what is written needs a guard of its own. Raises ImproperlyConfigured under a stricter isolation
    level than READ COMMITTED: what the last owner of a name has written could not be read.
    """
    names = list(names)
    connection = connections[using]
    if not names or connection.vendor != "postgresql":
        return set(names)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, current_setting('transaction_isolation') FROM unnest(%s::text[]) AS name"
            " WHERE pg_try_advisory_xact_lock(hashtextextended(name, 0))",
            [names],
        )
        locked: dict[str, str] = dict(cursor.fetchall())
    if not set(locked.values()) <= {"read committed"}:
        raise ImproperlyConfigured(_TOO_STRICT.format(using=using))
    return set(locked)


def limit_waiting(using: str, seconds: float) -> None:
    """Make the statements of this transaction fail rather than wait longer than ``seconds``.

    Set for the transaction alone, which is what a pooler between here and the server keeps.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute(waiting_limit(seconds))


def waiting_limit(seconds: float) -> str:
    """PostgreSQL's statement that limits waiting in this transaction."""
    milliseconds = max(1, int(seconds * 1000))
    return (
        f"SELECT set_config(name, '{milliseconds}', true)"
        " FROM unnest(ARRAY['lock_timeout', 'statement_timeout']) AS name"
    )


def limit_silence(using: str, seconds: float) -> None:
    """Make the server end this transaction once it has heard nothing for ``seconds``: a process
    that was stopped in the middle of it would keep its locks, and make everybody else wait.

    Only PostgreSQL can do so, for the transaction alone.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        limit = str(max(1, int(seconds * 1000)))
        cursor.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [limit]
        )


def refuse_transaction(using: Database) -> None:
    """Raise LeaseInTransaction inside an atomic block, or with autocommit off.

    The blocks that Django's own TestCase wraps around a test do not count.
    """
    if in_transaction(using):
        raise LeaseInTransaction


def in_transaction(using: Database) -> bool:
    """Return True if the caller could still roll back what is written now."""
    connection: Any = connections[using] if isinstance(using, str) else using
    if connection.in_atomic_block:
        blocks = connection.atomic_blocks
        return not (blocks and getattr(blocks[-1], "_from_testcase", False))
    # Where there is a connection, asking it takes as long as the rest.
    autocommit = connection.autocommit if connection.connection else connection.get_autocommit()
    return not autocommit


def is_rolled_back_by_test(using: str) -> bool:
    """Return True in the transaction that Django's TestCase wraps around a test: no other
    connection sees what is written there."""
    blocks = connections[using].atomic_blocks
    return bool(blocks) and getattr(blocks[0], "_from_testcase", False)


@contextmanager
def as_if_of_test(using: str) -> Iterator[None]:
    """Make ``refuse_transaction`` permit the innermost block, which is within that of a test."""
    block: Any = connections[using].atomic_blocks[-1]
    before = getattr(block, "_from_testcase", False)
    block._from_testcase = True
    try:
        yield
    finally:
        block._from_testcase = before


def after_commit(using: Database, call: Callable[[], object]) -> None:
    """``call`` once what was written is there to stay; at once outside of transactions."""
    if in_transaction(using):
        alias = using if isinstance(using, str) else using.alias
        transaction.on_commit(call, using=alias, robust=True)
    else:
        call()


def patience() -> float:
    """Seconds that the keeper's connection waits for a connect or an unanswered packet. One
    connection serves holds of every ttl, so the usual one decides, and not the longest."""
    return min(max(2.0, leasing_settings.TTL / 3), 5.0)


def private_connection(using: str, patience: float) -> BaseDatabaseWrapper:
    """A connection for one thread alone, outside any pool, that gives up on a dead network.

    ``patience`` is how many seconds a connect or an unanswered packet may take. It is kept
    whatever CONN_MAX_AGE says, and the thread that asked for it closes it.
    """
    connection = connections[using].copy()
    connection.is_private_to_keeper = True  # type: ignore[attr-defined]
    connection.settings_dict["CONN_MAX_AGE"] = None
    connection.settings_dict["CONN_HEALTH_CHECKS"] = False
    options = connection.settings_dict.setdefault("OPTIONS", {})
    options.pop("pool", None)
    if connection.vendor == "sqlite":
        options["timeout"] = patience
    if connection.vendor == "postgresql":
        options.setdefault("connect_timeout", max(2, int(patience)))
        options.setdefault("tcp_user_timeout", max(1000, int(patience * 1000)))
        # What waits has sent nothing that could go unanswered: a server that is gone for good is
        # found out by asking.
        options.setdefault("keepalives_idle", max(1, int(patience)))
        options.setdefault("keepalives_interval", max(1, int(patience / KEEPALIVES)))
        options.setdefault("keepalives_count", KEEPALIVES)
    return connection


def hang_up(connection: BaseDatabaseWrapper) -> None:
    """End what ``connection`` waits for, from another thread: it gets an error instead of an
    answer. Only where answers come over a network."""
    if connection.vendor == "postgresql":
        hang_up_raw(connection.connection)


def hang_up_raw(raw: Any) -> None:
    """``hang_up``, for a connection of the driver's; None: it is closed."""
    if raw is None:
        return
    with (
        contextlib.suppress(Exception),  # closed meanwhile
        socket.socket(fileno=os.dup(raw.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)


def use_private_connection(using: str, patience: float) -> None:
    """Make every query of this thread to ``using`` go over one private connection."""
    if not getattr(connections[using], "is_private_to_keeper", False):
        connections[using] = private_connection(using, patience)


def durable(using: str) -> AbstractContextManager[None]:
    """``atomic``, refused inside another transaction."""
    refuse_transaction(using)
    return atomic(using)


def atomic(using: str) -> AbstractContextManager[None]:
    """A transaction, or a part of the caller's. One of its own is under READ COMMITTED on
    PostgreSQL, also where OPTIONS ask for a stricter isolation level."""
    options = connections[using].settings_dict["OPTIONS"]
    if options.get("isolation_level") in (None, READ_COMMITTED):
        return transaction.atomic(using=using)
    return _read_committed(using)


@contextmanager
def _read_committed(using: str) -> Iterator[None]:
    """A transaction in which who has locked something reads what its last owner has written. Under
    a stricter level it would read what was there when it began to wait or to ask."""
    connection: Any = connections[using]
    is_outermost = not connection.in_atomic_block
    with transaction.atomic(using=using):
        if is_outermost and connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield
