"""The pytest plugin: keeps the keeper's threads out of tests whose work is rolled back.

They would see no row there, and on SQLite wait for ever. The marker ``live_keeper`` leaves a
test to them, a fixture of your own called ``leases_by_hand`` all the tests that it reaches. The
fixture ``lease_keeper`` stops the time of leases in any test, and moves it. See
``leasing.testing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

# Nothing of Django may be imported before the project's settings are known.
if TYPE_CHECKING:
    from leasing.testing.keeper import ManualKeeper

MARKER = "live_keeper: let the real keeper renew, though the test runs in a transaction"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def lease_keeper() -> Iterator[ManualKeeper]:
    """Moves the time of leases, which stands still meanwhile, and renews."""
    from leasing.testing.keeper import manual_keeper

    with manual_keeper() as keeper:
        yield keeper


@pytest.fixture(autouse=True)
def leases_by_hand(request: pytest.FixtureRequest) -> Iterator[None]:
    """Renews by hand where the test's work is rolled back; forgets what was held in memory."""
    if not _is_installed():
        yield
        return
    from leasing.stores.memory import clear_all
    from leasing.testing.keeper import manual_keeper

    by_hand = _is_rolled_back(request) and not request.node.get_closest_marker("live_keeper")
    with manual_keeper(stopped=False) if by_hand else nullcontext():
        yield
    clear_all()


def _is_installed() -> bool:
    try:
        from django.apps import apps
    except ImportError:
        return False
    return apps.ready and apps.is_installed("leasing")


def _is_rolled_back(request: pytest.FixtureRequest) -> bool:
    """Return True if the test runs in a transaction of unittest's TestCase, or of pytest-django."""
    from django.test import SimpleTestCase, TestCase

    if request.cls is not None and issubclass(request.cls, SimpleTestCase):
        return issubclass(request.cls, TestCase)
    fixtures = set(request.fixturenames)
    marker = request.node.get_closest_marker("django_db")
    if marker is not None and _truncates(*marker.args, **marker.kwargs):
        return False
    if fixtures & {"transactional_db", "live_server", "django_db_reset_sequences"}:
        return False
    return marker is not None or "db" in fixtures


def _truncates(transaction: bool = False, reset_sequences: bool = False, *_: Any, **__: Any) -> Any:
    """Return True if a ``django_db`` marker with these arguments commits what the test writes."""
    return transaction or reset_sequences
