"""Fixtures for the tests of both packages; the conftest of each imports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from pytest_django import DjangoDbBlocker, Settings

from leasing.db import sql
from leasing.metrics import process as lease_metrics
from leasing.testing import keeper
from leasing.testing.keeper import ManualKeeper
from tasks.metrics import process as task_metrics
from tests import databases
from tests.leasing.support import FakeClock, stopped_clock
from tests.metrics import Value, reading
from tests.pages import signed_in
from tests.tracing import Spans, traced


def client_with(*permissions: str, **fields: Any) -> Any:
    """Return a fixture: a browser in which a user with ``permissions`` has signed in.

    ``operator = client_with("leasing.view_lease", "leasing.revoke_lease", name="olga")``
    """

    @pytest.fixture
    def client() -> Client:
        return signed_in(*permissions, **fields)

    return client


@pytest.fixture
def clocks() -> Iterator[ManualKeeper]:
    """The clocks of leases, of holders and database alike, moved by hand."""
    with keeper.manual_keeper() as clocks:
        yield clocks


@pytest.fixture
def holder_clock() -> Iterator[FakeClock]:
    """The clock of holders, which stands still; the test moves it."""
    with stopped_clock() as clock:
        yield clock


@pytest.fixture
def compatible(settings: Settings) -> None:
    """Open the API as the sample client expects it."""
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "compatible"}


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the portable form of every verb, on PostgreSQL too."""
    monkeypatch.setattr(sql, "serves", lambda using: False)


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """Count in this process from zero while the test runs, and return the registry."""
    modules: tuple[Any, ...] = (lease_metrics, task_metrics)
    for module in modules:
        for metric in vars(module).values():
            if isinstance(metric, Counter | Histogram):
                metric.clear()
        module.connect()
    yield REGISTRY
    for module in modules:
        module.disconnect()
        vars(module.STATE).update(vars(type(module.STATE)()))


@pytest.fixture
def value(registry: CollectorRegistry) -> Value:
    """Read what this process counts during the test."""
    return reading(registry)


@pytest.fixture(scope="module")
def shard(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A second database, by its alias."""
    folder = tmp_path_factory.mktemp("databases")
    with databases.made(django_db_blocker, databases.second("shard", folder)) as name:
        yield name


@pytest.fixture
def others_write(transactional_db: None) -> Iterator[list[str]]:
    """SQLite by Django's defaults, on which others write whenever they can; and how that ended."""
    if connection.vendor != "sqlite":
        pytest.skip("others have row locks")
    with databases.sqlite_by_default() as tried:
        yield tried


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Collect the spans of the test."""
    with traced() as spans:
        yield spans
