"""The list: what each face of both packages shows of rows of every kind, in lines of a sentence."""

from __future__ import annotations

import argparse
import ast
import io
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qsl, urlsplit

from django.contrib.auth.models import User
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db.models import Model
from django.dispatch import Signal
from django.test import Client
from django.urls import Resolver404, resolve, reverse
from prometheus_client import REGISTRY

import leasing.signals
import leasing.urls
import tasks.log
import tasks.signals
import tasks.urls
from leasing import once
from leasing.functions import after
from leasing.metrics import process as _leases  # noqa: F401 - which registers
from leasing.metrics import registry
from leasing.metrics.exposition import OURS
from leasing.models import ApiToken, Lease, OnceKey
from leasing.runtime import event_lines
from leasing.runtime.event_logger import Event
from tasks.dashboard.operator_actions import ACTIONS
from tasks.maintenance import recovery
from tasks.metrics import process as task_metrics
from tasks.models import Schedule, Task, Worker
from tasks.outbox import publish
from tasks.outbox.totals import totals as relayed
from tasks.sample import SLEEP
from tasks.worker.process import WorkerProcess
from tests.elements import Element
from tests.factories import make_lease, make_task, make_worker
from tests.pages import Page, admins
from tests.plugin import ROOT

LIST = Path(__file__).with_name("surface.txt")
#: Seconds that no reading takes.
LONG = 3600.0
DATA = {"sleep_duration_seconds": 1}
STATES = (
    *("ready", "scheduled", "running", "stuck", "succeeded", "failed", "given_up"),
    *("cancelled", "retrying", "recovered", "returned"),
)
#: Lists of pages that show other things of other rows.
ASKED = {
    "leasing:list": ("active", "expired", "released", "free"),
    "leasing_tasks:list": (
        "ready",
        "scheduled",
        "running",
        "stuck",
        "retrying",
        "failed",
        "succeeded",
    ),
    "leasing_tasks:bulk": ("failed", "succeeded", "ready", "scheduled"),
}
HEADINGS = ("h1", "h2", "h3", "h4", "caption", "legend", "dt")
#: Elements in which names and times of rows stand, which are no words of the page.
OF_ROWS = {"td", "dd", "bdi", "time", "tbody"}


def lines() -> list[str]:
    """Return the list, sorted. It makes rows of every kind first."""
    have_all_metrics()
    make_rows()
    found = {
        *(*pages(), *exports(), *lists_of_admin(), *commands()),
        *(*events(), *metrics(), *signals()),
    }
    return sorted(found)


def have_all_metrics() -> None:
    """Be a worker, recover and relay: a process has metrics of what it does, and tests before this
    may have done any of it."""
    for totals in (recovery.totals, relayed):
        totals.succeeded_at = time.time()
    task_metrics.watch(WorkerProcess().executors)


def make_rows() -> None:
    """Make a row of every kind, in every state that shows other things."""
    for state in ("active", "expired", "released", "revoked", "free"):
        make_lease(resource=f"berth:{state}", holder="ann", ttl=LONG, state=state)
    for _ in range(100):  # of fewer terms no ttl is computed
        Lease.objects.release(Lease.objects.acquire("berth:busy", holder="ann", ttl=30))
    for state in STATES:
        make_task(state=state, holder="ann", ttl=LONG)
    for state in ("running", "ready"):
        make_task(concurrency_key="crane", concurrency_limit=1, holder="ann", ttl=LONG, state=state)
    for state in ("live", "late", "gone", "stopped"):
        make_worker(name=f"worker-{state}", state=state)
    # However long the reading takes, what stands shows the same.
    hour = timedelta(seconds=LONG)
    Worker.objects.filter(name="worker-live").update(last_seen_at=after(hour))
    Task.objects.stuck().update(expires_at=after(-hour))
    Task.objects.ready().update(scheduled_at=after(-hour))
    Task.objects.scheduled().update(scheduled_at=after(hour))
    with suppress(ZeroDivisionError):
        once("charge", window=LONG).run(lambda: 1 / 0)
    OnceKey.objects.update(expires_at=after(-hour))
    for name in ("nightly", "weekly"):
        Schedule.objects.create(name=name, task_name=SLEEP, cron="0 3 * * *", task_data=DATA)
    for words in (
        ("queues", "pause", "default", "--reason=Moved."),
        ("schedules", "pause", "weekly"),
    ):
        call_command(*words, stdout=io.StringIO())
    publish("orders.paid", {"order": 17}, key="order:17")
    ApiToken.objects.issue(name="ci", scopes=["leasing.view_lease"])


# Pages


def pages() -> Iterator[str]:
    """Return what the operator's pages show."""
    operator = superuser()
    yield from at(operator, addresses())
    for name, fields in (("generator_start", {}), ("queue_resume", {"queue": "default"})):
        operator.post(reverse(f"leasing_tasks:{name}"), fields | {"reason": "Moved."})
    changed = ("leasing_tasks:generator", "leasing_tasks:queues")
    yield from at(operator, ((name, reverse(name)) for name in changed))
    yield from at(Client(), [("leasing:login", reverse("leasing:login"))])


def at(client: Client, places: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Return what the pages at ``places`` show, of those that are only looked at."""
    for name, url in places:
        response: Any = client.get(url)
        if response.status_code == 200 and response["Content-Type"].startswith("text/html"):
            yield from of_page(name, Page(response))


def superuser() -> Client:
    """Return the browser of a new user who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser(f"olga-{User.objects.count()}"))
    return client


def patterns() -> dict[str, Any]:
    """Return what the addresses of pages look like, by the name of the page."""
    return {
        f"{urls.app_name}:{each.name}": each
        for urls in (leasing.urls, tasks.urls)
        for each in urls.urlpatterns
    }


def addresses() -> Iterator[tuple[str, str]]:
    """Return each page with its addresses: of every row that shows other things."""
    for name, pattern in patterns().items():
        wanted = set(pattern.pattern.regex.groupindex)
        for given in arguments(name, wanted) if name != "leasing_tasks:runbook" else ():  # a text
            url = reverse(name, kwargs=given)
            yield name, url
            for state in ASKED.get(name, ()):
                yield name, f"{url}?state={state}&scope=all"


def arguments(name: str, wanted: set[str]) -> Iterator[dict[str, Any]]:
    """Return what the address of the page ``name`` is made of."""
    match sorted(wanted):
        case []:
            yield {}
        case ["lease_id"]:
            yield from ({"lease_id": str(pk)} for pk in keys(Lease))
            yield {"lease_id": f"task:{Task.objects.earliest('pk').pk}"}
        case ["pk"] if name == "leasing_tasks:worker":
            yield from ({"pk": pk} for pk in keys(Worker))
        case ["pk"]:
            yield from ({"pk": pk} for pk in keys(Task))
        case ["name"] if name == "leasing_tasks:bulk":
            yield from ({"name": each} for each in ACTIONS)


def keys(model: type[Model]) -> list[Any]:
    return list(model._default_manager.order_by("pk").values_list("pk", flat=True))


def of_page(name: str, page: Page) -> Iterator[str]:
    """Return a line for each heading, column, link, button, field and tab of ``page``."""
    mains = page.all("main") or [page.tree]
    inside = {id(each) for main in mains for each in main.inside()}
    for element in page.tree.inside():
        kind, words = described(element)
        # The frame is the same around every page.
        where = name if id(element) in inside else "every page"
        if kind and words:
            yield f"page {where}: {kind} {words}"


def described(element: Element) -> tuple[str, str]:
    """Return the kind of ``element`` and its words; ("", "") if it is of no kind."""
    match element.tag:
        case "th":
            return "column", "" if in_rows(element) else words_of(element)
        case "a" if element.get("href"):
            return "link", f"{'' if in_rows(element) else words_of(element)} -> {target(element)}"
        case "button":
            return "button", words_of(element)
        case "input" if element.get("type") == "submit":
            return "button", element.get("value")
        case "input" | "select" | "textarea" if element.get("name"):
            return "field", re.sub(r"\d+", "#", element["name"])
        case tag if tag in HEADINGS and not in_rows(element):
            return "heading", words_of(element)
    return "", ""


def in_rows(element: Element) -> bool:
    """Return True if ``element`` stands among the values of a row."""
    above = element.parent
    while above is not None:
        if above.tag in OF_ROWS:
            return True
        above = above.parent
    return False


def words_of(element: Element) -> str:
    """Return the words of ``element`` without those of rows, each number as #."""
    if any(each.tag in OF_ROWS for each in element.inside()):
        text = " ".join(each if isinstance(each, str) else "" for each in element.content)
    else:
        text = element.text
    text = " ".join((text or element.get("aria-label") or element.get("title")).split())
    return re.sub(r"\d[\d,.:]*", "#", text)


def target(link: Element) -> str:
    """Return the name of what ``link`` leads to, with the names of its query."""
    parts = urlsplit(link["href"])
    if parts.netloc:
        return link["href"]
    query = "&".join(sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}))
    if not parts.path:
        return f"?{query}" if parts.query else "#" + re.sub(r"\d+", "#", parts.fragment)
    try:
        name = resolve(parts.path).view_name
    except Resolver404:
        name = parts.path
    return f"{name}?{query}" if query else name


def exports() -> Iterator[str]:
    """Return the columns of the files that lists are exported to."""
    operator = superuser()
    given = {"lease_id": str(keys(Lease)[0]), "form": "csv"}
    for name, pattern in patterns().items():
        wanted = set(pattern.pattern.regex.groupindex)
        if "form" in wanted:
            url = reverse(name, kwargs={each: given[each] for each in wanted})
            response: Any = operator.get(url)
            text = b"".join(response.streaming_content).decode("utf-8-sig")
            yield from (f"export {name}: column {each}" for each in text.splitlines()[0].split(","))


# The admin: what Django itself shows there changes with Django.


def lists_of_admin() -> Iterator[str]:
    operator = superuser()
    for model in admins():
        yield from of_admin(operator, model)


def of_admin(operator: Client, model: type[Model]) -> Iterator[str]:
    where = f"admin {model._meta.label}"
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    page = Page(operator.get(url))
    for each in page.all("#result_list th div.text"):
        yield f"{where}: column {each.text}"
    for each in page.all("#changelist-filter [data-filter-title]"):
        yield f"{where}: filter {each['data-filter-title']}"
    for each in page.all("#changelist-filter a"):
        yield f"{where}: filter by {target(each)}"
    for each in page.all("select[name=action] option"):
        if each.get("value"):
            yield f"{where}: action {each['value']}, {each.text}"
    for key in keys(model)[:3]:
        page = Page(operator.get(f"{url}{key}/change/"))
        for each in page.all("[class]"):
            for name in each.classes:
                if name.startswith("field-") and each.tag == "div":
                    yield f"{where}: field {name.removeprefix('field-')}"


# Commands


#: The arguments of each command with --json that needs some, other than the id of a task.
GIVEN = {
    "api_tokens create": ["robot", "--scope", "leasing.view_lease"],
    "api_tokens revoke": ["ci"],
    "leases raise-tokens": ["--yes", "--reason", "restored"],
    "leases revoke": ["berth:active", "--reason", "gone"],
    "leases show": ["berth:active"],
    "leases stores admit": ["default"],
    "leases ttl": ["berth:busy"],
    "queues pause": ["default", "--reason", "Moved."],
    "queues resume": ["default"],
    "run_recovery": ["--once"],
    "schedules pause": ["nightly"],
    "schedules resume": ["nightly"],
    "schedules run": ["nightly"],
    "tasks cancel": ["--state", "scheduled", "--yes", "--reason", "x"],
    "tasks discard": ["--state", "succeeded", "--yes"],
    "tasks enqueue": [SLEEP, "--data", json.dumps(DATA)],
    "tasks reschedule": ["--state", "ready", "--in", "1h", "--yes"],
    "tasks settle": ["charge", "--result", "7", "--reason", "x"],
    "tasks retry": ["--state", "failed", "--yes"],
    "workers check": ["worker-live"],
}


def commands() -> Iterator[str]:
    """Return the keys of what each command prints as JSON. Verbs change the rows."""
    for name, app in sorted(get_commands().items()):
        if app in ("leasing", "tasks"):
            parser = load_command_class(app, name).create_parser("manage.py", name)
            for words, is_of_a_task in with_json(parser, [name]):
                yield from of_command(words, is_of_a_task)


def with_json(
    parser: argparse.ArgumentParser, words: list[str]
) -> Iterator[tuple[list[str], bool]]:
    """Return the command lines that take --json, each with whether it wants the id of a task."""
    actions: list[Any] = vars(parser)["_actions"]
    if any("--json" in each.option_strings for each in actions):
        yield words, any(each.dest == "id" for each in actions)
    for inner in (each.choices for each in actions if isinstance(each.choices, dict)):
        for name, each in inner.items():
            if name not in get_commands():  # which has lines of its own
                yield from with_json(each, [*words, name])


def of_command(words: list[str], is_of_a_task: bool) -> Iterator[str]:
    """Return the keys of the JSON of one command, of every task if it is about one."""
    name = " ".join(words)
    given = GIVEN.get(name, [])
    each_task = [[str(pk)] for pk in keys(Task)] if is_of_a_task else []
    for more in each_task or [given]:
        out = io.StringIO()
        with suppress(CommandError):  # with findings, which it has printed
            call_command(*words, *more, "--json", stdout=out, stderr=io.StringIO())
        for key in keys_in(json.loads(out.getvalue())):
            yield f"command {name} --json: key {key}"


def keys_in(value: Any, path: str = "") -> Iterator[str]:
    """Return the path of each key in ``value``, of an item of a list with []."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}{key}"
            yield from keys_in(item, f"{path}{key}.")
    elif isinstance(value, list):
        for item in value:
            yield from keys_in(item, f"{path.removesuffix('.')}[].")


# The log, metrics, signals


def events() -> Iterator[str]:
    """Return each event of the log, and its fields: of its row, and those that callers pass."""
    given = passed_to("log")
    for table in (event_lines.Log, tasks.log.Log):
        for attribute, event in vars(table).items():
            if isinstance(event, Event):
                level = logging.getLevelName(event.level)
                yield f"log {event.name}: {level} of {event.logger.name}"
                in_line = re.findall(r"%\((\w+)\)", event.message)
                for name in {*in_line, *event.about(Mock()), *given.get(attribute, ())}:
                    yield f"log {event.name}: field {name}"


@cache
def passed_to(owner: str) -> dict[str, set[str]]:
    """Return the keywords of all calls of ``owner.name(...)`` in both packages, by name."""
    found: dict[str, set[str]] = {}
    files = [each for package in ("leasing", "tasks") for each in (ROOT / package).rglob("*.py")]
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute)):
                if name == owner:
                    named = {each.arg for each in node.keywords if each.arg}
                    found.setdefault(attribute, set()).update(named - {"exc_info", "level"})
    return found


def metrics() -> Iterator[str]:
    """Return the names of metrics, with their labels."""
    # The library tells the names of labels that have no value yet nowhere else.
    for collector in vars(REGISTRY)["_collector_to_names"]:
        for family in collector.collect():
            if family.name.startswith(OURS):
                yield of_metric(family, {**vars(family), **vars(collector)}.get("_labelnames"))
    for figure in registry.figures():
        yield from map(of_metric, figure.get())


def of_metric(family: Any, labels: Iterable[str] | None = None) -> str:
    """Return the line of ``family``; its own labels, if the collector does not tell them."""
    named = vars(family).get("_labels", ()) if labels is None else labels
    return f"metric {family.type} {family.name} ({', '.join(named)})"


def signals() -> Iterator[str]:
    """Return the names of the signals."""
    for module in ("leasing.signals", "tasks.signals"):
        for name, each in vars(import_module(module)).items():
            if isinstance(each, Signal):
                yield f"signal {module}.{name}"
