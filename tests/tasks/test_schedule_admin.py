"""Schedules on the operator's page and in the admin: what is shown, and who may do what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from leasing.functions import DbNow, after, database_now
from leasing.models import AuditEntry
from tasks import declarations, schedule, schedules
from tasks.models import Schedule, ScheduleSlot, Task
from tasks.standing import standing_of
from tests.fixtures import client_with
from tests.pages import Page, assert_cheap, get, sent_by, signed_in, user_with
from tests.tasks.support import Handlers

pytestmark = pytest.mark.django_db

PAGE, ADMIN, SLOTS = "/ops/schedules/", "/admin/tasks/schedule/", "/admin/tasks/scheduleslot/"
VIEW, CHANGE, SEE_TASKS = "tasks.view_schedule", "tasks.change_schedule", "tasks.view_task"
EDIT = (VIEW, CHANGE, "tasks.add_schedule", "tasks.delete_schedule", "tasks.view_scheduleslot")


@pytest.fixture(autouse=True)
def own_declarations(monkeypatch: pytest.MonkeyPatch, handlers: Handlers) -> None:
    monkeypatch.setattr(declarations, "_declared", {})


viewer = client_with(VIEW)
operator = client_with(VIEW, CHANGE, SEE_TASKS, name="olga")
editor = client_with(*EDIT, name="ida", is_staff=True)


def make(name: str = "hourly", **columns: Any) -> Schedule:
    row: Schedule = Schedule.objects.create(
        name=name,
        **{"task_name": "jobs.echo", "cron": "0 * * * *", "next_at": after(timedelta(hours=1))}
        | columns,
    )
    row.refresh_from_db()
    return row


def declare(name: str = "declared") -> Schedule:
    schedule(name, "jobs.echo", every=60)
    schedules.declare_all()
    return Schedule.objects.get(name=name)


def url_of(row: Schedule, verb: str) -> str:
    return reverse(f"tasks:schedule_{verb}", args=[row.pk])


# The operator's page


@pytest.mark.once
def test_the_page_is_closed_by_default(client: Client) -> None:
    assert client.get(PAGE)["Location"] == f"/login/?next={PAGE}"
    client.force_login(user_with(SEE_TASKS))
    assert client.get(PAGE).status_code == 403


@pytest.mark.once
def test_without_schedules_the_page_says_how_to_make_one(viewer: Client) -> None:
    page = get(viewer, PAGE)
    assert "There are no schedules yet." in page.text and PAGE in page.links


STANDINGS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "active", ""),
    ({"paused_at": DbNow(), "paused_by": "ida"}, "paused", "Paused by ida just now."),
    (
        {"declared": True, "declared_at": after(timedelta(days=-2))},
        "orphaned",
        "No running code has declared it since",
    ),
    ({"declared": True}, "orphaned", "No running code declares it."),
    ({"task_name": "jobs.x"}, "unknown task", "No handler is registered here for jobs.x"),
    ({"next_at": after(timedelta(minutes=-2))}, "overdue", "It was due at 20"),
    ({"cron": "0 0 * *"}, "no rule", "It does not say when: A cron expression has five fields."),
]


@pytest.mark.once
@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
@pytest.mark.parametrize(("columns", "sign", "why"), STANDINGS)
def test_it_is_said_how_a_schedule_stands_and_why(
    viewer: Client, columns: dict[str, Any], sign: str, why: str
) -> None:
    row = make(**columns)
    standing = standing_of(row, database_now("default"))
    assert standing.sign.word == sign and standing.why.startswith(why)
    assert len(standing.upcoming) == (5 if sign in ("active", "overdue") else 0)

    page = get(viewer, PAGE)
    assert sign in page.text and why in page.text
    assert not any("/pause/" in url or "/run/" in url for url in page.forms)


@pytest.mark.once
def test_the_page_tells_of_the_last_moment(operator: Client) -> None:
    row = make(overlap=False)
    assert "never" in get(operator, PAGE).text
    operator.post(url_of(row, "run"))
    task = Task.objects.get()
    page = get(operator, PAGE)
    assert "run by olga" in page.text and f"/ops/tasks/{task.pk}/" in page.links
    assert (
        "At the start of every hour (UTC) · enqueues jobs.echo · never two at a time" in page.text
    )

    message = Page(operator.post(url_of(row, "run"), follow=True)).text
    assert "its previous task has not ended" in message
    assert "skipped: the task before it had not ended" in message


def test_a_list_of_schedules_costs_the_same_whatever_its_length(viewer: Client) -> None:
    make("oldest")
    few = sent_by(viewer, PAGE)
    for number in range(60):
        make(f"more-{number}")
    many = sent_by(viewer, PAGE)
    assert len(many) == len(few)
    assert_cheap(many)
    page = get(viewer, PAGE)
    assert "oldest" not in page.text
    assert "oldest" in get(viewer, page.link_called("Older")).text
    assert viewer.get(PAGE, {"at": "nonsense"}).status_code == 400


@pytest.mark.once
def test_the_buttons_pause_resume_and_run(operator: Client) -> None:
    row = make()
    assert url_of(row, "pause") in get(operator, PAGE).forms
    assert "It is paused." in Page(operator.post(url_of(row, "pause"), follow=True)).text
    paused = Schedule.objects.get()
    assert paused.paused_at and paused.paused_by == "olga"
    assert "paused already" in Page(operator.post(url_of(row, "pause"), follow=True)).text

    page = Page(operator.post(url_of(row, "run"), follow=True))
    assert "Its task is enqueued." in page.text and Task.objects.count() == 1

    assert url_of(row, "resume") in page.forms
    assert "It goes on." in Page(operator.post(url_of(row, "resume"), follow=True)).text
    assert Schedule.objects.get().paused_at is None


@pytest.mark.once
def test_a_button_says_what_is_wrong(operator: Client) -> None:
    row = make(queue="closed")
    page = Page(operator.post(url_of(row, "run"), follow=True))
    assert "Nothing was enqueued: There is no queue 'closed'" in page.text


@pytest.mark.once
@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_a_button_needs_the_permission_a_post_and_a_schedule(
    viewer: Client, operator: Client, verb: str
) -> None:
    row = make(paused_at=DbNow() if verb == "resume" else None)
    before = Schedule.objects.values().get()
    assert viewer.post(url_of(row, verb)).status_code == 403
    assert operator.get(url_of(row, verb)).status_code == 405
    assert operator.post(f"{PAGE}{row.pk + 1}/{verb}/").status_code == 404
    assert Schedule.objects.values().get() == before and not Task.objects.exists()


# The admin

WHOLE = {
    "name": "nightly",
    "task_name": "jobs.echo",
    "task_data": '{"a": 1}',
    "queue": "",
    "priority": "0",
    "cron": "0 3 * * *",
    "every": "",
    "timezone": "Europe/Berlin",
    "missed": "latest",
    "overlap": "on",
}


@pytest.mark.once
def test_what_is_added_has_no_state_and_no_past_yet(editor: Client) -> None:
    text = get(editor, f"{ADMIN}add/").text
    assert "Task data" in text and "Created at" not in text and "Next moments" not in text


@pytest.mark.once
def test_one_makes_a_schedule_of_ones_own(editor: Client) -> None:
    assert editor.get(f"{ADMIN}add/").status_code == 200
    editor.post(f"{ADMIN}add/", WHOLE)

    row = Schedule.objects.get()
    assert (row.task_data, row.cron, row.declared, row.overlap) == ({"a": 1}, "0 3 * * *", False, 1)
    assert row.next_at == row.rule.first(database_now("default"))
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.key, entry.via) == ("ida", "add", str(row.pk), "admin")
    page = get(editor, f"{ADMIN}{row.pk}/change/")
    following = row.rule.upcoming(row.next_at, 5)
    assert all(f"{each:%Y-%m-%d %H:%M:%S} UTC" in page.text for each in following)
    assert "At 03:00 every day (Europe/Ber" in get(editor, ADMIN).text


@pytest.mark.once
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cron": "0 3 * *"}, "A cron expression has five fields."),
        ({"cron": "0 25 * * *"}, "Bad hour"),
        ({"cron": ""}, "Say when"),
        ({"every": "00:10:00"}, "not both"),
        ({"cron": "", "every": "0"}, "An interval must be from 1 second"),
        ({"timezone": "Mars"}, "There is no time zone &#x27;Mars&#x27;"),
        ({"task_name": "jobs.x"}, "No handler is registered for &#x27;jobs.x&#x27;"),
        ({"task_data": "[1]"}, "must be a JSON object"),
        ({"task_data": "{"}, "Enter a valid JSON"),
        ({"queue": "closed"}, "There is no queue &#x27;closed&#x27;"),
        ({"name": "a\tb"}, "control characters"),
        ({"priority": "99999"}, "32767"),
    ],
)
def test_what_could_never_be_enqueued_is_refused(
    editor: Client, wrong: dict[str, str], text: str
) -> None:
    response = editor.post(f"{ADMIN}add/", WHOLE | wrong)
    assert response.status_code == 200 and text in response.content.decode()
    assert not Schedule.objects.exists()


@pytest.mark.once
def test_a_change_of_the_rule_begins_anew_and_others_leave_the_plan(editor: Client) -> None:
    row = make("nightly", cron="0 3 * * *", timezone="Europe/Berlin", task_data={"a": 1})
    url = f"{ADMIN}{row.pk}/change/"
    editor.post(url, WHOLE | {"priority": "5"})
    changed = Schedule.objects.get()
    assert (changed.priority, changed.next_at) == (5, row.next_at)

    editor.post(url, WHOLE | {"cron": "0 4 * * *"})
    moved = Schedule.objects.get()
    assert moved.next_at == moved.rule.first(database_now("default")) != row.next_at


def test_a_change_keeps_what_happened_while_the_form_was_open(
    editor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make("nightly", cron="0 3 * * *", timezone="Europe/Berlin", task_data={"a": 1})
    clean = Schedule.clean

    def meanwhile(self: Schedule) -> None:
        clean(self)
        Schedule.objects.pause(by="olga")
        Schedule.objects.update(next_at=datetime(2040, 1, 1, tzinfo=UTC))

    monkeypatch.setattr(Schedule, "clean", meanwhile)
    editor.post(f"{ADMIN}{row.pk}/change/", WHOLE | {"priority": "5"})

    after_all = Schedule.objects.get()
    assert (after_all.priority, after_all.paused_by) == (5, "olga")
    assert after_all.next_at == datetime(2040, 1, 1, tzinfo=UTC)


@pytest.mark.once
def test_what_code_declares_is_paused_there_and_not_changed(editor: Client) -> None:
    row = declare()
    url = f"{ADMIN}{row.pk}/"
    assert get(editor, f"{url}change/").status == 200
    assert editor.post(f"{url}change/", WHOLE).status_code == 403
    assert editor.post(f"{url}delete/", {"post": "yes"}).status_code == 403
    everything = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
    editor.post(ADMIN, everything)
    assert not AuditEntry.objects.exists()
    assert Schedule.objects.get().name == "declared"
    assert "1 of 1 schedule." in act(editor, "pause", row).text


@pytest.mark.once
def test_what_no_code_declares_any_more_can_be_deleted(editor: Client) -> None:
    row = declare()
    Schedule.objects.run_now()
    Schedule.objects.update(declared_at=after(timedelta(days=-2)))
    page = Page(editor.post(f"{ADMIN}{row.pk}/delete/", {"post": "yes"}, follow=True))
    assert page.status == 200
    assert not Schedule.objects.exists() and not ScheduleSlot.objects.exists()
    assert AuditEntry.objects.get().verb == "delete"


@pytest.mark.once
def test_the_data_of_a_schedule_is_seen_by_who_may_and_its_secrets_by_who_edits(
    editor: Client,
) -> None:
    own, declared = make(task_data={"token": "hunter2"}), declare()
    Schedule.objects.filter(pk=declared.pk).update(task_data={"token": "hunter2", "a": "Hamburg"})
    trusted = signed_in(*EDIT, "tasks.view_payload", name="tia", is_staff=True)
    assert "hunter2" not in get(editor, f"{ADMIN}{own.pk}/change/").html
    assert "hunter2" in get(trusted, f"{ADMIN}{own.pk}/change/").html
    assert "Hamburg" not in get(editor, f"{ADMIN}{declared.pk}/change/").html
    page = get(trusted, f"{ADMIN}{declared.pk}/change/").html
    assert "Hamburg" in page and "hunter2" not in page
    editor.post(f"{ADMIN}{own.pk}/change/", WHOLE | {"name": own.name, "priority": "3"})
    changed = Schedule.objects.get(pk=own.pk)
    assert (changed.priority, changed.task_data) == (3, {"token": "hunter2"})


@pytest.mark.parametrize("url", [ADMIN, SLOTS, f"{ADMIN}?declared__exact=0"])
def test_a_list_of_the_admin_costs_the_same_whatever_its_length(editor: Client, url: str) -> None:
    make("oldest")
    Schedule.objects.run_now()
    few = sent_by(editor, url)
    for number in range(12):
        make(f"more-{number}")
    Schedule.objects.run_now()
    many = sent_by(editor, url)
    assert_cheap(many)
    assert len(many) == len(few)
    assert not any('"task_data"' in sql for sql in many)


def act(client: Client, action: str, row: Schedule) -> Page:
    data = {"action": action, "_selected_action": [row.pk], "confirmed": "yes"}
    return Page(client.post(ADMIN, data, follow=True))


@pytest.mark.once
def test_the_actions_ask_and_remember_who_did_it(editor: Client) -> None:
    row = make()
    asked = editor.post(ADMIN, {"action": "run_now", "_selected_action": [row.pk]})
    assert "beside its plan" in asked.content.decode() and not Task.objects.exists()

    assert "1 of 1 schedule." in act(editor, "run_now", row).text
    slot = ScheduleSlot.objects.get()
    assert slot.run_by == "ida"
    slots = get(editor, f"{SLOTS}?schedule__id__exact={row.pk}")
    assert f"task {slot.task_id}" in slots.text and "ida" in slots.text

    assert "1 of 1 schedule." in act(editor, "pause", row).text
    assert Schedule.objects.get().paused_by == "ida"
    assert "1 of 1 schedule." in act(editor, "resume", row).text
    assert "1 not paused" in act(editor, "resume", row).text
    assert LogEntry.objects.count() == 3, "what changed nothing is no history of it"
    verbs = list(AuditEntry.objects.order_by("pk").values_list("verb", "changed", "via"))
    assert verbs == [
        (v, n, "admin") for v, n in (("run", 1), ("pause", 1), ("resume", 1), ("resume", 0))
    ]


@pytest.mark.once
def test_an_action_says_what_is_wrong(editor: Client) -> None:
    row = make(queue="closed")
    assert "Not all was done: There is no queue" in act(editor, "run_now", row).text


@pytest.mark.once
def test_the_actions_need_the_permission() -> None:
    row = make()
    client = signed_in(VIEW, is_staff=True)
    assert act(client, "pause", row).status == 403
    assert Schedule.objects.get().paused_at is None
    assert client.get(f"{ADMIN}add/").status_code == 403


@pytest.mark.once
def test_slots_are_only_looked_at(admin_client: Client) -> None:
    make()
    Schedule.objects.run_now()
    slot = ScheduleSlot.objects.get()
    assert get(admin_client, SLOTS).status == 200
    assert get(admin_client, f"{SLOTS}{slot.pk}/change/").status == 200
    assert admin_client.post(f"{SLOTS}{slot.pk}/delete/").status_code == 403


@pytest.mark.once
def test_what_the_forms_of_the_admin_do_is_noted(editor: Client) -> None:
    editor.post(f"{ADMIN}add/", WHOLE)
    row = Schedule.objects.get()
    editor.post(f"{ADMIN}{row.pk}/change/", WHOLE | {"priority": "5"})
    editor.post(f"{ADMIN}{row.pk}/delete/", {"post": "yes"})

    entries = AuditEntry.objects.order_by("pk")
    assert list(entries.values_list("by", "verb", "via")) == [
        ("ida", verb, "admin") for verb in ("add", "change", "delete")
    ]
    assert {entry.target["filter"]["name"][0] for entry in entries} == {row.name}
