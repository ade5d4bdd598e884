"""The wheel holds what it should, and works where nothing but Django is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.plugin import ENVIRONMENT, ROOT

PACKAGES = ("leasing", "tasks")
#: The labels of their apps, which are the folders of their templates.
LABELS = {"leasing": "leasing", "tasks": "leasing_tasks"}
IGNORED = {"__pycache__"}
TIMEOUT = 120
#: What is run of pip: the one of this environment, on whatever environment it is told.
PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """Return the output of a command; fails the test with it when the command failed."""
    # Nothing of this project's environment may help the one that is tried.
    hidden = {*ENVIRONMENT, "DATABASE_URL", "PYTHONPATH", "PYTEST_ADDOPTS"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        text=True,
        timeout=TIMEOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def readme_example() -> str:
    """The Python of README's section that has "example" in its heading."""
    level = 0  # of that heading, 0 outside its section
    fence = ""  # the language of the block we are in
    lines: list[str] = []
    for line in (ROOT / "README.md").read_text().splitlines():
        if line.startswith("```"):
            fence = "" if fence else line[3:].strip() or "text"
        elif fence:
            if level and fence == "python":
                lines.append(line)
        elif heading := re.match(r"(#+) (.*)", line):
            if len(heading[1]) <= level:
                level = 0
            if not level and "example" in heading[2].lower():
                level = len(heading[1])
    assert lines, "README.md has no Python in a section named Example"
    return "\n".join(lines)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def build_wheel(folder: Path) -> Path:
    """Build the wheel into ``folder``, which is empty."""
    # By the hatchling of this environment, since an isolated one would be downloaded.
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(*PIP, "wheel", *options, ROOT, cwd=folder)
    (built,) = folder.iterdir()
    return built


def test_the_sources_are_complete_without_pictures_and_dumps(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "docs/index.md"} <= names
    assert {"manage.py", "Makefile", "leasing/py.typed", "tests/plugin.py"} <= names
    assert not [name for name in names if name.endswith((".png", "killers.json", ".sqlite3"))]
    assert not [name for name in names if ".schemathesis" in name or ".hypothesis" in name]


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def make_environment(folder: Path, wheel: Path, *distributions: str) -> Path:
    """The Python of an environment that holds the wheel and these distributions with what they
    need, and nothing else.

    The wheel is installed by pip from no index, which fails if it needs more.
    """
    python = make_bare_environment(folder, *distributions)
    run(*PIP, "--python", python, "install", "--no-index", wheel, cwd=folder.parent)
    return python


def make_bare_environment(folder: Path, *distributions: str) -> Path:
    """The Python of an environment that holds these distributions with what they need.

    They are links to those of this environment, where to download and unpack them would take
    most of the time.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in sorted(entries(*distributions)):
        (packages / entry.name).symlink_to(entry)
    return python


def entries(*distributions: str) -> set[Path]:
    """Return the files in this environment's site-packages of these distributions and their
    needs."""
    site_packages = Path(sysconfig.get_path("purelib"))
    found = {
        site_packages / file.parts[0]
        for name in closure(*distributions)
        for file in distribution(name).files or ()
        if file.parts[0] not in ("..", "__pycache__")
    }
    assert all(path.exists() for path in found)
    return found


def closure(*distributions: str) -> set[str]:
    """Return these distributions and all that they need here, extras left out."""

    def needs(name: str) -> Iterator[str]:
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield requirement.name

    found: set[str] = set()
    wanted = [*distributions]
    while wanted:
        if (name := wanted.pop()) not in found:
            found.add(name)
            wanted += needs(name)
    return found


def test_the_clients_work_where_httpx_alone_is_installed(wheel: Path, tmp_path: Path) -> None:
    python = make_bare_environment(tmp_path / "env", "httpx")
    # As with the extra `client`, but for Django, which the wheel asks for.
    run(*PIP, "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    program = """
import importlib.util
import leasing.client, tasks.client
for client in (leasing.client, tasks.client):
    for name in client.__all__:
        getattr(client, name)
print(importlib.util.find_spec("django"))
"""

    assert run(python, "-W", "error", "-c", program, cwd=tmp_path) == "None\n"
    assert "--token-file" in run(python, "-m", "tasks.client", "--help", cwd=tmp_path)


def start_project(python: Path, folder: Path) -> Path:
    """The settings of a new project that has both packages installed."""
    run(python, "-m", "django", "startproject", "site_of_a_user", ".", cwd=folder)
    with (folder / "site_of_a_user" / "settings.py").open("a") as settings:
        settings.write('\nINSTALLED_APPS += ["leasing", "tasks"]\n')
    return folder / "site_of_a_user"


def test_the_wheel_holds_exactly_the_two_packages(wheel: Path, names: set[str]) -> None:
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"

    assert {name.partition("/")[0] for name in names} == {*PACKAGES, info}


def test_the_wheel_holds_every_file_of_the_packages(names: set[str]) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not IGNORED & set(path.parts)
    }

    assert files == {name for name in names if name.startswith(tuple(f"{p}/" for p in PACKAGES))}
    for package in PACKAGES:
        assert f"{package}/py.typed" in files
        assert f"{package}/migrations/0001_initial.py" in files
        assert any(name.startswith(f"{package}/templates/{LABELS[package]}/") for name in files)
    assert any("/static/" in name for name in files)


def test_the_wheel_needs_django_and_what_reads_cron_expressions(
    wheel: Path, names: set[str]
) -> None:
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()

    needs = [line for line in lines if line.startswith("Requires-Dist:")]
    core = sorted(need for need in needs if "extra ==" not in need)
    assert core == ["Requires-Dist: cronsim>=2.6", "Requires-Dist: django<6.2,>=5.2"]


def test_the_readme_example_works_in_an_empty_project(wheel: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", wheel, "Django", "cronsim")
    project = start_project(python, tmp_path)
    with (project / "urls.py").open("a") as urls:
        urls.write("\nfrom django.urls import include\n")
        for package in PACKAGES:
            urls.write(f'urlpatterns.append(path("ops/", include("{package}.urls")))\n')
    example = tmp_path / "example.py"
    example.write_text(f"import django\n\ndjango.setup()\n\n{readme_example()}")

    run(python, "manage.py", "check", cwd=tmp_path)
    run(python, "manage.py", "migrate", "-v0", cwd=tmp_path)
    run("env", "DJANGO_SETTINGS_MODULE=site_of_a_user.settings", python, example, cwd=tmp_path)


TEST_OF_A_USER = """
import pytest

from leasing.models import Lease
from tasks import handler
from tasks.models import Task


@pytest.mark.django_db
def test_time_stands_still_until_it_is_moved(lease_keeper):
    with Lease.objects.hold("crane", ttl=30) as hold:
        lease_keeper.advance(600)
        hold.ensure()


@pytest.mark.django_db
def test_a_task_runs(drain_tasks, own_handlers):
    handler("sums.add")(lambda ctx, a, b: a + b)
    task = Task.objects.enqueue("sums.add", {"a": 1, "b": 2})
    drain_tasks()
    task.refresh_from_db()
    assert task.status == "succeeded"
"""


def test_the_fixtures_work_where_only_pytest_ini_names_the_settings(
    wheel: Path, tmp_path: Path
) -> None:
    """Both plugins are loaded as entry points, before any settings are known."""
    python = make_environment(tmp_path / "venv", wheel, "Django", "cronsim", "pytest-django")
    start_project(python, tmp_path)
    ini = "[pytest]\nDJANGO_SETTINGS_MODULE = site_of_a_user.settings\n"
    (tmp_path / "pytest.ini").write_text(ini)
    (tmp_path / "test_of_a_user.py").write_text(TEST_OF_A_USER)

    printed = run(python, "-m", "pytest", "-W", "error", "test_of_a_user.py", cwd=tmp_path)

    assert "2 passed" in printed
    assert "settings: site_of_a_user.settings (from ini)" in printed
