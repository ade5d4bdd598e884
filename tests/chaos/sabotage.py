"""Copies of the project that lack one condition each: a run must find what is wrong with them.

``python -m tests.chaos.sabotage`` tries all, or those that it names, and prints what the checker
said. A text that isn't in its file exactly once is an error: whoever changes it carries the
sabotage along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.plugin import ROOT

#: What a copy has.
COPIED = ("leasing", "tasks", "project", "templates", "tests", "manage.py", "pyproject.toml")


class Sabotage(NamedTuple):
    """A condition that is taken away, and the run that misses it."""

    file: str
    text: str
    replacement: str
    workload: str
    #: The fault that it takes.
    fault: str
    #: The rule that is broken.
    rule: str
    seconds: int = 15


SABOTAGES = {
    "a renewal does not compare the grant": Sabotage(
        "leasing/querysets.py",
        "return self._everything().filter(pk=row.pk, grant_id=row.grant_id).holding()",
        "return self._everything().filter(pk=row.pk).holding()",
        "leases",
        "stop",
        "both believed to hold it",
        30,
    ),
    "a fenced row does not compare the token": Sabotage(
        "leasing/fencing.py",
        'below = {"fence__lt" if self._strictly else "fence__lte": self.token}',
        "below: dict[str, int] = {}",
        "register",
        "stop-inside",
        "'fenced:",
        24,
    ),
    "acquire does not look at expires_at": Sabotage(
        "leasing/models/lease.py",
        "return self.filter(Q(released_at__isnull=False) | Q(expires_at__lte=graced))",
        "return self.filter(Q(released_at__isnull=False) | Q(expires_at__isnull=False))",
        "leases",
        "kill",
        "two holders at once",
        8,
    ),
    "a completion does not compare the grant": Sabotage(
        "tasks/querysets/sql/ends.py",
        "AND uuid_send(t.grant_id) = substring(",
        "AND '' <> substring(",
        "queue",
        "stop",
        "completed by its holder",
        45,
    ),
    "a Redis grants what is held": Sabotage(
        "leasing/stores/redis_scripts.py",
        "if it.ends > now then return {'held', it.holder, it.ends, now} end",
        "",
        "redis",
        "stop",
        "both believed to hold it",
        12,
    ),
    "a member of a majority grants what is held": Sabotage(
        "leasing/stores/redis_scripts.py",
        "if it.ends > now then return {'held', it.holder, it.ends, now} end",
        "",
        "majority",
        "stop",
        "both believed to hold it",
        24,
    ),
    "trust begins with the answer": Sabotage(
        "leasing/holding/term.py",
        "believed = sent_at + renewal.remaining - self.margin",
        "believed = self._keeper.clock() + renewal.remaining - self.margin",
        "leases",
        "late-and-black",
        "both believed to hold it",
        24,
    ),
}


def sabotaged(sabotage: Sabotage, root: Path = ROOT) -> str:
    """Return the file with the replacement. Raises ValueError unless the text is there once."""
    text = (root / sabotage.file).read_text()
    if (count := text.count(sabotage.text)) != 1:
        raise ValueError(f"{count} times in {sabotage.file}, not once: {sabotage.text}")
    return text.replace(sabotage.text, sabotage.replacement)


def run(sabotage: Sabotage, folder: Path) -> str:
    """Run the workload on a copy in ``folder``. Return what is printed; raises AssertionError if
    three seeds find nothing."""
    changed = sabotaged(sabotage)
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    (folder / sabotage.file).write_text(changed)
    printed = ""
    for seed in range(1, 4):
        command = [sys.executable, "-m", "tests.chaos", "--only", sabotage.workload, "--discard"]
        command += ["--seconds", str(sabotage.seconds), "--seed", str(seed)]
        done = subprocess.run(
            [*command, "--faults", sabotage.fault],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        printed += done.stdout
        if done.returncode == 1 and sabotage.rule in done.stdout:
            return printed
    raise AssertionError(f"not found: {printed}")


def main(names: list[str]) -> None:
    for name, sabotage in SABOTAGES.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory(prefix="leasing-sabotage-") as folder:
                print(f"{name}\n{run(sabotage, Path(folder))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
