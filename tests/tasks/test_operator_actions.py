"""What an operator can do, on each interface: ACTIONS says it once, and each test tries all of it.

Every page, admin, route and command that acts is found in the product. One without a row here
fails the first test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from typing import Any, ClassVar, NamedTuple

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import transaction
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, resolve, reverse
from pytest_django import Settings

import leasing.urls
import tasks.urls
from leasing import once
from leasing.functions import after
from leasing.models import ApiToken, AuditEntry, Lease, LeaseEvent, OnceKey
from leasing.runtime.aio import drive
from leasing.runtime.terminal import label
from project.urls import api
from tasks.dashboard.operator_actions import ACTIONS as TASK_ACTIONS
from tasks.exceptions import GiveUp
from tasks.generator import start_generator, start_unless_asked, stop_generator
from tasks.models import GeneratorDesiredState, OutboxMessage, Queue, Schedule, ScheduleSlot, Task
from tasks.outbox import publish
from tests.factories import claimed, make_lease, make_task
from tests.pages import Page
from tests.tasks.support import lose, make_due

pytestmark = pytest.mark.django_db

REASON = "spring cleaning"


@dataclass(frozen=True, kw_only=True)
class Action:
    """What one action demands, and where it is; "" where an interface does not have it."""

    permission: str
    #: Makes a row to which it applies.
    row: Callable[[], Any]
    #: Somebody does it, or something that makes it pointless, before the operator does.
    settled: Callable[[Any], object]
    #: Gives the row to another holder, who leaves it in the same state.
    granted_again: Callable[[Any], object] | None = None
    #: Who must give a reason: "all", or nobody, though "forms" take one on every interface, and
    #: "programs" on API and command alone; "": nobody can.
    reason: str = "forms"
    #: What else it is sent with, from forms and in a body of JSON.
    fields: Callable[[Any], dict[str, Any]] = lambda row: {}
    audited: str = ""
    #: Where the row, or its history, has the name of the operator; and the reason, if all give one.
    signed: Callable[[Any], str] = lambda row: f"olga: {REASON}"
    deletes: bool = False
    #: A wish, which is done if somebody else has made it come true.
    is_wish: bool = False
    #: Its address, and that of the page which offers it.
    page: str = ""
    offered_on: str = ""
    list: str = ""
    admin: str = ""
    api: str = ""
    command: str = ""


# Rows in the state that an action is for, and what others do to them meanwhile


def task(state: str) -> Callable[[], Task]:
    return lambda: make_task(state=state)


def fails_again(task: Task) -> None:
    Task.objects.filter(pk=task.pk).retry()
    Task.objects.fail(claimed(task, "next"), GiveUp("again"))


def waits_again(task: Task) -> None:
    make_due(task)
    Task.objects.fail(claimed(task, "next"), ValueError("again"))
    Task.objects.filter(pk=task.pk).update(scheduled_at=after(timedelta(minutes=1)))


def comes_back(task: Task) -> None:
    Task.objects.give_back(claimed(task, "next"), "its worker was stopped")


def is_lost(task: Task) -> None:
    lose(task)
    claimed(task, "next")


def ends(task: Task) -> None:
    Task.objects.complete(task, {})


def changes_hands(lease: Lease) -> None:
    Lease.objects.release(lease)
    Lease.objects.acquire(lease.resource, holder="next")


def begun() -> OnceKey:
    row: OnceKey = drive(once("charge", window=3600, ttl=30)._steps())
    return row


def left_open() -> OnceKey:
    row = begun()
    OnceKey.objects.revoke()
    return row


def is_left_again(row: OnceKey) -> None:
    begun()
    OnceKey.objects.revoke()


def begins_again(row: OnceKey) -> None:
    OnceKey.objects.filter(pk=row.pk).revoke()
    begun()


def queue(*, is_paused: bool) -> Callable[[], Queue]:
    def make() -> Queue:
        Queue.objects.declare(["default"])
        if is_paused:
            Queue.objects.pause("default", by="emil", reason="first")
        return Queue.objects.get()

    return make


def schedule(**columns: Any) -> Callable[[], Schedule]:
    def make() -> Schedule:
        hour = timedelta(hours=1)
        row: Schedule = Schedule.objects.create(
            name="nightly",
            task_name="jobs.echo",
            every=hour,
            overlap=False,
            next_at=after(hour),
            **columns,
        )
        if columns:
            Schedule.objects.pause(by="emil")
        return row

    return make


def generator(*, is_started: bool) -> Callable[[], GeneratorDesiredState]:
    def make() -> GeneratorDesiredState:
        start_unless_asked()
        GeneratorDesiredState.objects.update(wanted=is_started)
        return GeneratorDesiredState.objects.get()

    return make


def postponed() -> OutboxMessage:
    message = publish("orders.paid", {"order": 17}, key="order:17")
    OutboxMessage.objects.put_off(message, ValueError("too large"))
    # The pause is drawn, and may be next to nothing.
    OutboxMessage.objects.filter(pk=message.pk).update(due_at=after(timedelta(minutes=1)))
    return message


def token() -> ApiToken:
    row, _ = ApiToken.objects.issue("ci", scopes=["leasing.view_lease"])
    return row


def typed(row: Any) -> dict[str, Any]:
    return {"typed": label(row.lease_resource)}


def in_its_error(task: Task) -> str:
    return task.last_error


def in_its_event(row: Any) -> str:
    event = LeaseEvent.objects.get(kind="revoked")
    return f"{event.actor}: {event.reason}"


TASK_PAGE, LEASE_PAGE = "/ops/tasks/{pk}/", "/ops/leases/{lease_id}/"
SCHEDULES, GENERATOR = "/ops/schedules/", "/ops/generator/"

ACTIONS: dict[str, Action] = {
    "retry task": Action(
        permission="leasing_tasks.retry_task",
        row=task("given_up"),
        settled=lambda task: Task.objects.filter(pk=task.pk).retry(),
        granted_again=fails_again,
        reason="programs",
        page=f"{TASK_PAGE}retry/",
        offered_on=TASK_PAGE,
        list="/ops/tasks/bulk/retry/",
        admin="leasing_tasks.task",
        api="PUT /tasks/{task_id}/retry",
        command="tasks retry {pk}",
    ),
    "reschedule task": Action(
        permission="leasing_tasks.reschedule_task",
        row=task("retrying"),
        settled=lambda task: Task.objects.filter(pk=task.pk).cancel(),
        granted_again=waits_again,
        fields=lambda task: {"at_once": True},
        page=f"{TASK_PAGE}reschedule/",
        offered_on=TASK_PAGE,
        list="/ops/tasks/bulk/reschedule/",
        admin="leasing_tasks.task",
        api="PUT /tasks/{task_id}/reschedule",
        command="tasks reschedule {pk} --at now",
    ),
    "cancel task": Action(
        permission="leasing_tasks.cancel_task",
        row=task("ready"),
        settled=lambda task: ends(claimed(task, "next")),
        granted_again=comes_back,
        reason="all",
        signed=in_its_error,
        page=f"{TASK_PAGE}cancel/",
        offered_on=TASK_PAGE,
        list="/ops/tasks/bulk/cancel/",
        admin="leasing_tasks.task",
        api="PUT /tasks/{task_id}/cancel",
        command="tasks cancel {pk}",
    ),
    "discard task": Action(
        permission="leasing_tasks.discard_task",
        row=task("given_up"),
        settled=lambda task: Task.objects.filter(pk=task.pk).retry(),
        granted_again=fails_again,
        deletes=True,
        page=f"{TASK_PAGE}discard/",
        offered_on=TASK_PAGE,
        list="/ops/tasks/bulk/discard/",
        admin="leasing_tasks.task",
        command="tasks discard {pk}",
    ),
    "revoke task": Action(
        permission="leasing.revoke_lease",
        row=task("running"),
        settled=ends,
        granted_again=is_lost,
        reason="all",
        fields=typed,
        signed=in_its_error,
        page=f"{LEASE_PAGE}revoke/",
        offered_on=TASK_PAGE,
        admin="leasing_tasks.task",
        api="PUT /tasks/{task_id}/revoke",
    ),
    "revoke lease": Action(
        permission="leasing.revoke_lease",
        row=make_lease,
        settled=lambda lease: Lease.objects.release(lease),
        granted_again=changes_hands,
        reason="all",
        fields=typed,
        signed=in_its_event,
        page=f"{LEASE_PAGE}revoke/",
        offered_on=LEASE_PAGE,
        admin="leasing.lease",
        api="PUT /leases/{lease_id}/revoke",
        command="leases revoke {resource}",
    ),
    "revoke once key": Action(
        permission="leasing.revoke_lease",
        row=begun,
        settled=lambda row: OnceKey.objects.filter(pk=row.pk).revoke(),
        granted_again=begins_again,
        reason="all",
        fields=typed,
        page=f"{LEASE_PAGE}revoke/",
        offered_on=LEASE_PAGE,
        admin="leasing.oncekey",
        api="PUT /leases/{lease_id}/revoke",
    ),
    "settle once key": Action(
        permission="leasing.settle_oncekey",
        row=left_open,
        settled=lambda row: OnceKey.objects.settle("emil's", by="emil"),
        granted_again=is_left_again,
        reason="all",
        fields=lambda row: {"result": '{"receipt": 7}'},
        signed=lambda row: f"{row.settled_by}: {REASON}",
        page=f"{LEASE_PAGE}settle/",
        offered_on=LEASE_PAGE,
        admin="leasing.oncekey",
        command="tasks settle {key} --result 7",
    ),
    "pause queue": Action(
        permission="leasing_tasks.pause_queue",
        row=queue(is_paused=False),
        settled=lambda queue: Queue.objects.pause(queue.name, by="emil", reason="first"),
        reason="all",
        signed=lambda queue: f"{queue.paused_by}: {queue.reason}",
        page="/ops/queues/pause/",
        offered_on="/ops/queues/",
        admin="leasing_tasks.queue",
        api="PUT /queues/{name}/pause",
        command="queues pause {name}",
    ),
    "resume queue": Action(
        permission="leasing_tasks.pause_queue",
        row=queue(is_paused=True),
        settled=lambda queue: Queue.objects.resume(queue.name),
        reason="programs",
        page="/ops/queues/resume/",
        offered_on="/ops/queues/",
        admin="leasing_tasks.queue",
        api="PUT /queues/{name}/resume",
        command="queues resume {name}",
    ),
    "pause schedule": Action(
        permission="leasing_tasks.change_schedule",
        row=schedule(),
        settled=lambda row: Schedule.objects.pause(by="emil"),
        signed=lambda row: f"{row.paused_by}: {row.reason}",
        page="/ops/schedules/{pk}/pause/",
        offered_on=SCHEDULES,
        admin="leasing_tasks.schedule",
        api="PUT /schedules/{name}/pause",
        command="schedules pause {name}",
    ),
    "resume schedule": Action(
        permission="leasing_tasks.change_schedule",
        row=schedule(paused_by="emil"),
        settled=lambda row: Schedule.objects.resume(),
        reason="programs",
        page="/ops/schedules/{pk}/resume/",
        offered_on=SCHEDULES,
        admin="leasing_tasks.schedule",
        api="PUT /schedules/{name}/resume",
        command="schedules resume {name}",
    ),
    "run_now schedule": Action(
        permission="leasing_tasks.change_schedule",
        row=schedule(),
        settled=lambda row: Schedule.objects.run_now(by="emil"),
        reason="programs",
        audited="run",
        signed=lambda row: ScheduleSlot.objects.get().run_by,
        page="/ops/schedules/{pk}/run/",
        offered_on=SCHEDULES,
        admin="leasing_tasks.schedule",
        api="POST /schedules/{name}/run",
        command="schedules run {name}",
    ),
    "start generator": Action(
        permission="leasing_tasks.control_generator",
        row=generator(is_started=False),
        settled=lambda row: start_generator(by="emil"),
        is_wish=True,
        signed=lambda row: row.changed_by,
        page="/ops/generator/start/",
        offered_on=GENERATOR,
        api="POST /generator/start",
    ),
    "stop generator": Action(
        permission="leasing_tasks.control_generator",
        row=generator(is_started=True),
        settled=lambda row: stop_generator(by="emil"),
        is_wish=True,
        signed=lambda row: row.changed_by,
        page="/ops/generator/stop/",
        offered_on=GENERATOR,
        api="DELETE /generator/stop",
    ),
    "revoke token": Action(
        permission="leasing.revoke_apitoken",
        row=token,
        settled=lambda row: ApiToken.objects.filter(pk=row.pk).revoke(),
        admin="leasing.apitoken",
        command="api_tokens revoke {name}",
    ),
    "retry message": Action(
        permission="leasing_tasks.retry_outboxmessage",
        row=postponed,
        settled=lambda row: OutboxMessage.objects.mark_published([row.pk]),
        reason="",
        admin="leasing_tasks.outboxmessage",
    ),
    "discard message": Action(
        permission="leasing_tasks.discard_outboxmessage",
        row=postponed,
        settled=lambda row: OutboxMessage.objects.mark_published([row.pk]),
        deletes=True,
        admin="leasing_tasks.outboxmessage",
    ),
}
#: Actions that make a row, or are about all rows: they have tests of their own.
OTHER_COMMANDS = {"tasks enqueue", "api_tokens create", "leases raise-tokens"}
#: What holders, workers and producers do over HTTP.
NO_OPERATORS = {"leasing.change_lease", "leasing_tasks.change_task", "leasing_tasks.add_task"}


# The interfaces


class Answer(NamedTuple):
    """What became of a request: done, unchanged, asked (again), or refused."""

    outcome: str
    text: str


class Interface:
    """The button of one row on the operator's pages."""

    via: ClassVar = "page"
    asks: ClassVar = False

    def __init__(self, name: str) -> None:
        self.name, self.action = name, ACTIONS[name]

    def address(self, row: Any, pattern: str) -> str:
        lease_id = getattr(row, "lease_id", "")
        return pattern.format(pk=row.pk, lease_id=lease_id)

    def url(self, row: Any) -> str:
        return self.address(row, self.action.page)

    def offered(self, client: Client, row: Any) -> bool:
        return self._form(client, row) is not None

    def look(self, client: Client, row: Any) -> dict[str, str]:
        """What the page that offers or asks sends along."""
        form = self._form(client, row)
        assert form is not None, f"{self.name} is not offered"
        return {each["name"]: each.get("value") for each in form.all("input[type=hidden]")}

    def _form(self, client: Client, row: Any) -> Any:
        page = Page(client.get(self.address(row, self.action.offered_on)))
        forms = [each for each in page.all("form") if each.get("action") == self.url(row)]
        return forms[0] if forms else None

    def ask(self, client: Client, row: Any) -> Any:
        """The answer to a look at what would be done, of an interface that asks first."""
        raise NotImplementedError

    def send(self, client: Client, row: Any, seen: dict[str, str], reason: str) -> Answer:
        said = {name: "on" if value is True else value for name, value in self.more(row).items()}
        return self.read(client.post(self.url(row), seen | {"reason": reason} | said))

    def more(self, row: Any) -> dict[str, Any]:
        return self.action.fields(row)

    def read(self, response: Any) -> Answer:
        status = response.status_code
        if status != 302:
            assert status in (400, 403) or self.via == "admin", status
            return Answer("refused" if status == 403 else "asked", response.content.decode())
        told = list(get_messages(response.wsgi_request))
        outcome = "unchanged" if told and told[0].level_tag != "success" else "done"
        return Answer(outcome, " ".join(map(str, told)))

    def takes_reason(self) -> bool:
        return self.action.reason in ("all", "forms")


class List(Interface):
    """The button for ticked rows of a list."""

    asks = True

    def url(self, row: Any) -> str:
        return self.action.list

    def offered(self, client: Client, row: Any) -> bool:
        buttons = Page(client.get("/ops/tasks/")).all("button[formaction]")
        return self.url(row) in {each["formaction"] for each in buttons}

    def ask(self, client: Client, row: Any) -> Any:
        return client.get(self.url(row), {"task": row.pk})

    def look(self, client: Client, row: Any) -> dict[str, str]:
        return Page(self.ask(client, row)).hidden


class Admin(List):
    """The action in the list of Django's admin, and the button on the page of a row."""

    via = "admin"

    def url(self, row: Any) -> str:
        return reverse(f"admin:{self._prefix}_changelist")

    @property
    def _prefix(self) -> str:
        return self.action.admin.replace(".", "_")

    def offered(self, client: Client, row: Any) -> bool:
        change = reverse(f"admin:{self._prefix}_change", args=[quote(row.pk)])
        verb = self.name.split()[0]
        found = {verb in Page(client.get(url)).choices("action") for url in (self.url(row), change)}
        (is_offered,) = found  # by the list and by the page of the row alike
        return is_offered

    def ask(self, client: Client, row: Any) -> Any:
        chosen = {"action": self.name.split()[0], "_selected_action": str(row.pk)}
        return client.post(self.url(row), chosen)


class Api(Interface):
    """The route of the API."""

    via = "api"

    def offered(self, client: Client, row: Any) -> bool:
        return False

    def look(self, client: Client, row: Any) -> dict[str, str]:
        return {}

    def send(self, client: Client, row: Any, seen: dict[str, str], reason: str) -> Answer:
        method, pattern = self.action.api.split()
        lease_id, name = getattr(row, "lease_id", ""), getattr(row, "name", "")
        path = pattern.format(task_id=row.pk, lease_id=lease_id, name=name)
        said = {key: value for key, value in self.more(row).items() if key != "typed"}
        body = json.dumps({"reason": reason} | said if self.takes_reason() else said)
        response = client.generic(method, f"/api{path}", body, content_type="application/json")
        outcomes = {200: "done", 201: "done", 400: "asked", 403: "refused", 409: "unchanged"}
        return Answer(outcomes[response.status_code], response.content.decode())

    def takes_reason(self) -> bool:
        return "generator" not in self.name


class Command(Interface):
    """The command, which works whatever the permissions and the settings of the site are."""

    via = "command"

    def offered(self, client: Client, row: Any) -> bool:
        return False

    def look(self, client: Client, row: Any) -> dict[str, str]:
        return {}

    def send(self, client: Client, row: Any, seen: dict[str, str], reason: str) -> Answer:
        columns = {name: getattr(row, name, "") for name in ("pk", "name", "resource", "key")}
        words = self.action.command.format(**columns).split()
        out = StringIO()
        try:
            said = ["--reason", reason] if reason else []
            call_command(*words, "--by", "olga", *said, stdout=out)
        except CommandError as error:
            return Answer("unchanged" if "Nothing to" in str(error) else "asked", str(error))
        return Answer("unchanged" if "Not changed" in out.getvalue() else "done", out.getvalue())

    def takes_reason(self) -> bool:
        return True


INTERFACES = {
    "page": Interface,
    "list": List,
    "admin": Admin,
    "api": Api,
    "command": Command,
}


def cells(fits: Callable[[Interface], bool]) -> pytest.MarkDecorator:
    """Every action on every interface that has it, as far as it fits."""
    every = [
        pytest.param(way(name), id=f"{name}, {label}")
        for name, action in ACTIONS.items()
        for label, way in INTERFACES.items()
        if getattr(action, label) and fits(way(name))
    ]
    return pytest.mark.parametrize("way", every)


EVERYWHERE = cells(lambda way: True)


def user(name: str, *, without: str = "", only: tuple[str, ...] = ()) -> User:
    """A user of the admin with all permissions of both apps, or all but one, or a few."""
    made = User.objects.create_user(name, is_staff=True)
    rows = Permission.objects.filter(content_type__app_label__in=("leasing", "leasing_tasks"))
    app, _, code = without.partition(".")
    rows = rows.exclude(content_type__app_label=app, codename=code)
    if only:
        rows = rows.filter(codename__in=[each.partition(".")[2] for each in only])
    made.user_permissions.set(rows)
    return made


def browser(user: User, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


@pytest.fixture
def operator() -> Client:
    return browser(user("olga"))


def state_of(row: Model) -> list[Any]:
    """Everything that an action could change: the row, and how many tasks there are."""
    kind: Any = type(row)
    rows = kind.objects.filter(pk=row.pk)
    return [rows.values().first(), Task.objects.count()]


def test_every_action_of_the_product_has_a_row() -> None:
    assert set(_pages()) == {
        (found.url_name, found.kwargs.get("name"))
        for action in ACTIONS.values()
        for address in (action.page, action.list)
        if address
        for found in [resolve(address.format(pk=1, lease_id="1"))]
    }
    assert {
        f"{act.name} {model._meta.label_lower}"
        for model in filter(admin.site.is_registered, apps.get_models())
        for act in getattr(admin.site.get_model_admin(model), "acts", ())
    } == {f"{name.split()[0]} {action.admin}" for name, action in ACTIONS.items() if action.admin}
    assert set(_routes()) == {action.api for action in ACTIONS.values() if action.api}
    commands = {" ".join(each.command.split()[:2]) for each in ACTIONS.values() if each.command}
    assert set(_commands()) == commands | OTHER_COMMANDS


def _pages() -> Iterator[tuple[str | None, Any]]:
    """The pages that take a POST: their names, and the names of their actions."""
    client = browser(User.objects.create_superuser("root"))
    for app in (leasing.urls, tasks.urls):
        for pattern in app.urlpatterns:
            assert isinstance(pattern, URLPattern)
            given = [*pattern.pattern.converters, *pattern.pattern.regex.groupindex]
            names = TASK_ACTIONS if "name" in given and "<slug" in str(pattern.pattern) else [None]
            for name in names:
                known = {"pk": 1, "lease_id": "1", "form": "csv", "name": name}
                kwargs = {key: known[key] for key in given}
                url = reverse(f"{app.app_name}:{pattern.name}", kwargs=kwargs)
                if pattern.name in ("login", "logout", "runbook_page"):
                    continue
                if client.post(url).status_code != 405:
                    yield pattern.name, resolve(url).kwargs.get("name")


def _routes() -> Iterator[str]:
    for path, methods in api.get_openapi_schema(path_prefix="")["paths"].items():
        for method, operation in methods.items():
            demanded: list[set[str]] = [
                set(*each.values()) for each in operation.get("security", ())
            ]
            scopes: set[str] = set().union(*demanded)
            if method != "get" and scopes and not scopes <= NO_OPERATORS:
                yield f"{method.upper()} {path}"


def _commands() -> Iterator[str]:
    for name, app in get_commands().items():
        if app not in ("leasing", "tasks"):
            continue
        parser = load_command_class(app, name).create_parser("manage.py", name)
        for each in parser._actions:
            verbs = each.choices if isinstance(each.choices, dict) else {}
            for verb, inner in verbs.items():
                if "--by " in inner.format_help():
                    yield f"{name} {verb}"


#: The columns by which the audit names rows whose keys say nothing to people.
NAMED_BY = {
    "leasing.lease": "resource",
    "leasing.oncekey": "key",
    "leasing.apitoken": "name",
    "leasing_tasks.schedule": "name",
}


@EVERYWHERE
def test_an_action_is_done_and_recorded(way: Interface, operator: Client) -> None:
    is_done_and_recorded(way, operator)


@pytest.mark.slow
def test_each_action_of_the_admin_is_done_on_a_site_without_our_pages(
    operator: Client, settings: Settings, subtests: pytest.Subtests
) -> None:
    """In one test: the templates are read anew for each that changes where they are."""
    settings.ROOT_URLCONF = "tests.admin_alone"
    (engine,) = settings.TEMPLATES  # those of the project lead to our pages
    settings.TEMPLATES = [{**engine, "DIRS": []}]
    for name in (name for name, action in ACTIONS.items() if action.admin):
        before = transaction.savepoint()
        with subtests.test(name):
            is_done_and_recorded(Admin(name), operator)
        transaction.savepoint_rollback(before)


def is_done_and_recorded(way: Interface, operator: Client) -> None:
    row = way.action.row()
    before = state_of(row)
    assert not way.asks or way.offered(operator, row)
    seen = way.look(operator, row)  # which has the button itself where nothing asks
    assert (state_of(row), AuditEntry.objects.count()) == (before, 0), "it asks first"

    answer = way.send(operator, row, seen, REASON)

    assert answer.outcome == "done", answer
    assert state_of(row) != before
    assert (state_of(row)[0] is None) == way.action.deletes
    if not way.action.deletes:
        row.refresh_from_db()
        told = [REASON] if way.action.reason == "all" else []
        assert all(each in way.action.signed(row) for each in ["olga", *told])
    entry = AuditEntry.objects.get()
    verb = way.action.audited or way.name.split()[0]
    assert (entry.by, entry.verb, entry.via) == ("olga", verb, way.via)
    assert (entry.model, entry.key) == (row._meta.label_lower, str(row.pk))
    column = NAMED_BY.get(entry.model)
    assert entry.name_of(entry.key) == (getattr(row, column) if column else entry.key)
    assert entry.reason == (REASON if way.takes_reason() else "")
    assert (entry.asked, entry.changed, entry.skipped, entry.error) == (1, 1, {}, "")
    assert entry.finished_at is not None
    logged = LogEntry.objects.values_list("object_id", "action_flag")
    flag = 3 if way.action.deletes else 2
    assert list(logged) == ([(str(row.pk), flag)] if way.via == "admin" else [])


@cells(lambda way: way.action.reason == "all")
def test_an_action_without_its_reason_asks_again(way: Interface, operator: Client) -> None:
    row = way.action.row()
    before, seen = state_of(row), way.look(operator, row)

    for reason in ("", "   ", "x" * 501):
        answer = way.send(operator, row, seen, reason)
        assert answer.outcome == "asked", (reason, answer)

    assert (state_of(row), AuditEntry.objects.count()) == (before, 0)


@cells(lambda way: way.via != "command")
def test_an_action_is_refused_without_permission_or_csrf_token_and_while_read_only(
    way: Interface, operator: Client, settings: Settings
) -> None:
    row = way.action.row()
    before, seen = state_of(row), way.look(operator, row)
    other = browser(user("emil", without=way.action.permission))
    strict = browser(User.objects.get(username="olga"), enforce_csrf_checks=True)

    if way.via == "page" and not way.asks:
        assert operator.get(way.url(row)).status_code == 405, "it is done by POST alone"
    assert way.send(other, row, seen, REASON).outcome == "refused", "without permission"
    assert way.send(strict, row, seen, REASON).outcome == "refused", "without the CSRF token"
    assert not way.offered(other, row)
    assert not way.asks or way.ask(other, row).status_code == 403
    settings.LEASING = {**settings.LEASING, "READ_ONLY": True}
    assert way.send(operator, row, seen, REASON).outcome == "refused", "while read-only"
    assert not way.offered(operator, row)
    assert not way.asks or way.ask(operator, row).status_code == 403

    assert (state_of(row), AuditEntry.objects.count()) == (before, 0)


@EVERYWHERE
def test_a_row_that_was_settled_meanwhile_stays_as_it_is(way: Interface, operator: Client) -> None:
    row = way.action.row()
    seen = way.look(operator, row)
    way.action.settled(row)
    before = state_of(row)

    answer = way.send(operator, row, seen, REASON)

    assert answer.outcome == ("done" if way.action.is_wish else "unchanged"), answer
    assert state_of(row) == before
    entry = AuditEntry.objects.latest("pk")
    assert (entry.asked, entry.changed, sum(entry.skipped.values())) == (1, 0, 1)
    assert not LogEntry.objects.exists()


@cells(lambda way: type(way) in (Interface, List, Admin) and way.action.granted_again is not None)
def test_a_row_that_was_granted_again_meanwhile_is_left_to_its_holder(
    way: Interface, operator: Client
) -> None:
    row = way.action.row()
    seen = way.look(operator, row)
    assert way.action.granted_again
    way.action.granted_again(row)
    before = state_of(row)

    answer = way.send(operator, row, seen, REASON)

    assert answer.outcome == "unchanged", answer
    assert state_of(row) == before
    assert AuditEntry.objects.get().changed == 0


def shows_only_to_viewers(way: Interface) -> bool:
    """In Django's admin, the permission to change rows is one to see them."""
    return way.via == "page" or (type(way) is Admin and ".change_" not in way.action.permission)


@cells(lambda way: shows_only_to_viewers(way) and way.takes_reason())
def test_one_who_may_act_and_not_look_is_shown_nothing(way: Interface, operator: Client) -> None:
    """A form that was filled in wrongly shows its page again, which has a permission of its own."""
    row = way.action.row()
    before, seen = state_of(row), way.look(operator, row)
    blind = browser(user("emil", only=(way.action.permission,)))

    assert way.send(blind, row, seen, "x" * 501).outcome == "refused"

    assert (state_of(row), AuditEntry.objects.count()) == (before, 0)


@cells(lambda way: way.via == "command")
def test_a_command_is_for_those_who_have_a_shell(
    way: Interface, operator: Client, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "READ_ONLY": True}
    row = way.action.row()

    assert way.send(operator, row, {}, REASON).outcome == "done"
