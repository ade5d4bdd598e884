"""Fixtures of the contract suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasing.holding.keeper import keeper as process_keeper
from leasing.testing.keeper import ManualKeeper
from tests.leasing.contract.adapters import Adapter


@pytest.fixture
def thing(
    adapter_class: type[Adapter],
    clocks: ManualKeeper,
    request: pytest.FixtureRequest,
) -> Iterator[Adapter]:
    """Return the object of this case, free at first, while the clocks stand still."""
    if adapter_class.in_database:
        request.getfixturevalue("db")
    with adapter_class.environment():
        yield adapter_class()


@pytest.fixture
def live_thing(
    adapter_class: type[Adapter],
    request: pytest.FixtureRequest,
) -> Iterator[Adapter]:
    """Return the object of this case, free at first, with the keeper of this process at work."""
    if adapter_class.in_database:
        request.getfixturevalue("transactional_db")
    with adapter_class.environment():
        yield adapter_class()
        process_keeper.stop()
