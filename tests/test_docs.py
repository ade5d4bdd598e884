"""The documentation: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import get_commands, load_command_class
from django.test import Client

from leasing.conf import leasing_settings
from leasing.runtime.tracepoints import points as leases
from tasks import registry
from tasks.conf import task_settings
from tasks.runtime.tracepoints import points as tasks
from tasks.scheduling import declarations
from tests.plugin import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of ``language`` on ``page``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(start: str) -> list[tuple[str, str]]:
    """(page, command line) of every documented command that begins with ``start``."""
    return [
        (page.name, line)
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith(start)
    ]


@pytest.fixture
def own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers and schedules that a page declares are gone after it, and nobody traces."""
    for points in (leases, tasks):
        monkeypatch.setattr(points, "tracer", None)
    monkeypatch.setattr(declarations, "_declared", dict(declarations._declared))
    monkeypatch.setattr(registry, "_handlers", dict(registry._handlers))


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("own_handlers")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path) -> None:
    namespace: dict[str, Any] = {"INSTALLED_APPS": []}

    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize(("page", "line"), commands("python manage.py"))
def test_a_documented_command_is_understood(page: str, line: str) -> None:
    name, *arguments = shlex.split(line)[2:]

    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(arguments)


@pytest.mark.parametrize(("page", "line"), commands("make"))
def test_a_documented_target_is_made(page: str, line: str) -> None:
    _, target, *_ = line.split()

    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_documented_command_is_tried_by_a_test() -> None:
    tried = ("python manage.py", "make", "curl", "pip install 'django-leasing[", "celery -A ")

    assert [line for line in commands("") if not line[1].startswith(tried)] == []


@pytest.fixture
def open_api(settings: Any) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "compatible"}


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("open_api")
def test_the_requests_of_the_api_page_are_answered(client: Client) -> None:
    for _, line in commands("curl"):
        method, url, body = request_of(line)
        response = client.generic(method, url, body, content_type="application/json")
        assert 200 <= response.status_code < 300, (line, response.content)


def request_of(line: str) -> tuple[str, str, str]:
    """Method, path and body of a documented curl command."""
    words = shlex.split(line)[1:]
    options = {"-X": "GET", "-d": "", "-H": ""}
    url = ""
    while words:
        word = words.pop(0)
        if word in options:
            options[word] = words.pop(0)
        else:
            url = word
    if options["-d"]:
        json.loads(options["-d"])
    return options["-X"], urlsplit(url).path, options["-d"]


def test_every_test_that_the_page_of_features_names_is_there() -> None:
    text = (ROOT / "docs" / "features.md").read_text()
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)

    missing = [
        (file, test)
        for file, test in named
        if not (ROOT / "tests" / file).exists()
        or test
        and f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ]

    assert len(named) > 30
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+?)\)", page.read_text())

    missing = [to for to in links if "://" not in to and not (page.parent / to).exists()]
    assert missing == []


@pytest.mark.parametrize("settings_of", [leasing_settings, task_settings])
def test_every_setting_is_documented(settings_of: Any) -> None:
    page = (ROOT / "docs" / "settings.md").read_text()

    assert [name for name in settings_of.known() if f"`{name}`" not in page] == []
