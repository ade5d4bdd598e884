"""Schedules on the operator's page and in the admin: what is shown, and who may do what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from leasing.admin.links import short
from leasing.functions import DbNow, after, database_now
from leasing.models import AuditEntry
from leasing.web.badges import Badge
from tasks import schedule
from tasks.dashboard import schedule_status
from tasks.dashboard.schedule_status import status_of
from tasks.exceptions import InvalidSchedule
from tasks.maintenance import scheduler
from tasks.models import Schedule, ScheduleSlot, Task
from tasks.scheduling.rules import Cron
from tests.elements import Element
from tests.fixtures import client_with
from tests.leasing.support import just_before_the_update
from tests.pages import Page, assert_cheap, get, sent_by, signed_in, user_with

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("handlers", "own_declarations")]

HOUR = timedelta(hours=1)
PAGE, ADMIN, SLOTS = (
    "/ops/schedules/",
    "/admin/leasing_tasks/schedule/",
    "/admin/leasing_tasks/scheduleslot/",
)
VIEW, CHANGE, SEE_TASKS = (
    "leasing_tasks.view_schedule",
    "leasing_tasks.change_schedule",
    "leasing_tasks.view_task",
)
EDIT = (
    VIEW,
    CHANGE,
    "leasing_tasks.add_schedule",
    "leasing_tasks.delete_schedule",
    "leasing_tasks.view_scheduleslot",
)


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
    scheduler.declare_all()
    return Schedule.objects.get(name=name)


def url_of(row: Schedule, verb: str) -> str:
    return reverse(f"leasing_tasks:schedule_{verb}", args=[row.pk])


# The operator's page


def test_the_page_is_closed_by_default(client: Client) -> None:
    assert client.get(PAGE)["Location"] == f"/ops/login/?next={PAGE}"
    client.force_login(user_with(SEE_TASKS))
    assert client.get(PAGE).status_code == 403


def test_without_schedules_the_page_says_how_to_make_one(viewer: Client) -> None:
    page = get(viewer, PAGE)
    assert page.is_empty and page.rows == [] and PAGE in page.links


def refusal_of(cron: str) -> str:
    """The error in a cron expression."""
    with pytest.raises(InvalidSchedule) as refusal:
        Cron(cron, "UTC").first(datetime.now(UTC))
    return str(refusal.value)


#: How a schedule stands, and what its reason names.
STANDINGS: list[tuple[dict[str, Any], Badge, str]] = [
    ({}, schedule_status.ACTIVE, ""),
    (
        {"paused_at": DbNow(), "paused_by": "ida", "reason": "month end"},
        schedule_status.PAUSED,
        "Paused by ida just now: “month end”. Due times are skipped until it is resumed.",
    ),
    (
        {"paused_at": DbNow(), "next_at": after(timedelta(minutes=-90))},
        schedule_status.PAUSED,
        "Paused just now. Due times are skipped until it is resumed, 3 so far.",
    ),
    (
        {"paused_at": DbNow(), "next_at": after(timedelta(days=-150))},
        schedule_status.PAUSED,
        "resumed, 100+ so far.",
    ),
    (
        {"declared": True, "declared_at": after(timedelta(days=-2))},
        schedule_status.ORPHANED,
        "2029-12-30",
    ),
    ({"declared": True}, schedule_status.ORPHANED, ""),
    ({"task_name": "jobs.x"}, schedule_status.UNKNOWN_TASK, "jobs.x"),
    ({"next_at": after(timedelta(minutes=-2))}, schedule_status.OVERDUE, "2029-12-31 23:58:00"),
    ({"cron": "0 0 * *"}, schedule_status.BROKEN, refusal_of("0 0 * *")),
]


@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
@pytest.mark.parametrize(("columns", "badge", "names"), STANDINGS)
def test_it_is_said_how_a_schedule_stands_and_why(
    viewer: Client, columns: dict[str, Any], badge: Badge, names: str
) -> None:
    schedule = make(**columns)
    stands = status_of(schedule, database_now("default"))
    assert stands.badge is badge and names in stands.why
    assert bool(stands.why) == (badge is not schedule_status.ACTIVE)
    assert len(stands.upcoming) == (
        5 if badge in (schedule_status.ACTIVE, schedule_status.OVERDUE) else 0
    )

    page = get(viewer, PAGE)
    (row,) = page.rows
    assert row.badges == [badge.word] and stands.why in row.element.one("td.name").text
    assert not any("/pause/" in url or "/run/" in url for url in page.forms)


def test_the_page_tells_of_the_last_moment(operator: Client) -> None:
    row = make(overlap=False)

    def last(page: Page) -> Element:
        return page.row(f"schedule{row.pk}").cell("Last")

    assert not last(get(operator, PAGE)).all("time")
    operator.post(url_of(row, "run"))
    task = Task.objects.get()
    page = get(operator, PAGE)
    assert last(page).one("bdi").text == "olga" and not last(page).all("[data-skipped]")
    assert last(page).links == [f"/ops/tasks/{task.pk}/"]
    assert str(row.rule) in page.text and "jobs.echo" in page.text

    page = Page(operator.post(url_of(row, "run"), follow=True))
    assert page.notice.tone == "warn"
    assert last(page).all("[data-skipped]") and not last(page).links


def test_a_list_of_schedules_costs_the_same_whatever_its_length(viewer: Client) -> None:
    make("oldest")
    few = sent_by(viewer, PAGE)
    Schedule.objects.bulk_create(
        Schedule(name=f"more-{number}", task_name="jobs.echo", every=HOUR, next_at=after(HOUR))
        for number in range(60)
    )
    many = sent_by(viewer, PAGE)
    assert len(many) == len(few)
    assert_cheap(many)
    page = get(viewer, PAGE)
    assert "oldest" not in page.text
    assert "oldest" in get(viewer, page.next).text
    assert viewer.get(PAGE, {"at": "nonsense"}).status_code == 400


def test_a_button_says_what_is_wrong(operator: Client) -> None:
    row = make(queue="closed")
    page = Page(operator.post(url_of(row, "run"), follow=True))
    assert page.notice.tone == "warn" and "'closed'" in page.notice.text


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


def test_what_is_added_has_no_state_and_no_past_yet(editor: Client) -> None:
    page = get(editor, f"{ADMIN}add/")
    assert page.all(".field-task_data")
    assert not page.all(".field-created_at") and not page.all(".field-moments")


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
    (listed,) = get(editor, ADMIN).rows
    assert listed["when"] == short(str(row.rule))


@pytest.mark.parametrize(
    ("wrong", "field", "names"),
    [
        ({"cron": "0 3 * *"}, "cron", ""),
        ({"cron": "0 25 * * *"}, "cron", "hour"),
        ({"cron": ""}, "cron", ""),
        ({"every": "00:10:00"}, "cron", ""),
        ({"cron": "", "every": "0"}, "every", "1 second"),
        ({"timezone": "Mars"}, "timezone", "'Mars'"),
        ({"task_name": "jobs.x"}, "task_name", "'jobs.x'"),
        ({"task_data": "[1]"}, "task_data", "JSON object"),
        ({"task_data": "{"}, "task_data", "JSON"),
        ({"queue": "closed"}, "queue", "'closed'"),
        ({"name": "a\tb"}, "name", "control"),
        ({"priority": "99999"}, "priority", "32767"),
    ],
)
def test_what_could_never_be_enqueued_is_refused(
    editor: Client, wrong: dict[str, str], field: str, names: str
) -> None:
    page = Page(editor.post(f"{ADMIN}add/", WHOLE | wrong))
    (errors,) = page.all("ul.errorlist")
    assert page.status == 200 and names in errors.text
    assert page.invalid == {field}
    assert not Schedule.objects.exists()


def test_a_change_of_the_rule_begins_anew_and_others_leave_the_plan(editor: Client) -> None:
    row = make("nightly", cron="0 3 * * *", timezone="Europe/Berlin", task_data={"a": 1})
    url = f"{ADMIN}{row.pk}/change/"
    editor.post(url, WHOLE | {"priority": "5"})
    changed = Schedule.objects.get()
    assert (changed.priority, changed.next_at) == (5, row.next_at)

    editor.post(url, WHOLE | {"cron": "0 4 * * *"})
    moved = Schedule.objects.get()
    assert moved.next_at == moved.rule.first(database_now("default")) != row.next_at


def test_a_change_keeps_what_happened_while_the_form_was_open(editor: Client) -> None:
    row = make("nightly", cron="0 3 * * *", timezone="Europe/Berlin", task_data={"a": 1})

    def meanwhile() -> None:
        Schedule.objects.pause(by="olga")
        Schedule.objects.update(next_at=datetime(2040, 1, 1, tzinfo=UTC))

    with just_before_the_update(meanwhile):
        editor.post(f"{ADMIN}{row.pk}/change/", WHOLE | {"priority": "5"})

    after_all = Schedule.objects.get()
    assert (after_all.priority, after_all.paused_by) == (5, "olga")
    assert after_all.next_at == datetime(2040, 1, 1, tzinfo=UTC)


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
    assert changed_by(act(editor, "pause", row)) == ("ok", [1, 1])


def test_what_no_code_declares_any_more_can_be_deleted(editor: Client) -> None:
    row = declare()
    Schedule.objects.run_now()
    Schedule.objects.update(declared_at=after(timedelta(days=-2)))
    page = Page(editor.post(f"{ADMIN}{row.pk}/delete/", {"post": "yes"}, follow=True))
    assert page.status == 200
    assert not Schedule.objects.exists() and not ScheduleSlot.objects.exists()
    assert AuditEntry.objects.get().verb == "delete"


def test_the_data_of_a_schedule_is_seen_by_who_may_and_its_secrets_by_who_edits(
    editor: Client,
) -> None:
    own, declared = make(task_data={"token": "hunter2"}), declare()
    Schedule.objects.filter(pk=declared.pk).update(task_data={"token": "hunter2", "a": "Hamburg"})
    trusted = signed_in(*EDIT, "leasing_tasks.view_payload", name="tia", is_staff=True)
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
    for number in range(3):
        make(f"more-{number}")
    Schedule.objects.run_now()
    many = sent_by(editor, url)
    assert_cheap(many)
    assert len(many) == len(few)
    assert not any('"task_data"' in sql for sql in many)


def changed_by(page: Page) -> tuple[str, list[float]]:
    """The tone of the outcome, then how many rows changed, of how many."""
    return page.notice.tone, page.notice.numbers


def act(client: Client, action: str, row: Schedule) -> Page:
    data = {"action": action, "_selected_action": [row.pk], "confirmed": "yes"}
    return Page(client.post(ADMIN, data, follow=True))


def test_a_slot_that_was_run_by_hand_says_by_whom_and_leads_to_its_task(editor: Client) -> None:
    row = make()
    assert changed_by(act(editor, "run_now", row)) == ("ok", [1, 1])
    slot = ScheduleSlot.objects.get()
    slots = get(editor, f"{SLOTS}?schedule__id__exact={row.pk}")
    (listed,) = slots.rows
    assert listed["run_by"] == "ida"
    assert f"/admin/leasing_tasks/task/{slot.task_id}/change/" in listed.links


def test_an_action_says_what_is_wrong(editor: Client) -> None:
    row = make(queue="closed")
    notice = act(editor, "run_now", row).notice
    assert notice.tone == "crit" and "'closed'" in notice.text


def test_slots_are_only_looked_at(admin_client: Client) -> None:
    make()
    Schedule.objects.run_now()
    slot = ScheduleSlot.objects.get()
    assert get(admin_client, SLOTS).status == 200
    assert get(admin_client, f"{SLOTS}{slot.pk}/change/").status == 200
    assert admin_client.post(f"{SLOTS}{slot.pk}/delete/").status_code == 403


def test_what_the_forms_of_the_admin_do_is_noted(editor: Client) -> None:
    editor.post(f"{ADMIN}add/", WHOLE)
    row = Schedule.objects.get()
    editor.post(f"{ADMIN}{row.pk}/change/", WHOLE | {"priority": "5"})
    editor.post(f"{ADMIN}{row.pk}/delete/", {"post": "yes"})

    entries = AuditEntry.objects.order_by("pk")
    assert list(entries.values_list("by", "verb", "via")) == [
        ("ida", verb, "admin") for verb in ("add", "change", "delete")
    ]
    assert {entry.target["names"][entry.key] for entry in entries} == {row.name}
