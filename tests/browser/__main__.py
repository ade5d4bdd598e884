"""Runs the browser's checks and tells them in a table: ``python -m tests.browser [options]``.

What options are given go to pytest. The last line printed is the summary.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
#: How many there are.
CHECKS = 30
_NAMED = re.compile(r"::test_(\d\d)_(\w+)")


class Check:
    """The result of one check: of all tests of its number."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.figures: list[str] = []
        self.seconds = 0.0
        self.failures = 0

    def add(self, sentence: str, report: pytest.TestReport) -> None:
        """Take in one phase of one of its tests."""
        said = sentence.replace("_", " ")
        if said not in self.sentences:
            self.sentences.append(said)
        self.seconds += report.duration
        self.failures += not report.passed
        if report.when == "call":
            self.figures += [str(text) for name, text in report.user_properties if name == "figure"]


class Checks:
    """A plugin of pytest that takes down what became of each check."""

    def __init__(self) -> None:
        self.of_number: dict[int, Check] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        named = _NAMED.search(report.nodeid)
        if named:
            self.of_number.setdefault(int(named[1]), Check()).add(named[2], report)

    def table(self) -> str:
        """A line for each check: number, outcome, seconds, what it says, its figures."""
        lines = []
        for number, check in sorted(self.of_number.items()):
            word = "FAILED" if check.failures else "passed"
            lines.append(f"{number:2}  {word}  {check.seconds:5.1f} s  {check.sentences[0]}")
            lines += [f"{'':21}{sentence}" for sentence in check.sentences[1:]]
            lines += [f"{'':23}{figure}" for figure in check.figures]
        return "\n".join(lines)


def main(options: list[str]) -> int:
    """Run the checks; 0 when all that were picked are as they should be."""
    checks, start = Checks(), time.monotonic()
    # To fill a table with a million rows takes a loaded machine a while.
    given = ["--db", "postgresql", "-o", "faulthandler_timeout=400", str(FOLDER)]
    # Later options count: "-n0" for a debugger.
    given += ["--numprocesses", "2", "--dist", "worksteal", "--max-worker-restart", "0", *options]
    code = int(pytest.main(given, plugins=[checks]))
    failed = sum(bool(check.failures) for check in checks.of_number.values())
    passed = len(checks.of_number) - failed
    print(f"\n{checks.table()}\n")
    print(
        f"browser: {passed} passed, {failed} failed of {CHECKS} checks on PostgreSQL, "
        f"{time.monotonic() - start:.0f} s"
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
