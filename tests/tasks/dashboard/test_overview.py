"""The overview and the generator's page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache.backends import base, locmem
from django.db.models import F
from django.test import Client
from pytest_django import Settings

from leasing.functions import DbNow, after, database_now
from leasing.models import Lease
from tasks import registry
from tasks.dashboard import health, overview
from tasks.dashboard.badges import GENERATOR_BADGES, WORKER_BADGES
from tasks.dashboard.queue_rows import read_queues
from tasks.generator import start_generator, stop_generator
from tasks.models import GeneratorDesiredState, Queue, Sample, Schedule, Task, Worker, WorkerState
from tasks.monitoring import runbook_names
from tests.elements import Element
from tests.factories import claimed, make_lease, make_task, make_worker
from tests.fixtures import client_with
from tests.leasing.support import expire
from tests.limits import Limits
from tests.pages import Page, assert_cheap, get, queries, sent_by, signed_in
from tests.tasks.support import make_due

pytestmark = pytest.mark.django_db

OVERVIEW, GENERATOR, RUNBOOK = "/ops/", "/ops/generator/", "/ops/runbook/"
START, STOP = f"{GENERATOR}start/", f"{GENERATOR}stop/"
VIEW, CONTROL = "leasing_tasks.view_task", "leasing_tasks.control_generator"
EVERYTHING = (VIEW, CONTROL, "leasing_tasks.view_worker", "leasing.view_lease")

viewer = client_with(*EVERYTHING[:1], *EVERYTHING[2:])
operator = client_with(*EVERYTHING, name="olga")


def generating(holder: str = "web-2") -> Lease:
    """``holder`` generates, and has acknowledged the latest desired state."""
    lease = make_lease(resource="leasing_tasks.generator", holder=holder)
    acknowledge(holder)
    return lease


def acknowledge(holder: str) -> None:
    desired = GeneratorDesiredState.objects.get()
    GeneratorDesiredState.objects.update(
        acknowledged_revision=desired.revision, acknowledged_by=holder, acknowledged_at=DbNow()
    )


def changed_long_ago() -> None:
    GeneratorDesiredState.objects.update(changed_at=after(timedelta(minutes=-2)))


def needs(page: Page) -> list[str]:
    """The codes of the needs, the gravest first."""
    return [each["data-code"] for each in page.all(".needs li")]


def need(page: Page, code: str) -> Element:
    return page.one(f".needs li[data-code={code}]")


def is_well(page: Page) -> bool:
    return page.one("header.health").tone == "ok" and not needs(page)


# The overview


def test_every_issue_that_has_a_page_of_the_runbook_links_it() -> None:
    assert set(health.RUNBOOK.values()) <= set(runbook_names())


def test_when_all_is_well_the_overview_says_so_and_lists_nothing(viewer: Client) -> None:
    make_worker(name="dora")
    make_task(state="running", holder="dora")
    make_task()
    page = get(viewer, OVERVIEW)
    assert is_well(page) and page.one("header.health h1").numbers == [1, 1, 1]
    assert not page.all("#needs")


@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_the_overview_names_every_problem_the_gravest_first(viewer: Client) -> None:
    make_task(state="stuck")
    make_task(state="failed")
    make_task()
    # What PostgreSQL puts into a new row is by its own clock.
    Task.objects.filter(status="ready").update(scheduled_at=DbNow())
    start_generator(by="olga")
    changed_long_ago()
    page = get(viewer, OVERVIEW)
    assert needs(page) == ["no_recoverer", "no_worker", "failed", "start_unheard"]
    tones = [each.tone for each in page.all(".needs li .tinted")]
    assert tones == ["crit", "crit", "warn", "warn"]
    assert all(use["href"] != "#i-" for use in page.all(".needs li use"))
    reported = [each.numbers for each in page.all(".needs li .loud")]
    assert reported == [[1], [1], [1], [2]]
    assert page.one("header.health").tone == "crit"
    assert page.one("header.health h1").numbers == page.one("head title").numbers == [4]


def test_a_single_problem_is_told_with_where_to_look(viewer: Client) -> None:
    make_worker()
    make_task(state="failed")
    page = get(viewer, OVERVIEW)
    assert needs(page) == ["failed"] and page.one("header.health h1").numbers == [1]
    assert need(page, "failed").links == ["/ops/tasks/?state=failed", f"{RUNBOOK}failed-tasks/"]


def test_a_stop_that_nobody_acknowledges_is_a_problem_after_a_while(viewer: Client) -> None:
    make_worker()
    start_generator()
    generating("web-2")
    stop_generator(by="olga")
    assert is_well(get(viewer, OVERVIEW))
    changed_long_ago()
    assert needs(get(viewer, OVERVIEW)) == ["stop_unheard"]


def test_the_overview_shows_workers_and_their_tasks_those_that_are_not_well_first(
    viewer: Client,
) -> None:
    make_worker(name="vera", state="gone")
    dora = make_worker(name="dora")
    make_worker(name="emil", role="generator")
    task = make_task(state="running", holder="dora")
    page = get(viewer, OVERVIEW)
    assert {f"/ops/tasks/{task.pk}/", f"/ops/workers/{dora.pk}/"} <= set(page.links)
    assert page.names == ["vera", "dora"]


def test_the_overview_shows_only_what_one_may_see() -> None:
    make_worker(name="dora")
    page = get(signed_in(VIEW), OVERVIEW)
    assert "dora" not in page.text
    assert not {"/ops/workers/", "/ops/queues/", "/ops/leases/"} & set(page.links)


def test_workers_that_vanished_are_named_until_they_are_many(viewer: Client) -> None:
    make_worker(name="dora")
    for name in ("vera", "nina"):
        make_worker(name=name, state="gone")
    few = need(get(viewer, OVERVIEW), "gone").one(".loud")
    assert "vera" in few.text and "nina" in few.text and "dora" not in few.text
    for number in range(2):
        make_worker(name=f"more-{number}", state="gone")
    many = need(get(viewer, OVERVIEW), "gone").one(".loud")
    assert many.numbers == [4] and "vera" not in many.text
    Worker.objects.exclude(name="dora").update(last_seen_at=after(timedelta(minutes=-11)))
    assert is_well(get(viewer, OVERVIEW))


def test_a_worker_that_is_late_is_told(viewer: Client) -> None:
    make_worker(name="dora", state="late")
    assert "dora" in need(get(viewer, OVERVIEW), "late").text


def test_a_task_that_waits_for_long_is_a_problem_where_nothing_is_paused(viewer: Client) -> None:
    make_worker()
    task = make_task()
    Task.objects.update(scheduled_at=after(timedelta(minutes=-6)))
    assert need(get(viewer, OVERVIEW), "waits_long").one(".loud").numbers[:2] == [1, 6]
    Queue.objects.pause(task.queue, by="olga", reason="x")
    page = get(viewer, OVERVIEW)
    assert needs(page) == ["paused"]
    assert "Paused" in need(page, "paused").text and need(page, "paused").all("time")


@pytest.mark.usefixtures("database_clock")
def test_a_lease_that_is_held_while_somebody_waits_is_an_issue(viewer: Client) -> None:
    make_worker()
    Worker.objects.update(last_seen_at=DbNow())
    process = {"process": "report.py@vm:12:0a1b2c3d"}
    lease = make_lease(resource="report:stock", holder="a-job", ttl=900.0, metadata=process)
    rows = Lease.objects.filter(pk=lease.pk)

    def needed(held: int, wanted: int = 9, by: str = "ann") -> list[str]:
        moments = {"acquired_at": after(timedelta(seconds=-held))}
        rows.update(wanted_until=after(timedelta(seconds=wanted)), wanted_by=by, **moments)
        return needs(get(viewer, OVERVIEW))

    quiet = (14, 9, "ann"), (40, -1, "ann"), (40, 9, "")
    assert [needed(*each) for each in quiet] == [[], [], []]
    assert needed(120) == ["lease_wanted"]
    found = need(get(viewer, OVERVIEW), "lease_wanted")
    held = "held by a-job (report.py, pid 12 on vm) for 2 min."
    assert found.one(".loud").text == f"ann waits for the lease report:stock, {held}"
    assert found.links == [f"/ops/leases/{lease.pk}/", f"{RUNBOOK}forced-release/"]
    task = make_task(state="running", holder="ann")
    needed(120)
    assert (
        f"It runs task:{task.pk} sample.sleep." in need(get(viewer, OVERVIEW), "lease_wanted").text
    )
    headline = get(viewer, f"/ops/tasks/{task.pk}/").answers["why"].text
    assert headline.endswith(f"ann waits for the lease report:stock, {held}")


@pytest.mark.usefixtures("database_clock")
@pytest.mark.parametrize(
    ("seconds", "tones"), [(15, []), (16, ["info"]), (300, ["info"]), (301, ["warn"])]
)
@pytest.mark.parametrize("is_remote", [False, True])
def test_there_are_issues_once_a_task_has_been_due_for_long(
    viewer: Client, seconds: int, tones: list[str], is_remote: bool
) -> None:
    if is_remote:
        make_task(state="running", holder="elsewhere")
    else:
        make_worker()
        Worker.objects.update(last_seen_at=DbNow())  # by the clock that stands still
    make_task()
    Task.objects.filter(status="ready").update(scheduled_at=after(timedelta(seconds=-seconds)))
    page = get(viewer, OVERVIEW)
    assert [each.tone for each in page.all(".needs li .tinted")] == tones
    assert is_well(page) == (not tones)
    if tones:
        told = need(page, "waits_long").one(".loud").text
        assert "1 task waits in the queue default for " in told and "claims" in told


def test_tasks_that_no_worker_knows_are_a_problem_while_they_are_put_off(viewer: Client) -> None:
    make_worker()
    make_worker(queues=["mail"], handlers={"old": "thread"})
    for _ in range(2):
        task = make_task()
        Task.objects.filter(pk=task.pk).update(name="old", scheduled_at=after(timedelta(seconds=9)))
    page = get(viewer, OVERVIEW)
    assert needs(page) == ["unknown_task"]
    told = need(page, "unknown_task")
    assert told.links == ["/ops/tasks/?name=old", f"{RUNBOOK}stuck-queue/"]
    assert told.one(".loud").numbers == [2]

    assert "This process does not have it either." in told.one("p").text
    Worker.objects.update(queues=["default"])
    assert is_well(get(viewer, OVERVIEW))


def given_back(minutes: float) -> Task:
    """A task that workers have given back for lack of its handler, for so long."""
    task: Task = make_task()
    for _ in range(2):
        make_due(task)
        mine = claimed(task, "dora")
        reason = f"No handler is registered for '{task.name}'."
        Task.objects.give_back(mine, reason, delay=registry.UNKNOWN_DELAY)
    back = timedelta(minutes=minutes)
    rows = Task.objects.filter(pk=task.pk)
    rows.update(created_at=F("created_at") - back, started_at=F("started_at") - back)
    task.refresh_from_db()
    return task


def test_tasks_that_are_put_off_for_lack_of_a_handler_count_as_waiting(viewer: Client) -> None:
    make_worker(handlers={"other": "thread"})
    task = given_back(minutes=7)
    make_task(state="scheduled")

    (line,) = read_queues().lines
    assert (line.ready.value, line.scheduled.value, line.due_since) == (1, 1, task.started_at)
    (reason,) = line.reasons
    lacks = "no live worker of the queue default has a handler named sample.sleep."
    assert re.fullmatch(rf"1 task waits for 7 min( \d+ s)?: {lacks}", reason.sentence)
    Worker.objects.update(started_at=after(timedelta(minutes=-6)))
    page = get(viewer, OVERVIEW)
    assert needs(page) == ["unknown_task"]  # and no second one that its page says more
    assert "This process has it: check" in need(page, "unknown_task").one("p").text
    Worker.objects.update(started_at=after(timedelta(minutes=-8)))
    detail = need(get(viewer, OVERVIEW), "unknown_task").one("p").text
    assert "the workers started before" in detail
    # Where a worker has it, it is claimed at its time.
    make_worker()
    (line,) = read_queues().lines
    assert (line.ready.value, line.scheduled.value, line.due_since) == (0, 2, None)


def test_where_too_many_wait_to_be_counted_those_that_were_given_back_are_named(
    viewer: Client, limits: Limits
) -> None:
    limits(count_cap=2)
    make_worker(handlers={"sample.sleep": "thread"})
    Task.objects.filter(pk=given_back(minutes=7).pk).update(name="new")
    for name in ("new", "sample.sleep"):
        Task.objects.filter(pk=make_task().pk).update(name=name)

    loud = need(get(viewer, OVERVIEW), "unknown_task").one(".loud")
    assert loud.text.startswith("1+ tasks wait for a handler that no worker has: new")


@pytest.mark.parametrize(
    "columns", [{"scheduled_at": after(timedelta(minutes=5))}, {"attempts": F("grants")}]
)
def test_what_waits_for_its_own_time_does_not_count_as_waiting(columns: dict[str, Any]) -> None:
    make_worker(handlers={"other": "thread"})
    task = given_back(minutes=7)
    Task.objects.filter(pk=task.pk).update(**columns)
    (line,) = read_queues().lines
    assert (line.ready.value, line.scheduled.value, line.due_since) == (0, 1, None)


def test_an_overdue_schedule_is_a_problem(viewer: Client) -> None:
    make_worker()
    row = {"task_name": "sample.sleep", "every": timedelta(hours=1)}
    Schedule.objects.create(name="late", next_at=after(timedelta(minutes=-2)), **row)
    Schedule.objects.create(name="fine", next_at=after(timedelta(minutes=2)), **row)
    assert need(get(viewer, OVERVIEW), "overdue_schedule").one(".loud").numbers == [1]
    Schedule.objects.filter(name="late").pause()
    assert needs(get(viewer, OVERVIEW)) == ["paused_schedule"]


def test_a_paused_schedule_is_named_with_who_why_and_what_was_skipped(viewer: Client) -> None:
    make_worker()
    row = {"task_name": "sample.sleep", "every": timedelta(hours=1)}
    Schedule.objects.create(name="nightly", next_at=after(timedelta(minutes=-150)), **row)
    Schedule.objects.create(name="fine", next_at=after(timedelta(minutes=2)), **row)
    Schedule.objects.filter(name="nightly").pause(by="olga", reason="month end")

    found = need(get(viewer, OVERVIEW), "paused_schedule")

    assert "The schedule nightly was paused by olga; " in found.one(".loud").text
    assert "3 due times were skipped." in found.one(".loud").text
    assert found.one(".tinted").tone == "warn"
    detail = found.one("p").text
    assert "Its due times are skipped until someone resumes it. Reason: month end" in detail
    assert "Paused " in detail and found.all("time")
    assert found.links == ["/ops/schedules/", f"{RUNBOOK}schedules-overdue/"]
    Schedule.objects.filter(name="nightly").resume()
    assert is_well(get(viewer, OVERVIEW))


def test_paused_schedules_are_named_until_they_are_many(viewer: Client) -> None:
    make_worker()
    row = {"task_name": "sample.sleep", "every": timedelta(hours=1)}
    for number in range(5):
        Schedule.objects.create(name=f"s{number}", next_at=after(timedelta(minutes=2)), **row)
    Schedule.objects.pause(by="olga")
    page = get(viewer, OVERVIEW)
    assert needs(page) == ["paused_schedule"] * 3 + ["paused_schedules"]
    assert need(page, "paused_schedules").one(".loud").numbers == [2]
    assert {each.tone for each in page.all(".needs li .tinted")} == {"info"}


def test_a_schedule_that_nobody_served_before_its_pause_skips_from_then_on(viewer: Client) -> None:
    make_worker()
    Schedule.objects.create(name="new", task_name="sample.sleep", every=timedelta(hours=1))
    Schedule.objects.pause(by="olga")
    Schedule.objects.update(paused_at=after(timedelta(minutes=-150)))
    assert "2 due times were skipped." in need(get(viewer, OVERVIEW), "paused_schedule").text


@pytest.mark.parametrize(
    ("broken", "part", "stands"),
    [
        ("read_queues", "queues", "dora"),
        ("generator_status", "generator", "dora"),
        ("_workers", "workers", "default"),
    ],
)
def test_a_part_that_fails_is_shown_as_failed_and_the_others_stand(
    viewer: Client, monkeypatch: pytest.MonkeyPatch, broken: str, part: str, stands: str
) -> None:
    make_worker(name="dora")
    make_task(state="running", holder="dora")

    def fail(*args: object, **kwargs: object) -> None:
        Task.objects.extra(where=["no_such_column"]).exists()  # inside a transaction, too

    monkeypatch.setattr(overview, broken, fail)
    page = get(viewer, OVERVIEW)
    assert page.status == 200
    assert unread(page) == [part] and stands in page.text
    assert needs(page) == ["unread"] and not is_well(page)


def unread(page: Page) -> list[str]:
    """The parts of the page shown as unreadable."""
    parts = page.all("[data-live]")
    return [each["data-live"] for each in parts if each.all(".empty.tone-warn")]


def test_charts_that_cannot_be_read_leave_the_others_standing(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_worker(name="dora")
    monkeypatch.setattr(overview, "series", lambda *args, **kwargs: 1 / 0)
    page = get(viewer, OVERVIEW)
    assert unread(page) == ["charts"] and is_well(page) and "dora" in page.text


def test_the_charts_show_what_was_sampled_and_say_it_as_a_table(viewer: Client) -> None:
    assert len(get(viewer, OVERVIEW).all("[data-live=charts] .empty")) == 1
    slot = int(database_now("default").timestamp()) // Sample.SLOT * Sample.SLOT - 2 * Sample.SLOT
    Sample.objects.create(
        queue="default",
        slot=slot,
        completed=7,
        ready=3,
        claimed=1,
        wait_p50=0.4,
        wait_p95=2.5,
        oldest=9,
    )
    page = get(viewer, OVERVIEW)
    latest = {each["data-key"]: each.one(".loud").numbers for each in page.all(".legend li")}
    assert (latest["completed"], latest["p95"], latest["ready"]) == ([42], [2.5], [3])
    assert not page.handlers and not [tag for tag in page.scripts if not tag.get("src")]
    moment = datetime.fromtimestamp(slot, UTC).strftime("%H:%M:%S")
    waits = [row for row in page.all("[data-key=chart-wait] tbody tr") if moment in row.text]
    assert [cell.numbers for cell in waits[0].all("td")] == [[0.4], [2.5], [9]]
    assert not get(viewer, f"{OVERVIEW}?span=24h").all("[data-live=charts] .empty")


def test_charts_that_polls_share_are_read_again_when_a_slot_was_sampled() -> None:
    now = datetime(2026, 11, 23, 12, 0, 3, tzinfo=UTC)
    slot = int(now.timestamp()) // Sample.SLOT * Sample.SLOT
    Sample.objects.create(queue="", slot=slot, renewals=5)  # the one under way

    def completed() -> list[float]:
        rate, *_ = overview._charts(now, "10m", fresh=False)
        return [line.greatest for line in rate.lines if line.name == "completed"]

    assert 42 not in completed()
    Sample.objects.create(queue="default", slot=slot - Sample.SLOT, completed=7)
    assert completed() == [42]


def test_the_charts_look_back_as_far_as_the_address_says(viewer: Client) -> None:
    page = get(viewer, f"{OVERVIEW}?span=6h")
    assert page.one(".tabs a[aria-current=true]")["href"] == f"{OVERVIEW}?span=6h"
    page = Page(viewer.get(OVERVIEW, {"span": "9y"}))
    assert page.status == 400 and "9y" in page.alerts[0]


def test_polls_share_what_one_of_them_has_read(
    viewer: Client, shared_readings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = SimpleNamespace(time=lambda: 100.0)
    for module in (base, locmem):
        monkeypatch.setattr(module, "time", stopped)
    tag = viewer.get(OVERVIEW, headers={"X-Live": "1"}).headers["ETag"]
    get(viewer, OVERVIEW)  # from now on
    make_task(state="failed")
    headers = {"X-Live": "1", "If-None-Match": f"W/{tag}"}
    with queries() as sent:
        assert viewer.get(OVERVIEW, headers=headers).status_code == 304
    assert not [sql for sql in sent() if "tasks_" in sql]
    assert "failed" in needs(get(viewer, OVERVIEW))
    assert viewer.get(OVERVIEW, headers=headers).status_code == 200


def test_the_overview_asks_less_where_nothing_runs_waits_or_has_failed(viewer: Client) -> None:
    make_worker()
    calm = sent_by(viewer, OVERVIEW)
    assert len(calm) <= 19  # two of them for the permissions
    for state, more in ("running", 1), ("ready", 2), ("failed", 2):
        task = make_task(state=state)
        assert len(sent_by(viewer, OVERVIEW)) == len(calm) + more, state
        Task.objects.filter(pk=task.pk).delete()


@pytest.mark.usefixtures("database_clock")  # or a task runs for long by the second visit
def test_the_overview_asks_a_fixed_number_of_questions(viewer: Client) -> None:
    start_generator()
    generating()
    make_worker(name="dora")
    Worker.objects.update(last_seen_at=DbNow())
    make_task(state="running", holder="dora")
    make_task(state="failed")
    few = sent_by(viewer, OVERVIEW)
    for _ in range(3):
        make_task(state="failed")
        make_lease()
    statements = sent_by(viewer, OVERVIEW)
    assert len(statements) == len(few) <= 25
    assert_cheap(statements)


# The generator


def test_the_generator_is_linked_once_it_was_used(viewer: Client) -> None:
    page = get(viewer, OVERVIEW)
    assert GENERATOR not in page.links and not page.all("#generator")
    start_generator()
    page = get(viewer, OVERVIEW)
    assert page.links.count(GENERATOR) == 2 and page.all("#generator")


def test_a_generator_that_was_never_started_says_so(viewer: Client) -> None:
    page = get(viewer, GENERATOR)
    assert page.badges == [GENERATOR_BADGES["STOPPED"].word]
    assert "data-wanted" not in page.one("p.heard").attrs


@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_a_stop_tells_who_stopped_and_who_has_not_heard_yet(operator: Client) -> None:
    start_generator(by="emil")
    generating("web-2")
    response = operator.post(STOP, {"reason": "too loud"}, follow=True)
    assert response.redirect_chain == [(GENERATOR, 302)]
    page = Page(response)
    heard = page.one("p.heard")
    assert (heard["data-wanted"], heard["data-acknowledged"]) == ("false", "")
    assert [each.text for each in heard.all("bdi")] == ["olga", "web-2"]
    assert heard.one("time")["datetime"].startswith("2030-01-01T00:00:00")
    assert "too loud" in page.answers["heard"].text
    acknowledge("web-2")
    heard = get(operator, GENERATOR).one("p.heard")
    assert heard["data-acknowledged"] == "web-2" and heard.numbers[-1] < 1


@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_a_start_is_acknowledged_by_whoever_takes_it_up(operator: Client) -> None:
    heard = Page(operator.post(START, follow=True)).one("p.heard")
    assert (heard["data-wanted"], heard["data-acknowledged"]) == ("true", "")
    assert [each.text for each in heard.all("bdi")] == ["olga"]
    generating("web-1")
    page = get(operator, GENERATOR)
    assert page.badges[0] == GENERATOR_BADGES["RUNNING"].word
    assert page.one("p.heard")["data-acknowledged"] == "web-1"
    assert page.answers["who"].text == "web-1"
    assert page.answers["until"].one("time")["datetime"].startswith("2030-01-01T00:00:30")


def test_a_generator_whose_holder_is_gone_waits_for_another(operator: Client) -> None:
    start_generator()
    expire(generating("web-1"))
    page = get(operator, GENERATOR)
    assert page.badges == [GENERATOR_BADGES["STARTED"].word]
    assert page.answers["who"].text != "web-1" == page.answers["who"].one("bdi").text


def test_a_generator_whose_lease_is_in_another_store_is_shown_without_it(
    viewer: Client, settings: Settings
) -> None:
    central = {"BACKEND": "leasing.stores.http.HttpStore", "URL": "http://127.0.0.1:1/api"}
    settings.LEASING = {**settings.LEASING, "STORES": {"central": central}}
    settings.TASK_QUEUE = {"GENERATOR_STORE": "central", "GENERATOR_LEASE": "shop.generator"}
    start_generator()
    GeneratorDesiredState.objects.update(acknowledged_revision=1, acknowledged_by="web-1")
    make_worker(name="web-1", role="generator", slots={})

    page = get(viewer, GENERATOR)
    assert page.badges == [GENERATOR_BADGES["RUNNING"].word]
    assert page.answers["who"].one("bdi").text == "web-1"
    assert page.answers["until"].one("bdi").text == "central"
    card = get(viewer, OVERVIEW).one("[data-live=generator]")
    assert "web-1" in card.text and "central" in card.text


def test_only_the_button_that_makes_sense_is_shown(operator: Client) -> None:
    assert {START, STOP} & set(get(operator, GENERATOR).forms) == {START}
    start_generator()
    assert {START, STOP} & set(get(operator, GENERATOR).forms) == {STOP}


def test_a_reason_that_is_too_long_is_refused(operator: Client) -> None:
    page = Page(operator.post(START, {"reason": "x" * 501}))
    assert page.status == 400
    assert 'aria-invalid="true"' in page.html
    assert not GeneratorDesiredState.objects.exists()


def test_the_generators_page_asks_a_fixed_number_of_questions(operator: Client) -> None:
    start_generator()
    generating()
    assert len(sent_by(operator, GENERATOR)) <= 8


def test_who_stands_by_is_named(operator: Client) -> None:
    start_generator(by="emil")
    generating("web-1")
    make_worker(name="web-1", role="generator", slots={})
    standby = get(operator, GENERATOR).answers["standby"]
    assert not standby.all("li") and standby.one("bdi").text == "web-1"
    make_worker(name="web-2", role="generator", slots={})
    make_worker(name="web-3", role="generator", slots={}, state="gone")
    (member,) = get(operator, GENERATOR).answers["standby"].all("li")
    assert member.one("bdi").text == "web-2"
    assert member.one(".badge").text == WORKER_BADGES[WorkerState.LIVE].word


def test_the_latest_commands_are_listed_for_who_may_see_the_audit(operator: Client) -> None:
    operator.post(START, {"reason": "let us go"})
    operator.post(START)
    assert not get(operator, GENERATOR).all("#commands")
    page = get(signed_in(VIEW, "leasing.view_auditentry", name="nina"), GENERATOR)
    second, first = page.all("[data-live=commands] li")
    assert second.one("bdi").text == "olga" and second.all(".aside-inline")
    assert [each.text for each in first.all("bdi")] == ["olga", "let us go"]
    assert not first.all(".aside-inline")


def test_queues_that_no_relay_publishes_are_told_of(viewer: Client) -> None:
    make_worker(role="celery")
    assert is_well(get(viewer, OVERVIEW))
    make_task()
    reported = need(get(viewer, OVERVIEW), "unpublished").one(".loud")
    assert "default" in reported.text and reported.numbers == [1]
    other = make_worker()
    assert is_well(get(viewer, OVERVIEW))
    other.delete()
    make_worker(role="relay", queues=[], slots={})
    assert is_well(get(viewer, OVERVIEW))
