"""Fixtures of the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leasing.keeper import keeper as process_keeper
from leasing.testing.keeper import ManualKeeper
from tests.leasing.contract.adapters import Adapter
from tests.plugin import CONTRACT


@pytest.fixture
def thing(
    adapter_class: type[Adapter],
    clocks: ManualKeeper,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> Iterator[Adapter]:
    """Return the object of this case, free at first, while the clocks stand still."""
    if adapter_class.in_database:
        request.getfixturevalue("db")
    record_property(CONTRACT, adapter_class.name)
    with adapter_class.environment():
        yield adapter_class()


@pytest.fixture
def live_thing(
    adapter_class: type[Adapter],
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> Iterator[Adapter]:
    """Return the object of this case, free at first, with the keeper of this process at work."""
    if adapter_class.in_database:
        request.getfixturevalue("transactional_db")
    record_property(CONTRACT, adapter_class.name)
    with adapter_class.environment():
        yield adapter_class()
        process_keeper.stop()
