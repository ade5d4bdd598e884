"""Differences between databases."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from leasing.db.dialects import (
    READ_COMMITTED,
    durable,
    limit_waiting,
    lock,
    lock_names,
    private_connection,
    use_private_connection,
)
from leasing.models import Lease
from tests.factories import make_leases
from tests.leasing.support import OtherSession


@pytest.mark.django_db
def test_locking_reads_the_same_rows_on_every_database() -> None:
    leases = make_leases(3)

    with transaction.atomic():
        assert set(lock(Lease.objects.all())) == set(leases)
        assert set(lock(Lease.objects.all(), skip_locked=True)) == set(leases)


@pytest.mark.django_db
@pytest.mark.usefixtures("on_postgresql")
def test_rows_are_locked_as_weakly_as_an_update_allows() -> None:
    sql = str(lock(Lease.objects.all(), skip_locked=True).query)

    assert sql.endswith("FOR NO KEY UPDATE SKIP LOCKED")


@pytest.mark.django_db
def test_waiting_is_limited_for_the_transaction_alone() -> None:
    with transaction.atomic():
        limit_waiting("default", 1.5)
        if connection.vendor == "postgresql":
            assert _limits() == ("1500ms", "1500ms")
            limit_waiting("default", 0)
            assert _limits() == ("1ms", "1ms")
        transaction.set_rollback(True)
    if connection.vendor == "postgresql":
        assert _limits() == ("0", "0")


def _limits() -> Any:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
        )
        return cursor.fetchone()


def test_a_private_connection_is_kept_and_gives_up_on_a_dead_network() -> None:
    private = private_connection("default", 4.0)

    assert private is not connections["default"]
    assert private.alias == "default"
    assert private.settings_dict["NAME"] == connection.settings_dict["NAME"]
    assert private.settings_dict["CONN_MAX_AGE"] is None
    assert private.settings_dict["CONN_HEALTH_CHECKS"] is False
    if connection.vendor == "postgresql":
        assert private.settings_dict["OPTIONS"]["connect_timeout"] == 4
        options = private.settings_dict["OPTIONS"]
        assert options["tcp_user_timeout"] == 4000
        assert options["keepalives_idle"] == 4
        assert options["keepalives_interval"] * options["keepalives_count"] <= 4
    assert "connect_timeout" not in connection.settings_dict.get("OPTIONS", {})


def test_a_private_connection_stands_outside_of_any_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {**connection.settings_dict.get("OPTIONS", {}), "pool": True}
    with monkeypatch.context() as patched:
        patched.setitem(connection.settings_dict, "OPTIONS", options)
        private = private_connection("default", 4.0)

    assert "pool" not in private.settings_dict["OPTIONS"]
    assert options["pool"] is True


def test_what_the_project_says_about_timeouts_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**connection.settings_dict.get("OPTIONS", {}), "connect_timeout": 9}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    assert private_connection("default", 1.0).settings_dict["OPTIONS"]["connect_timeout"] == 9


@pytest.mark.django_db(transaction=True)
def test_a_thread_gets_its_private_connection_once(other_session: OtherSession) -> None:
    def connect() -> tuple[Any, Any, int]:
        use_private_connection("default", 4.0)
        first = connections["default"]
        use_private_connection("default", 4.0)
        return first, connections["default"], Lease.objects.count()

    first, second, count = other_session.run(connect)

    assert first is second
    assert first is not connection
    assert count == 0
    assert not getattr(connections["default"], "is_private_to_keeper", False)
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_names_are_locked_under_read_committed_alone() -> None:
    with transaction.atomic():
        assert lock_names("default", ["a"]) == {"a"}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(ImproperlyConfigured, match="default_transaction_isolation"):
            lock_names("default", ["a"])


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize(("level", "count"), [(READ_COMMITTED, 0), (3, 1)])
def test_an_isolation_level_costs_a_statement_only_where_another_is_needed(
    monkeypatch: pytest.MonkeyPatch, level: int, count: int
) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", level)
    try:
        with (
            CaptureQueriesContext(connection) as queries,
            durable("default"),
            connection.cursor() as cursor,
        ):
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("read committed",)
    finally:
        connection.close()
    assert len([query for query in queries if "ISOLATION LEVEL" in query["sql"]]) == count
