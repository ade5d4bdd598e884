"""Calls that schemathesis makes from the document."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.site import Principal
from tests.web_servers import Site

#: Codes of what is not in the document: a status, a type of content, a header, a body.
SERVER_ERROR = {"ST101", "ST102"}
UNDOCUMENTED = {"ST103", "ST104", "ST105", "ST106", "ST107", "ST108", "ST109", "ST110"}

#: Operations of which a rule joins several fields: a task's time by `scheduled_at` or by `delay`,
#: and what `unique_for` and `concurrency_limit` are for. The document has no words for it, so that
#: what looks right to it may get a 400. Nor does it list the queues of the site, of which others
#: get a 400, too.
JOINED = ["enqueue_task", "reschedule_task", "claim_next_task"]
#: Batches answer 200, with a 400 for each item that is wrong beyond its form.
BATCHES = ["enqueue_tasks", "renew_leases"]


@dataclass(frozen=True)
class Found:
    """The outcome of one run."""

    cases: int
    server_errors: int
    undocumented: int
    others: int
    text: str


def calls(
    site: Site,
    principal: Principal,
    document: dict[str, Any],
    folder: Path,
    *,
    examples: int,
    seed: int,
    coverage: bool,
) -> Found:
    """Run all checks in all phases as ``principal``.

    Args:
        site: The site.
        principal: Who calls.
        document: The document of the site.
        folder: The folder of what is written meanwhile.
        examples: Cases of each operation and phase.
        seed: The seed of what is generated.
        coverage: True to run the phase of bounds, too.
    """
    (folder / "openapi.json").write_text(json.dumps(document))
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    (folder / "schemathesis.toml").write_text(
        config(principal, report, examples=examples, seed=seed, coverage=coverage)
    )
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml"]
    command += ["run", "openapi.json", "--url", f"http://127.0.0.1:{site.port}", "--no-color"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if not report.exists():
        return Found(0, 0, 0, 1, ended.stdout + ended.stderr)
    told = json.loads(report.read_text())
    counts: dict[str, int] = {}
    for each in told["failures"]:
        counts[each["code"]] = counts.get(each["code"], 0) + each["count"]
    undocumented = sum(counts.get(code, 0) for code in UNDOCUMENTED)
    server_errors = sum(counts.get(code, 0) for code in SERVER_ERROR)
    others = sum(counts.values()) - undocumented - server_errors + len(told["errors"])
    if ended.returncode and not (undocumented + server_errors + others):
        others = 1
    text = (
        "" if ended.returncode == 0 else ended.stdout.partition("= FAILURES =")[2] or ended.stdout
    )
    return Found(told["test_cases"]["generated"], server_errors, undocumented, others, text)


def config(principal: Principal, report: Path, *, examples: int, seed: int, coverage: bool) -> str:
    """Return the configuration of schemathesis. Nothing in it is bounded by time: a loaded machine
    makes the same calls."""
    quoted = json.dumps  # a JSON string is one of TOML, too
    lines = [
        'hooks = "tests.fuzz.hooks"',
        f"seed = {seed}",
        "workers = 1",
        "continue-on-failure = true",
        'suppress-health-check = ["all"]',
        "request-timeout = 120",
        f"reports.json.path = {quoted(str(report))}",
        "cache.enabled = false",
        "analysis.constants.enabled = false",
        'generation.database = "none"',
        "generation.no-shrink = true",
        # The database stores no NUL in JSON: said by the patterns of names and texts, but of JSON
        # of any form there is no pattern. The corpus sends it everywhere.
        "generation.allow-x00 = false",
        f"generation.max-examples = {examples}",
        f"phases.coverage.enabled = {str(coverage).lower()}",
    ]
    if principal.scheme:
        kind = "bearer" if principal.scheme == "token" else "api_key"
        lines.append(f"auth.openapi.{principal.scheme}.{kind} = {quoted(principal.secret)}")
    lines += [f"headers.{name} = {quoted(value)}" for name, value in principal.headers.items()]
    accepted = '["2xx", 304, 400, 401, 403, 404, 409]'
    refused = '[200, "4xx"]'
    for names, check, statuses in (
        (JOINED, "positive_data_acceptance", accepted),
        (BATCHES, "negative_data_rejection", refused),
    ):
        for name in names:
            lines += ["[[operations]]", f"include-operation-id = {quoted(name)}"]
            lines.append(f"checks.{check}.expected-statuses = {statuses}")
    return "\n".join(lines) + "\n"
