"""The documentation: its code runs, its commands exist, its figures are those of the code. `make
docs` checks its links."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from celery.bin import beat, worker
from django.core.management import get_commands, load_command_class
from django.template import engines
from django.test import Client

import leasing.tracing
import tasks.tracing
from leasing.conf import leasing_settings
from leasing.diagnosis.ttl import spare
from tasks import registry
from tasks.client import __main__ as remote
from tasks.conf import KEPT, task_settings
from tasks.execution.context import Context
from tasks.models import Schedule, Worker
from tasks.scheduling import declarations
from tests import first_hour, tutorial
from tests.plugin import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))

#: The languages of fenced blocks. Those that no test here runs: `py` needs the models of
#: tests/leasing/views/test_pages.py, the projects of tests/first_hour.py, tests/tutorial.py and
#: tests/deployed.py, the service of tests/tasks/client/test_page.py, the rows of
#: tests/test_migrating.py, or a library; `text` is the output that tests/tasks/test_tracing.py and
#: tests/tutorial.py compare, `yaml` is for the promtool of tests/test_monitoring.py, `sql` is what
#: not to do. What is configured on the page about deployment, in these and in `ini`, `dockerfile`
#: and `nginx`, is for tests/test_deployment.py.
LANGUAGES = {"python", "console", "html", "py", "text", "sql", "yaml"}
#: Directives of the site, which `make docs` builds.
DIRECTIVES = {"{toctree}", "{include}", "{eval-rst}", "{image}"}
CONFIGURATIONS = {"ini", "dockerfile", "nginx"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of ``language`` on ``page``, in order: fenced ones, and those in HTML comments,
    which readers do not see. These hold what only a runner needs: set-up, stops, assertions."""
    form = rf"^(?:```{language}\n(.*?)^```|<!--{language}\n(.*?)^-->)$"
    found = re.finditer(form, page.read_text(), re.DOTALL | re.MULTILINE)
    return [each[1] or each[2] for each in found]


def commands(start: str) -> list[tuple[str, str]]:
    """(page, command line) of every documented command that begins with ``start``, after the
    variables that are set for it."""
    found = (
        (name_of(page), command)
        for page in PAGES
        if page not in tutorial.PAGES  # every line is typed
        for block in blocks(page, "console")
        for line in block.splitlines()
        if (command := re.sub(r"""^([A-Z_]+=("[^"]*"|\S+) )+""", "", line)).startswith(start)
    )
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_a_page_has_a_language_that_is_tested(page: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", page.read_text(), re.MULTILINE)

    known = LANGUAGES | CONFIGURATIONS if page.name == "deployment.md" else LANGUAGES
    directives = {each for each in fences[::2] if each.startswith("{")}
    assert set(fences[::2]) - directives <= known
    assert {each.split()[0] for each in directives} <= DIRECTIVES
    assert set(fences[1::2]) <= {""}
    assert not re.search(r"^ +```", page.read_text(), re.MULTILINE)  # no test would find it


@pytest.fixture
def own_handlers(own_handlers: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers and schedules that a page declares are gone after it, and nobody traces."""
    monkeypatch.setattr(declarations, "_declared", dict(declarations._declared))
    yield
    leasing.tracing.uninstrument()
    tasks.tracing.uninstrument()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("own_handlers", "own_celery_tasks")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path) -> None:
    namespace: dict[str, Any] = {"INSTALLED_APPS": [], "DATABASES": {"default": {}}}

    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize(("page", "line"), commands("python manage.py"))
def test_a_documented_command_is_understood(page: str, line: str) -> None:
    # A database that the settings of the page have, and a task.
    typed = line.replace("--database queue", "--database default").replace("TASK_ID", "17")
    name, *arguments = shlex.split(typed)[2:]

    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(arguments)


@pytest.mark.parametrize(("page", "line"), commands("python -m tasks.client"))
def test_a_documented_remote_worker_is_understood(page: str, line: str) -> None:
    assert remote.parser().parse_args(shlex.split(line)[3:]).handlers


@pytest.mark.parametrize("page", ["architecture.md", "commands.md"])
def test_every_command_is_named(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    ours = {name for name, app in get_commands().items() if app in ("leasing", "tasks")}

    assert ours <= set(re.findall(r"\w+", text))


@pytest.mark.parametrize(("page", "line"), commands("make"))
def test_a_documented_target_is_made(page: str, line: str) -> None:
    _, *targets = (word for word in shlex.split(line) if "=" not in word and word != "-s")

    made = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) <= set(made)


@pytest.mark.parametrize(("page", "line"), commands("celery"))
def test_a_documented_command_of_celery_is_understood(page: str, line: str) -> None:
    _, _, _, name, *arguments = shlex.split(line)

    command: click.Command = {"worker": worker.worker, "beat": beat.beat}[name]
    command.make_parser(click.Context(command)).parse_args(arguments)


@pytest.mark.parametrize(("page", "line"), commands("pip install"))
def test_a_documented_extra_exists(page: str, line: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"\bdjango-leasing(?:\[([a-z,]+)\])?", line)

    assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"])


@pytest.mark.parametrize(("page", "line"), commands(".venv/bin/"))
def test_a_documented_test_run_names_tests_that_are_there(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    (named,) = [ROOT / word for word in words if word.startswith("tests/")]
    sources = named.rglob("test_*.py") if named.is_dir() else [named]
    text = "".join(source.read_text() for source in sources)
    picked = words[words.index("-k") + 1].split(" and ") if "-k" in words else []

    assert named.exists()
    # A test of a page has its name.
    assert all(each in text or (ROOT / "docs" / each).exists() for each in picked)


@pytest.mark.parametrize("page", [each for each in PAGES if blocks(each, "html")], ids=name_of)
def test_the_templates_of_a_page_are_understood(page: Path) -> None:
    for block in blocks(page, "html"):
        engines["django"].from_string(block)


def test_every_documented_command_is_tried_by_a_test() -> None:
    tried = (
        *("python manage.py", "make", "curl", "pip install ", "celery -A ", ".venv/bin/"),
        "python -m tasks.client ",
    )
    # By tests/first_hour.py, tests/test_generated_client.py and tests/test_deployment.py.
    played = (
        *("django-admin ", "openapi-python-client ", "gunicorn ", "uvicorn "),
        *first_hour.PREPARED,
    )

    assert [line for line in commands("") if not line[1].startswith(tried + played)] == []


@pytest.fixture
def open_api(settings: Any) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "compatible"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("open_api")
def test_the_requests_of_the_api_page_are_answered(client: Client) -> None:
    for _, line in commands("curl"):
        method, url, body = request_of(line)
        response = client.generic(method, url, body, content_type="application/json")
        assert 200 <= response.status_code < 300, (line, response.content)


@pytest.mark.usefixtures("open_api")
def test_every_route_of_the_api_is_documented(client: Client) -> None:
    pages = ("http-api.md", "sample-service.md")
    page = "".join((ROOT / "docs" / each).read_text() for each in pages)
    shown = {request_of(line)[:2] for _, line in commands("curl")}
    for method, first, more in re.findall(r"`([A-Z]+) (/[^`]*)`((?:, `/[^`]*`)*)", page):
        shown |= {(method, first), *((method, first + each) for each in re.findall("/[^`]*", more))}

    paths = client.get("/api/openapi.json").json()["paths"]
    served = {
        (method.upper(), re.sub(r"{(?:\w+_)?(\w+)}", r"<\1>", path))
        for path in paths
        for method in paths[path]
    }
    assert served - shown == set()


def request_of(line: str) -> tuple[str, str, str]:
    """Method, path and body of a documented curl command."""
    words = shlex.split(line)[1:]
    options = {"-X": "GET", "-d": "", "-H": "", "-o": ""}
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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"`((?:leasing|tasks|project|tests)/[\w/]+(?:\.py|/))`", page.read_text())

    tests = ROOT / "tests"  # the page of features names files below it
    assert [
        each for each in named if not (ROOT / each).exists() and not (tests / each).exists()
    ] == []


def test_the_figures_of_the_comparison_are_those_that_were_measured() -> None:
    """docs/performance.md is the place of the figures; another page must not keep older ones."""
    cited = (ROOT / "docs" / "why.md").read_text()
    measured = (ROOT / "docs" / "performance.md").read_text()
    table = cited.partition("## Measured")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \|$", table, re.MULTILINE)
    guarantees = (ROOT / "docs" / "guarantees.md").read_text()
    latency = re.findall(r"([\d.]+ s) after that \(p99\)", guarantees)
    drains = measured.partition("| | tasks a second, 1 worker |")[2].partition("\n\n")[0]

    # None is left out, such as one that is ahead.
    assert len(rows) == len(re.findall(r"^\| [^|]+ \| [\d,]+ \|", drains, re.MULTILINE)) > 5
    assert [
        (name, figure)
        for name, figure in rows
        if not re.search(rf"^\| {re.escape(name)}[^|]*\| {figure} \|", measured, re.MULTILINE)
    ] == []
    assert latency == re.findall(r"^\| `kill -9` .* p99, .*? \| (.*?) \|", measured, re.MULTILINE)


def test_the_readme_leads_to_pages_and_pictures_that_are_there() -> None:
    """By addresses, which the package index can follow: those of the package's metadata."""
    text = (ROOT / "README.md").read_text()
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    pictures = urls["Source"].replace("github.com", "raw.githubusercontent.com") + "/main/"
    links = re.findall(r"\]\(([^)]+)\)", text)
    shown = re.findall(r' (?:src|srcset)="([^"]+)"', text)

    pages = {
        path.partition("#")[0].strip("/")
        for link in links
        if (path := link.removeprefix(urls["Documentation"])) != link
    }
    assert len(pages) > 10 and len(shown) == 2
    docs = ROOT / "docs"
    assert [
        page
        for page in pages
        if page and not (docs / f"{page}.md").exists() and not (docs / page / "index.md").exists()
    ] == []
    assert [each for each in shown if not (ROOT / each.removeprefix(pictures)).exists()] == []
    assert [link for link in links if "://" not in link] == []


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_a_decision_record_has_the_form_of_all(record: Path) -> None:
    text = record.read_text()

    assert text.startswith(f"# {int(record.name[:4])}. ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_everything_of_the_context_is_documented() -> None:
    page = (ROOT / "docs" / "handlers.md").read_text()
    # What the worker alone asks of it.
    private = {"claimed", "completed", "given_back"}

    public = {name for name in vars(Context) if not name.startswith("_")} - private
    assert {name for name in public if not re.search(rf"(`|ctx\.){name}\b", page)} == set()


def test_every_option_of_a_handler_is_documented() -> None:
    page = (ROOT / "docs" / "handlers.md").read_text()
    parameters = inspect.signature(registry.handler).parameters.values()
    options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

    assert len(options) >= 10
    assert [option for option in options if f"`{option}`" not in page] == []


#: Pages that `make docs` writes from the code, with the least that each lists.
GENERATED = {"checks": 80, "diagnosis-codes": 35, "metrics-reference": 60, "settings": 45}


@pytest.mark.slow
def test_the_pages_that_come_from_the_code_are_fresh() -> None:
    """`make docs` writes them."""
    pages = runpy.run_path(str(ROOT / "docs" / "conf.py"))["pages"]()

    assert set(pages) == set(GENERATED)
    for name, text in pages.items():
        assert (ROOT / "docs" / f"{name}.md").read_text() == text, name
        assert len(re.findall(r"^\| `", text, re.MULTILINE)) >= GENERATED[name]


#: Codes that programs may know, of tasks.
CODES = {
    *("scheduled", "backoff", "queue_paused", "no_worker", "unknown_task", "invalid_arguments"),
    *("key_held", "saturated", "due", "no_relay", "unpublished", "published", "running_ok"),
    *("cancel_pending", "zombie", "late", "holder_gone", "expired_unclaimed", "no_recoverer"),
    *("expired_holder_alive", "flapping", "clock_skew", "done", "cancelled", "exhausted"),
    *("given_up", "running_long", "no_progress", "row_locked"),
}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("settings", {*leasing_settings.known(), *task_settings.known()}),
        ("diagnosis-codes", CODES),
    ],
)
def test_a_page_that_comes_from_the_code_has_each_name(page: str, names: set[str]) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()

    assert names - set(re.findall(r"^\| `(\w+)` ", text, re.MULTILINE)) == set()


def seconds(of: timedelta | float) -> str:
    return f"{of.total_seconds() if isinstance(of, timedelta) else of:g}"


def days(state: str) -> int:
    kept = KEPT[state]
    assert isinstance(kept, timedelta)
    return kept.days


TTL = type(leasing_settings).TTL

#: What pages say of figures that are no settings.
FIGURES = {
    "dashboard.md": (
        f"late (no heartbeat for {seconds(Worker.LATE_AFTER)} s)",
        f"gone ({seconds(Worker.GONE_AFTER)} s)",
    ),
    "housekeeping.md": (
        f"kept for {days('succeeded')} days",
        f"failed ones for {days('failed')} days",
    ),
    "leases.md": (f"The default of {TTL:g} s survives a pause of {spare(TTL):.1f} s.",),
    "schedules.md": (f"passed more than {seconds(Schedule.OVERDUE_AFTER)} s ago",),
}


@pytest.mark.parametrize("page", FIGURES)
def test_a_documented_figure_is_that_of_the_code(page: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())

    assert [figure for figure in FIGURES[page] if figure not in text] == []


def test_the_page_of_the_checks_has_each_with_a_message() -> None:
    page = (ROOT / "docs" / "checks.md").read_text()

    assert len(re.findall(r"^\| `leasing\w*\.[EW]\d+` \|", page, re.MULTILINE)) > 60
    assert "|  |  |" not in page
