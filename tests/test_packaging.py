"""The wheel holds what it should, and works where nothing but Django is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import django
import pytest

from tests.plugin import ENVIRONMENT, ROOT

PACKAGES = ("leasing", "tasks")
IGNORED = {"__pycache__"}
TIMEOUT = 120

pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path) -> str:
    """What a command printed; fails the test with it when the command failed."""
    # Nothing of this project's environment may help the one that is tried.
    hidden = {*ENVIRONMENT, "DATABASE_URL", "PYTHONPATH"}
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
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


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
        assert any(name.startswith(f"{package}/templates/{package}/") for name in files)
    assert any("/static/" in name for name in files)


def test_the_wheel_needs_django_and_what_reads_cron_expressions(
    wheel: Path, names: set[str]
) -> None:
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()

    needs = [line for line in lines if line.startswith("Requires-Dist:")]
    core = sorted(need for need in needs if "extra ==" not in need)
    assert core == ["Requires-Dist: cronsim>=2.6", "Requires-Dist: django>=5.2"]


def test_the_readme_example_works_in_an_empty_project(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    pip = (python, "-m", "pip", "-q", "--disable-pip-version-check")
    run(*pip, "install", wheel, f"Django=={django.__version__}", cwd=tmp_path)
    run(python, "-m", "django", "startproject", "site_of_a_user", ".", cwd=tmp_path)
    with (tmp_path / "site_of_a_user" / "settings.py").open("a") as settings:
        settings.write('\nINSTALLED_APPS += ["leasing", "tasks"]\n')
    with (tmp_path / "site_of_a_user" / "urls.py").open("a") as urls:
        urls.write("\nfrom django.urls import include\n")
        for package in PACKAGES:
            urls.write(f'urlpatterns.append(path("ops/", include("{package}.urls")))\n')
    example = tmp_path / "example.py"
    example.write_text(f"import django\n\ndjango.setup()\n\n{readme_example()}")

    run(python, "manage.py", "check", cwd=tmp_path)
    run(python, "manage.py", "migrate", "-v0", cwd=tmp_path)
    run("env", "DJANGO_SETTINGS_MODULE=site_of_a_user.settings", python, example, cwd=tmp_path)
