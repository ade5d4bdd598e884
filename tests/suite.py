"""Runs the suite for make: ``python -m tests.suite [rest | wheel | matrix [short] [3.12/6.1]]``.

Without arguments on SQLite, on PostgreSQL and on the wheel, where SQLite alone gets what is marked
`once`, and none what is marked `rest`; ``rest`` these two on PostgreSQL; ``wheel`` the wheel
alone; ``matrix`` everything on both databases under each pair of Python and Django that is found
here, and ``matrix short`` what goes without arguments, but for the wheel. Tests that touch no
database run once. The last line printed is the summary. Needs nothing but the standard library,
since ``matrix`` builds the environments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).parent.parent
PAIRS = ("3.11/5.2", "3.12/5.2", "3.12/6.1", "3.13/6.0")
#: Four keep two cores busy, and each more takes some seconds of CPU to import and collect
#: everything. One that hangs has said where, and is not replaced.
WORKERS = ["--dist", "worksteal", "--max-worker-restart", "0", "--numprocesses"]
SQLITE = ["--db", "sqlite", *WORKERS, "2"]
POSTGRESQL = ["--db", "postgresql", *WORKERS, "2"]
ONLY_DB = "--only-db"
#: Runs of pytest that go on side by side. SQLite has what is marked `once`, since a test takes less
#: time there, and PostgreSQL the tests that touch no database: so both runs last equally long.
TEST = {
    "PostgreSQL": [*POSTGRESQL, "--once", "not"],
    "SQLite": [*SQLITE, ONLY_DB, "--no-rest"],
    "the wheel": ["-m", "packaging", "tests/test_packaging.py"],
}
#: Nothing goes on beside it, and many of its tests wait for processes.
REST = {"PostgreSQL": ["--db", "postgresql", *WORKERS, "4", ONLY_DB, "--once", "only"]}
WHEEL = {"the wheel": TEST["the wheel"]}
DATABASES = {"PostgreSQL": [*POSTGRESQL, ONLY_DB], "SQLite": SQLITE}
SHORT = {name: options for name, options in TEST.items() if name in DATABASES}
FEWEST_PAIRS = 2
#: What pytest answers when PYTEST_ADDOPTS picks none of the tests of a run.
NOTHING_PICKED = 5

Outcome = tuple[bool, str]


class Run(NamedTuple):
    """The outcome of one run of pytest: on what, and how many tests did what."""

    well: bool
    on: str
    counts: Counter[str]


def run(python: str, name: str, options: list[str], output: IO[str] | None = None) -> Run:
    """One run of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        counts_file = Path(folder, "counts.json")
        command = [python, "-m", "pytest", *options, "--counts", str(counts_file)]
        code = subprocess.run(
            command, cwd=ROOT, env=environment(folder), stdout=output, stderr=output
        ).returncode
        if not counts_file.exists():
            return Run(False, name, Counter({"run without a result": 1}))
        counts = json.loads(counts_file.read_text())
    on = counts.pop("on")
    return Run(code in (0, NOTHING_PICKED), name if name == "the wheel" else on, Counter(counts))


def environment(folder: str) -> dict[str, str]:
    """The environment of a run that keeps its files in ``folder``.

    What one process has compiled is there for the next, or all of them, and the processes of the
    tests, would compile everything again. Runs that go on side by side would clear away each
    other's folders, and pytest fails as it ends when one vanishes under it.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTEST_DEBUG_TEMPROOT": folder}


def run_all(python: str, runs: dict[str, list[str]]) -> Outcome:
    """Runs side by side, whatever the outcome of each: True if all went well, and a phrase
    such as "312 passed on SQLite". The first is seen as it goes, the others once they have
    ended."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(runs)) as pool:
        first, *others = [
            pool.submit(run_aside if number else run, python, name, options)
            for number, (name, options) in enumerate(runs.items())
        ]
        done = [first.result(), *(other.result() for other in others)]
    phrases = ", ".join(f"{tell(each.counts)} on {each.on}" for each in done)
    return all(each.well for each in done), f"{phrases}, in {time.monotonic() - began:.0f} s"


def tell(counts: Counter[str]) -> str:
    """The counts that matter, such as "310 passed, 2 skipped"."""
    kinds = ("passed", "failed", "error", "skipped", "xfailed", "run without a result")
    told = [f"{counts[kind]} {kind}" for kind in kinds if counts[kind]]
    return ", ".join(told) or "nothing run"


def run_aside(python: str, name: str, options: list[str]) -> Run:
    """A run whose output is shown in one piece."""
    with tempfile.TemporaryFile("w+") as output:
        outcome = run(python, name, options, output)
        output.seek(0)
        sys.stdout.write(output.read())
        sys.stdout.flush()
    return outcome


def run_matrix(pairs: list[str], runs: dict[str, list[str]]) -> Outcome:
    """Do the runs under each pair, without any under all. Pairs whose interpreter is missing are
    told; they are a failure where they were asked for, or fewer than ``FEWEST_PAIRS`` are left."""
    outcomes: list[Outcome] = []
    missing: list[str] = []
    fewest = len(pairs) or FEWEST_PAIRS
    for pair in pairs or PAIRS:
        interpreter = find_interpreter(pair.partition("/")[0])
        if interpreter is None:
            missing.append(f"{pair}: no interpreter")
            continue
        print(f"=== Python/Django {pair}", flush=True)
        try:
            well, phrase = run_all(make_environment(pair, interpreter), runs)
        except subprocess.CalledProcessError as error:
            well, phrase = False, f"no environment ({error})"
        outcomes.append((well, f"{pair}: {phrase}"))
    phrases = [phrase for _, phrase in outcomes] + missing
    if len(outcomes) < fewest:
        phrases.append(f"wanted at least {fewest} pairs")
    return len(outcomes) >= fewest and all(well for well, _ in outcomes), "; ".join(phrases)


def find_interpreter(version: str) -> str | None:
    """A Python of that version, on PATH or of pyenv, that can make environments."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = os.environ.get("PYENV_ROOT")
    if not pyenv and shutil.which("pyenv"):
        pyenv = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
    for root in filter(None, (pyenv, os.path.expanduser("~/.pyenv"))):
        found = Path(root, "versions").glob(f"{version}.*/bin/python{version}")
        candidates += sorted(map(str, found), reverse=True)
    # A name on PATH may be a shim that refuses: only its answer counts.
    answer = f"import ensurepip, sys; print(sys.executable * (sys.version[:4] == {version!r}))"
    for candidate in filter(None, candidates):
        probe = subprocess.run([candidate, "-c", answer], capture_output=True, text=True)
        if path := probe.stdout.strip():
            return path
    return None


def make_environment(pair: str, interpreter: str) -> str:
    """The Python of the pair's environment, made or brought up to date when it needs to be."""
    django = pair.partition("/")[2]
    folder = ROOT / ".matrix" / pair.replace("/", "-")
    python, stamp = folder / "bin" / "python", folder / "stamp"
    metadata = ROOT / "pyproject.toml"
    if not stamp.exists() or stamp.stat().st_mtime < metadata.stat().st_mtime:
        pip = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
        extras = "postgres,api,client"
        if django == "5.2":  # Django 6 has tasks of its own
            extras += ",backport"
        wanted = ["--editable", f".[{extras}]", "--group", "test", f"Django=={django}.*"]
        subprocess.run([*pip, *wanted], cwd=ROOT, check=True)
        stamp.touch()
    return str(python)


def main(args: list[str]) -> int:
    """Run what the arguments ask for."""
    match args:
        case []:
            name, (well, phrase) = "test", run_all(sys.executable, TEST)
        case ["rest"]:
            name, (well, phrase) = "rest", run_all(sys.executable, REST)
        case ["wheel"]:
            name, (well, phrase) = "wheel", run_all(sys.executable, WHEEL)
        case ["matrix", "short", *pairs]:
            name, (well, phrase) = "matrix", run_matrix(pairs, SHORT)
        case ["matrix", *pairs]:
            name, (well, phrase) = "matrix", run_matrix(pairs, DATABASES)
        case _:
            sys.exit(__doc__)
    print(f"{name}: {phrase}")
    return not well


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
