"""Fixtures of the contract suite, and the count of its cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from leasing.keeper import keeper as process_keeper
from leasing.manual import ManualKeeper, manual_keeper
from tests.leasing.contract.adapters import Adapter
from tests.plugin import DATABASE

KEY = "contract"


class Tally:
    """Counts the cases of the contract that held, and says so at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._counts: Counter[str] = Counter()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._counts.update(str(value) for name, value in report.user_properties if name == KEY)

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        database = self._config.stash[DATABASE].name
        cases = ", ".join(f"{name} {count}" for name, count in self._counts.items())
        terminalreporter.write_line(f"contract cases on {database}: {cases}")


@pytest.fixture(scope="session", autouse=True)
def counted(request: pytest.FixtureRequest) -> None:
    """Has the cases counted."""
    plugins = request.config.pluginmanager
    if not plugins.has_plugin(Tally.__name__):
        plugins.register(Tally(request.config), Tally.__name__)


@pytest.fixture
def keeper() -> Iterator[ManualKeeper]:
    with manual_keeper() as keeper:
        yield keeper


@pytest.fixture
def thing(
    adapter_class: type[Adapter],
    keeper: ManualKeeper,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> Iterator[Adapter]:
    """What this case holds, free at first, in a time that stands still."""
    if adapter_class.in_database:
        request.getfixturevalue("db")
    record_property(KEY, adapter_class.name)
    with adapter_class.environment():
        yield adapter_class()


@pytest.fixture
def live_thing(
    adapter_class: type[Adapter],
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> Iterator[Adapter]:
    """What this case holds, free at first, with the keeper of this process at work."""
    if adapter_class.in_database:
        request.getfixturevalue("transactional_db")
    record_property(KEY, adapter_class.name)
    with adapter_class.environment():
        yield adapter_class()
        process_keeper.stop()
