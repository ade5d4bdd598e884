"""The overview and the generator's page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from leasing.functions import DbNow, after, database_now
from leasing.models import Lease
from tasks import overview
from tasks.generator import RESOURCE, start_generator, stop_generator
from tasks.models import GeneratorWish, Queue, Sample, Schedule, Task, Worker
from tests.factories import LeaseFactory, TaskFactory, WorkerFactory
from tests.fixtures import client_with
from tests.leasing.support import expire
from tests.pages import Page, get, queries, sent_by, signed_in, user_with

pytestmark = pytest.mark.django_db

OVERVIEW, GENERATOR = "/ops/", "/ops/generator/"
START, STOP = f"{GENERATOR}start/", f"{GENERATOR}stop/"
VIEW, CONTROL = "tasks.view_task", "tasks.control_generator"
EVERYTHING = (VIEW, CONTROL, "tasks.view_worker", "leasing.view_lease")

viewer = client_with(*EVERYTHING[:1], *EVERYTHING[2:])
operator = client_with(*EVERYTHING, name="olga")


def generating(holder: str = "web-2") -> Lease:
    """``holder`` generates, and has heard the latest wish."""
    lease: Lease = LeaseFactory(resource=RESOURCE, holder=holder)
    acknowledge(holder)
    return lease


def acknowledge(holder: str) -> None:
    wish = GeneratorWish.objects.get()
    GeneratorWish.objects.update(
        acknowledged_revision=wish.revision, acknowledged_by=holder, acknowledged_at=DbNow()
    )


def changed_long_ago() -> None:
    GeneratorWish.objects.update(changed_at=after(timedelta(minutes=-2)))


# The overview


def test_when_all_is_well_the_overview_says_so_and_lists_nothing(viewer: Client) -> None:
    WorkerFactory(name="dora")
    TaskFactory(state="running", holder="dora")
    TaskFactory()
    page = get(viewer, OVERVIEW)
    assert "All is well. 1 task runs on 1 worker, 1 waits." in page.text
    assert "What needs you" not in page.text


@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_the_overview_names_every_problem_the_gravest_first(viewer: Client) -> None:
    TaskFactory(state="stuck")
    TaskFactory(state="dead")
    TaskFactory()
    start_generator(by="olga")
    changed_long_ago()
    text = get(viewer, OVERVIEW).text
    assert "4 things need you." in text
    places = [
        text.index(words)
        for words in (
            "1 task is stuck: nobody renews the lease.",
            "this will not heal by itself",
            "Nobody works, and 1 task waits.",
            "1 task has failed for good.",
            "The generator was started 2 min ago, and does not run.",
        )
    ]
    assert places == sorted(places)
    assert "(4) Overview" in get(viewer, OVERVIEW).html


def test_a_single_problem_is_told_with_where_to_look(viewer: Client) -> None:
    WorkerFactory()
    TaskFactory(state="dead")
    page = get(viewer, OVERVIEW)
    assert "1 thing needs you. What needs you 1 task has failed for good." in page.text
    assert "/ops/tasks/?state=failed" in page.links


def test_a_stop_that_nobody_acknowledges_is_a_problem_after_a_while(viewer: Client) -> None:
    WorkerFactory()
    start_generator()
    generating("web-2")
    stop_generator(by="olga")
    assert "All is well." in get(viewer, OVERVIEW).text
    changed_long_ago()
    assert "its holder has not acknowledged it" in get(viewer, OVERVIEW).text


def test_the_overview_shows_workers_and_their_tasks_those_that_are_not_well_first(
    viewer: Client,
) -> None:
    WorkerFactory(name="vera", state="gone")
    dora = WorkerFactory(name="dora")
    WorkerFactory(name="emil", role="generator")
    task = TaskFactory(state="running", holder="dora")
    page = get(viewer, OVERVIEW)
    assert {f"/ops/tasks/{task.pk}/", f"/ops/workers/{dora.pk}/"} <= set(page.links)
    assert page.names == ["vera", "dora"]


@pytest.mark.once
def test_the_overview_shows_only_what_one_may_see() -> None:
    WorkerFactory(name="dora")
    page = get(signed_in(VIEW), OVERVIEW)
    assert "dora" not in page.text
    assert not {"/ops/workers/", "/ops/queues/", "/ops/leases/"} & set(page.links)


def test_workers_that_vanished_are_named_until_they_are_many(viewer: Client) -> None:
    WorkerFactory(name="dora")
    for name in ("vera", "nina"):
        WorkerFactory(name=name, state="gone")
    text = get(viewer, OVERVIEW).text
    assert "vera and nina vanished" in text or "nina and vera vanished" in text
    for number in range(2):
        WorkerFactory(name=f"more-{number}", state="gone")
    assert "4 workers vanished without signing off." in get(viewer, OVERVIEW).text
    Worker.objects.exclude(name="dora").update(last_seen_at=after(timedelta(minutes=-11)))
    assert "All is well." in get(viewer, OVERVIEW).text


def test_a_worker_that_is_late_is_told(viewer: Client) -> None:
    WorkerFactory(name="dora", state="late")
    assert "dora is late." in get(viewer, OVERVIEW).text


def test_a_task_that_waits_for_long_is_a_problem_where_nothing_is_paused(viewer: Client) -> None:
    WorkerFactory()
    task = TaskFactory()
    Task.objects.update(scheduled_at=after(timedelta(minutes=-6)))
    says = "The longest waiting task has been due for 6 min"
    assert says in get(viewer, OVERVIEW).text
    Queue.objects.pause(task.queue, by="olga", reason="x")
    assert says not in get(viewer, OVERVIEW).text


def test_an_overdue_schedule_is_a_problem(viewer: Client) -> None:
    WorkerFactory()
    row = {"task_name": "sample.sleep", "every": timedelta(hours=1)}
    Schedule.objects.create(name="late", next_at=after(timedelta(minutes=-2)), **row)
    Schedule.objects.create(name="fine", next_at=after(timedelta(minutes=2)), **row)
    assert "1 schedule is overdue." in get(viewer, OVERVIEW).text
    Schedule.objects.filter(name="late").pause()
    assert "All is well." in get(viewer, OVERVIEW).text


@pytest.mark.parametrize(
    ("broken", "says", "stands"),
    [
        ("read_queues", "The queues could not be read.", "dora"),
        ("generator_status", "The generator could not be read.", "dora"),
        ("_workers", "The workers could not be read.", "default"),
    ],
)
def test_a_part_that_fails_is_shown_as_failed_and_the_others_stand(
    viewer: Client, monkeypatch: pytest.MonkeyPatch, broken: str, says: str, stands: str
) -> None:
    WorkerFactory(name="dora")
    TaskFactory(state="running", holder="dora")

    def fail(*args: object, **kwargs: object) -> None:
        Task.objects.extra(where=["no_such_column"]).exists()  # inside a transaction, too

    monkeypatch.setattr(overview, broken, fail)
    page = get(viewer, OVERVIEW)
    assert page.status == 200
    assert says in page.text and stands in page.text
    assert "1 thing needs you." in page.text and "Not all could be read" in page.text
    assert "All is well" not in page.text and "Nobody works" not in page.text


@pytest.mark.once
def test_charts_that_cannot_be_read_leave_the_others_standing(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    WorkerFactory(name="dora")
    monkeypatch.setattr(overview, "series", lambda *args, **kwargs: 1 / 0)
    text = get(viewer, OVERVIEW).text
    assert "The charts could not be read." in text and "All is well" in text and "dora" in text


def test_the_charts_show_what_was_sampled_and_say_it_as_a_table(viewer: Client) -> None:
    assert get(viewer, OVERVIEW).text.count("Nothing was sampled in this time.") == 1
    slot = int(database_now("default").timestamp()) // Sample.SLOT * Sample.SLOT - 2 * Sample.SLOT
    Sample.objects.create(
        queue="default", slot=slot, completed=7, ready=3, claimed=1, wait_p50=0.4, wait_p95=2.5
    )
    page = get(viewer, OVERVIEW)
    assert "completed 42" in page.text and "p95 2.5 s" in page.text and "ready 3" in page.text
    assert not page.handlers and not [tag for tag in page.scripts if not tag.get("src")]
    moment = datetime.fromtimestamp(slot, UTC).strftime("%H:%M:%S")
    assert f"{moment} 0.4 s 2.5 s" in page.text
    assert "Nothing" not in get(viewer, f"{OVERVIEW}?span=24h").text.split("Queues")[1]


@pytest.mark.once
def test_the_charts_look_back_as_far_as_the_address_says(viewer: Client) -> None:
    page = get(viewer, f"{OVERVIEW}?span=6h")
    assert re.search(r'span=6h"\s+aria-current="true"', page.html)
    page = Page(viewer.get(OVERVIEW, {"span": "9y"}))
    assert page.status == 400 and "not “9y”" in page.text


def test_polls_share_what_one_of_them_has_read(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview.snapshots, "fresh_for", 60.0)
    tag = viewer.get(OVERVIEW, headers={"X-Live": "1"}).headers["ETag"]
    get(viewer, OVERVIEW)  # from now on
    TaskFactory(state="dead")
    headers = {"X-Live": "1", "If-None-Match": f"W/{tag}"}
    with queries() as sent:
        assert viewer.get(OVERVIEW, headers=headers).status_code == 304
    assert not [sql for sql in sent() if "tasks_" in sql]
    assert "1 task has failed for good." in get(viewer, OVERVIEW).text
    assert viewer.get(OVERVIEW, headers=headers).status_code == 200


def test_the_overview_asks_a_fixed_number_of_questions(viewer: Client) -> None:
    start_generator()
    generating()
    WorkerFactory(name="dora")
    TaskFactory(state="running", holder="dora")
    few = sent_by(viewer, OVERVIEW)
    for _ in range(10):
        TaskFactory(state="dead")
        LeaseFactory()
    statements = sent_by(viewer, OVERVIEW)
    assert len(statements) == len(few) <= 20
    assert not any("OFFSET" in sql for sql in statements)


# The generator


@pytest.mark.once
def test_a_generator_that_was_never_started_says_so(viewer: Client) -> None:
    text = get(viewer, GENERATOR).text
    assert "The generator was never started." in text
    assert "stopped" in text


@pytest.mark.once
@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_a_stop_tells_who_stopped_and_who_has_not_heard_yet(operator: Client) -> None:
    start_generator(by="emil")
    generating("web-2")
    response = operator.post(STOP, {"reason": "too loud"}, follow=True)
    assert response.redirect_chain == [(GENERATOR, 302)]
    text = Page(response).text
    assert "Stopped by olga just now; nothing more is generated." in text
    assert "web-2 has not acknowledged yet." in text and "“too loud”" in text
    acknowledge("web-2")
    assert re.search(r"web-2 acknowledged after (< )?0\.\d s\.", get(operator, GENERATOR).text)


@pytest.mark.once
@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_a_start_is_acknowledged_by_whoever_takes_it_up(operator: Client) -> None:
    text = Page(operator.post(START, follow=True)).text
    assert "Started by olga just now; no generator process has taken it up yet." in text
    generating("web-1")
    text = get(operator, GENERATOR).text
    assert "Generator running" in text
    assert "web-1 acknowledged after" in text and "Its lease ends in 30 s" in text


@pytest.mark.once
def test_a_generator_whose_holder_is_gone_waits_for_another(operator: Client) -> None:
    start_generator()
    expire(generating("web-1"))
    text = get(operator, GENERATOR).text
    assert "started, not yet producing" in text
    assert "Nobody. The last was web-1." in text


@pytest.mark.once
def test_only_the_button_that_makes_sense_is_shown(operator: Client) -> None:
    assert {START, STOP} & set(get(operator, GENERATOR).forms) == {START}
    start_generator()
    assert {START, STOP} & set(get(operator, GENERATOR).forms) == {STOP}


@pytest.mark.once
def test_controls_need_their_permission(viewer: Client) -> None:
    assert not {START, STOP} & set(get(viewer, GENERATOR).forms)
    for url in (START, STOP):
        assert viewer.post(url).status_code == 403
    assert not GeneratorWish.objects.exists()


@pytest.mark.once
def test_controls_need_a_post_with_a_csrf_token() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user_with(*EVERYTHING))
    for url in (START, STOP):
        assert client.get(url).status_code == 405
        assert client.post(url).status_code == 403
    assert not GeneratorWish.objects.exists()


@pytest.mark.once
def test_a_reason_that_is_too_long_is_refused(operator: Client) -> None:
    page = Page(operator.post(START, {"reason": "x" * 501}))
    assert page.status == 400
    assert 'aria-invalid="true"' in page.html
    assert not GeneratorWish.objects.exists()


def test_the_generators_page_asks_a_fixed_number_of_questions(operator: Client) -> None:
    start_generator()
    generating()
    assert len(sent_by(operator, GENERATOR)) <= 8


@pytest.mark.once
def test_who_stands_by_is_named(operator: Client) -> None:
    start_generator(by="emil")
    generating("web-1")
    WorkerFactory(name="web-1", role="generator", concurrency=0)
    assert "Nobody. Were web-1 gone, nothing would be generated" in get(operator, GENERATOR).text
    WorkerFactory(name="web-2", role="generator", concurrency=0)
    WorkerFactory(name="web-3", role="generator", concurrency=0, state="gone")
    text = get(operator, GENERATOR).text
    assert "Who stands by web-2 live" in text and "web-3" not in text


@pytest.mark.once
def test_the_latest_commands_are_listed_for_who_may_see_the_audit(operator: Client) -> None:
    operator.post(START, {"reason": "let us go"})
    operator.post(START)
    assert "Commands" not in get(operator, GENERATOR).text
    text = get(signed_in(VIEW, "leasing.view_auditentry", name="nina"), GENERATOR).text
    assert "Start by olga changed nothing" in text and "“let us go”" in text


@pytest.mark.once
def test_while_the_site_is_read_only_nobody_starts_it(operator: Client, settings: Any) -> None:
    settings.LEASING = {**settings.LEASING, "READ_ONLY": True}
    assert START not in get(operator, GENERATOR).forms
    assert operator.post(START).status_code == 403


def test_queues_that_no_relay_publishes_are_told_of(viewer: Client) -> None:
    says = "Nobody publishes the queue default, and 1 task waits there."
    WorkerFactory(role="celery")
    assert says not in get(viewer, OVERVIEW).text
    TaskFactory()
    assert says in get(viewer, OVERVIEW).text
    other = WorkerFactory()
    assert says not in get(viewer, OVERVIEW).text
    other.delete()
    WorkerFactory(role="relay", queues=[], concurrency=0)
    assert says not in get(viewer, OVERVIEW).text
