"""Fuzzes the HTTP API: ``python -m tests.fuzz [--short] [--seed 7] [--db postgresql]``.

A site of its own is called by each kind of principal: with what schemathesis makes from the
document, all its checks and the links from answer to request. The corpus of known evils is a test:
``tests/test_hostile_requests.py``. The last line printed is the summary.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

from tests.fuzz.generated import Found, calls
from tests.fuzz.site import Principal, database, principals, site
from tests.web_servers import Site

#: Examples for each operation and phase.
FULL, SHORT = 60, 3
#: Those who are let in everywhere. In the short form the others do not get the phase of bounds:
#: most of that they are refused for who they are.
WHOLE_IN_SHORT = ("a token of every scope", "a stranger of the compatible mode")


def main(options: list[str]) -> int:
    """Fuzz the API; 0 when every answer was as it should be."""
    parser = argparse.ArgumentParser("tests.fuzz")
    parser.add_argument("--short", action="store_true", help="about two minutes")
    parser.add_argument("--seed", type=int, help="of what is generated; short: 7 by default")
    parser.add_argument("--db", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--examples", type=int, help="for each operation and phase")
    parser.add_argument("--only", default="", help="principals whose names contain this")
    asked = parser.parse_args(options)
    seed = asked.seed
    if seed is None:
        seed = 7 if asked.short else random.randrange(10**6)
    began = time.monotonic()
    print(f"fuzz: seed {seed}, {asked.db}", flush=True)
    with database(asked.db) as folder:
        total = Line("")
        everybody = principals()
        rows()
        for mode in dict.fromkeys(each.mode for each in everybody):
            with site(folder, mode) as (served, program):
                document = document_of(served, everybody[0])
                for principal in everybody:
                    if principal.mode != mode or asked.only not in principal.name:
                        continue
                    line = Line(principal.name)
                    whole = not asked.short or principal.name in WHOLE_IN_SHORT
                    size = asked.examples or (SHORT if asked.short else FULL)
                    line.generated(
                        calls(
                            served,
                            principal,
                            document,
                            folder,
                            examples=size,
                            seed=seed,
                            coverage=whole,
                        )
                    )
                    total.add(line)
                if "Traceback" in program.output:
                    print(program.output)
    print(
        f"fuzz: {total.cases:,} cases, 5xx = {total.server_errors}, undocumented answers = "
        f"{total.undocumented}, other complaints = {total.others}, {time.monotonic() - began:.0f} s"
    )
    return not total.cases or any(total.figures()[1:])


class Line:
    """The answers that one principal got."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases = self.server_errors = self.undocumented = self.others = 0

    def generated(self, found: Found) -> None:
        """Take in the outcome of what was generated."""
        self.cases += found.cases
        self.server_errors += found.server_errors
        self.undocumented += found.undocumented
        self.others += found.others + (not found.cases)
        print(f"{self.name}: {found.cases:,} generated cases {found.text}", flush=True)

    def figures(self) -> list[int]:
        """Return the cases, and how many answers were not as they should be."""
        return [self.cases, self.server_errors, self.undocumented, self.others]

    def add(self, line: Line) -> None:
        """Add the figures of ``line``."""
        figures = zip(self.figures(), line.figures(), strict=True)
        self.cases, self.server_errors, self.undocumented, self.others = (
            one + other for one, other in figures
        )


def document_of(served: Site, reader: Principal) -> dict[str, Any]:
    """Return the document of the site, as somebody reads it who may."""
    answer = served.call("GET", "/openapi.json", headers=reader.credentials)
    assert answer.status == 200, answer
    return dict(answer.body)


def rows() -> None:
    """Store rows of the kinds that requests are about."""
    from leasing.models import Lease
    from tasks.models import Queue, Schedule, Task

    Lease.objects.acquire("report:42", holder="web-1", ttl=86_400)
    Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 1})
    Task.objects.claim("worker-9", ttl=86_400)
    Queue.objects.declare(["default", "reports"])
    Schedule.objects.create(
        name="nightly", task_name="sample.sleep", cron="0 3 * * *", task_data={}
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
