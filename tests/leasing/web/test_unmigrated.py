"""A forgotten `migrate` is told in a sentence by pages and by the API, with status 503."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from leasing.models import Lease
from tests.api_calls import call
from tests.pages import Page
from tests.typed_app.models import Invoice

REASON = (
    "The database 'default' lacks migrations of this version (leasing.0001_initial): run "
    "`python manage.py migrate`."
)


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
@pytest.mark.parametrize("atomic", [False, True])
def test_it_is_said_instead_of_an_error(
    admin_client: Client,
    compatible: None,
    table_missing: None,
    monkeypatch: pytest.MonkeyPatch,
    atomic: bool,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)

    pages = [admin_client.get(path) for path in ("/ops/leases/", "/ops/")]
    answer = call(Client(), "GET", "/leases")

    for page in pages:
        assert page.status_code == 503
        assert REASON in unescape(page.content.decode())
    assert (answer.status, answer.body) == (503, {"error": REASON})
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.django_db(transaction=True)
def test_the_table_of_another_model_is_named_and_the_menu_stays(
    admin_client: Client, compatible: None
) -> None:
    table, elsewhere = Invoice._meta.db_table, "a_table_elsewhere"
    with connection.schema_editor() as editor:
        editor.alter_db_table(Invoice, table, elsewhere)
    try:
        page = Page(admin_client.get("/ops/leases/"))
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Invoice, elsewhere, table)

    assert page.status == 503
    sentence = f"The database 'default' lacks the table {table}: run `python manage.py migrate`."
    assert sentence in page.text
    assert "/ops/tasks/" in page.links


@pytest.mark.django_db
def test_another_error_of_the_database_stays_an_error(
    admin_client: Client,
) -> None:
    def fail(execute: Any, sql: str, *statement: Any) -> Any:
        if "leasing_lease" in sql:
            raise OperationalError("no space left on device")
        return execute(sql, *statement)

    with connection.execute_wrapper(fail), pytest.raises(OperationalError, match="no space"):
        admin_client.get("/ops/leases/")
