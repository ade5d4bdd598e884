"""No command rots: each target of the Makefile is run by ``.ci/run``, by night, or by a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.plugin import ENVIRONMENT, ROOT

TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
#: What a test makes, in its smallest form, and what it needs.
SMALLEST = {
    "bench": (["SHORT=1", "REPORT_ONLY=1", "ONLY=looks"], ""),
    "scale": ([], ""),
    "surface": ([], ""),
    "drawing": ([], "dot"),
    "format": ([], str(Path(sys.executable).with_name("ruff"))),
    "clean": ([], ""),
}
#: What other tests do, without make; what runs along with others.
ELSEWHERE = {"demo": "test_demo.py", "wheel": "test_packaging.py", "incidents": "incidents"}
OF_OTHERS = {"test-all": {"test", "slow"}, "docs": {"check"}}


def runs_by_ci() -> set[str]:
    return set(re.findall(r"^step make ([a-z-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE))


def runs_by_night() -> set[str]:
    workflow: Any = YAML(typ="safe").load((ROOT / ".github/workflows/ci.yml").read_text())
    return {each.split()[0] for each in workflow["jobs"]["night"]["strategy"]["matrix"]["command"]}


def test_each_target_is_run_somewhere() -> None:
    run = runs_by_ci() | runs_by_night() | SMALLEST.keys() | ELSEWHERE.keys()
    run |= {target for target, made_of in OF_OTHERS.items() if made_of <= run}

    assert set(TARGETS) - run == set()


def test_each_target_that_is_run_is_there() -> None:
    assert (runs_by_ci() | runs_by_night() | SMALLEST.keys() | ELSEWHERE.keys()) <= set(TARGETS)
    assert all((ROOT / "tests" / name).exists() for name in ELSEWHERE.values())


def test_each_workload_is_measured_by_night() -> None:
    workflow: Any = YAML(typ="safe").load((ROOT / ".github/workflows/ci.yml").read_text())
    commands = workflow["jobs"]["night"]["strategy"]["matrix"]["command"]

    (bench,) = (command for command in commands if command.startswith("bench"))
    assert " ONLY=" not in bench


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "last", "code"),
    [
        ({}, "24 passed, 0 failed", 0),
        (
            {"make slow": (1, "== 2 failed, 4 passed, 1 error in 3.21s ==")},
            "20 passed, 3 failed",
            1,
        ),
        ({"make check": (1, "Found 3 errors.")}, "24 passed, 1 failed", 1),
        (
            {"make check": (1, ""), "make slow": (1, "== 2 failed, 4 passed in 3.21s ==")},
            "20 passed, 3 failed",
            1,
        ),
    ],
    ids=["green", "two tests and a fixture fail", "a step without tests fails", "both fail"],
)
def test_ci_ends_with_what_passed_and_failed_in_all_runs(
    tmp_path: Path, said: dict[str, tuple[int, str]], last: str, code: int
) -> None:
    tests = (0, "==== 8 passed, 3 skipped in 63.04s (0:01:03) ====\n12 passed, as a log says")
    answers = {"make test": tests, "make slow": tests, "make browser": tests, **said}
    (tmp_path / "make").write_text('#!/bin/sh\ncase "make $*" in\n')
    with (tmp_path / "make").open("a") as make:
        for command, (answer, text) in answers.items():
            make.write(f"'{command}') echo '{text}'; exit {answer};;\n")
        make.write("esac\n")
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)

    done = subprocess.run(
        ["bash", ROOT / ".ci/run"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        text=True,
        stdout=subprocess.PIPE,
    )

    assert done.stdout.splitlines()[-1] == last
    assert done.returncode == code
    assert re.search(r"^=== make test: \d+ s$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this one, that a command may change."""
    folder = tmp_path_factory.mktemp("checkout")
    hidden = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.sqlite3*")
    return Path(shutil.copytree(ROOT, folder / "copy", ignore=hidden))


@pytest.mark.slow
@pytest.mark.parametrize("target", SMALLEST)
def test_a_target_does_its_work(checkout: Path, target: str) -> None:
    options, program = SMALLEST[target]
    if program and not shutil.which(program):
        pytest.skip(f"there is no {program}")
    # The environment of the tests stands for the one that make would make.
    stamps = [f"-o.venv/{name}.stamp" for name in ("venv", "demo", "test", "dev")]
    env = {name: each for name, each in os.environ.items() if name not in ENVIRONMENT}
    del env["DATABASE_URL"]

    done = subprocess.run(
        ["make", *stamps, target, f"RUN={sys.executable}", *options],
        cwd=checkout,
        env=env | {"PYTEST_ADDOPTS": ""},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    assert done.returncode == 0, done.stdout
