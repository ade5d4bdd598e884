"""The pytest plugin and the test cases, as a user's project runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.plugin import ROOT

PATIENCE = 120
CASES = ROOT / "tests" / "leasing" / "plugin_cases.py"
PAGE = ROOT / "docs" / "testing.md"


def run(folder: Path, *command: str) -> str:
    """Return the output of ``python -m command`` in a project of a user's; it must succeed."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": "sqlite://:memory:",
        "PYTHONWARNINGS": "error",
    }
    env.pop("PYTEST_ADDOPTS", None)
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def pytest_on(request: pytest.FixtureRequest, *modules: Path, options: Sequence[str] = ()) -> str:
    # Where the package is installed the plugin comes with it.
    installed = request.config.pluginmanager.has_plugin("leasing")
    plugin = () if installed else ("-p", "leasing.pytest_plugin")
    options = ("-W", "error", "-p", "no:cacheprovider", "--strict-markers", "-q", *options)
    names = [module.name for module in modules]
    return run(modules[0].parent, "pytest", *plugin, *options, *names)


def examples() -> str:
    """The tests of the page, without the lines that call them there."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    kept = [block for block in blocks if "def leases_by_hand" not in block]
    text = re.sub(r"^test_\w+\(\)\n", "", "\n".join(kept), flags=re.MULTILINE)
    return f"import pytest\n{text}\npytestmark = pytest.mark.django_db\n"


@pytest.mark.slow
def test_the_cases_and_the_examples_of_the_page_pass(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cases, shown = tmp_path / "test_cases.py", tmp_path / "test_examples.py"
    shutil.copy(CASES, cases)
    shown.write_text(examples())

    printed = pytest_on(request, cases, shown)

    number = len(re.findall(r"^( {4}|)(async )?def test_", cases.read_text(), re.MULTILINE))
    number += 1  # one of them is run twice
    assert f"{number + examples().count('def test_')} passed" in printed


@pytest.mark.slow
def test_the_examples_pass_under_djangos_own_runner(tmp_path: Path) -> None:
    (tmp_path / "test_examples.py").write_text(examples())

    printed = run(tmp_path, "django", "test", "test_examples")
    assert "Ran 2 tests" in printed


@pytest.mark.slow
def test_a_project_without_django_is_left_alone(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    module = tmp_path / "test_sums.py"
    module.write_text("def test_sum():\n    assert 1 + 1 == 2\n")

    assert "1 passed" in pytest_on(request, module, options=["-p", "no:django"])
