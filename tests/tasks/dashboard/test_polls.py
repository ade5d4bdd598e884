"""Changes that a poll of a list or of a row's page must notice, and others: its tag is made of less
than the page shows."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache.backends import base, locmem
from django.db.models import F
from django.test import Client

from leasing.models import Lease, LeaseEvent
from leasing.web.counts import Capped
from tasks.models import Task
from tests.factories import make_lease, make_task, make_tasks, make_worker
from tests.fixtures import client_with
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire
from tests.pages import get, queries, signed_in

# What the pages read has tests of its own on each database.
pytestmark = pytest.mark.django_db

TASKS, LEASES = "/ops/tasks/", "/ops/leases/"

viewer = client_with("leasing_tasks.view_task", "leasing.view_lease")


def poll(client: Client, url: str, tag: str = "") -> Any:
    return client.get(url, headers={"X-Live": "1", "If-None-Match": tag})


class Open:
    """An open page."""

    def __init__(self, client: Client, url: str) -> None:
        self.client, self.url = client, url
        self.tag = poll(client, url)["ETag"]

    def hears(self) -> bool:
        """Return True if a poll brings anything."""
        answer = poll(self.client, self.url, self.tag)
        assert answer.status_code in (200, 304)
        self.tag = answer["ETag"]
        return bool(answer.status_code == 200)


SECOND = timedelta(seconds=1)


def test_a_list_of_tasks_hears_of_all_that_it_shows(viewer: Client) -> None:
    task = make_task(state="running", ttl=3_600)
    page = Open(viewer, TASKS)
    assert not page.hears()
    changes: list[dict[str, Any]] = [
        {"name": "sample.other"},
        {"queue": "other"},
        {"holder": "emil"},
        {"attempts": 2},
        {"max_attempts": 7},
        {"expires_at": F("expires_at") + SECOND},
        {"ttl": 40 * SECOND},
        {"status": "ready"},
    ]
    for change in changes:
        Task.objects.filter(pk=task.pk).update(**change)
        assert page.hears() and not page.hears(), change


def test_a_list_of_failures_hears_of_an_error_and_of_an_end(viewer: Client) -> None:
    task = make_task(state="failed")
    page = Open(viewer, f"{TASKS}?state=failed")
    for change in ({"last_error": "another"}, {"processed_at": F("processed_at") - SECOND}):
        Task.objects.filter(pk=task.pk).update(**change)
        assert page.hears() and not page.hears()


def test_a_list_of_leases_hears_of_all_that_it_shows(viewer: Client) -> None:
    lease = make_lease(renewals=1, ttl=3_600)
    page = Open(viewer, LEASES)
    assert not page.hears()
    changes: list[dict[str, Any]] = [
        {"resource": "pier:2"},
        {"holder": "emil"},
        {"grants": 4},
        {"renewals": 9},
        {"expires_at": F("expires_at") + SECOND},
        {"released_at": F("expires_at")},
    ]
    for change in changes:
        Lease.objects.filter(pk=lease.pk).update(**change)
        assert page.hears() and not page.hears(), change


def test_a_list_of_leases_hears_of_those_of_other_models(viewer: Client) -> None:
    page = Open(viewer, LEASES)
    task = make_task(state="running", ttl=3_600)
    assert page.hears() and not page.hears()
    Task.objects.filter(pk=task.pk).update(holder="emil")
    assert page.hears()


def test_a_further_page_and_a_search_hear_of_their_rows(viewer: Client) -> None:
    Task.objects.enqueue_many("sample.sleep", [{"sleep_duration_seconds": 1}] * 52)
    older = viewer.get(TASKS).context["page"].older
    for url in (f"{TASKS}?at={older}", f"{TASKS}?q=sample&at={older}", f"{LEASES}?q=none"):
        page = Open(viewer, url)
        assert not page.hears()
    page = Open(viewer, f"{TASKS}?name=sample.sleep&at={older}")
    Task.objects.filter(pk=Task.objects.earliest("pk").pk).update(queue="other")
    assert page.hears()


@pytest.mark.parametrize("url", [TASKS, LEASES])
def test_a_poll_with_a_place_that_is_none_is_refused(viewer: Client, url: str) -> None:
    place = "WyJsZWFzaW5nX3Rhc2tzLnRhc2siLCJvbGRlciIsIngiXQ"  # a task whose key is "x"
    answer = poll(viewer, f"{url}?at={place}")
    assert answer.status_code == 400 and "ETag" in answer


# What passes without a row being written


@pytest.fixture
def held(database_clock: DatabaseClock) -> tuple[Lease, Task]:
    """A lease and a task that were renewed just now and are held for half a minute."""
    lease, task = make_lease(renewals=1, ttl=30), make_task(state="running", ttl=30)
    for row in (lease, task):
        type(row).objects.filter(pk=row.pk).update(expires_at=database_clock.now + 30 * SECOND)
    return lease, task


@pytest.mark.parametrize("url", [TASKS, LEASES, "{lease}"])
@pytest.mark.parametrize("seconds", [20, 31])
def test_that_a_renewal_is_missed_or_a_deadline_has_passed_is_news_once(
    viewer: Client,
    held: tuple[Lease, Task],
    database_clock: DatabaseClock,
    url: str,
    seconds: float,
) -> None:
    url = url.format(lease=f"{LEASES}{held[0].pk}/")
    page = Open(viewer, url)
    database_clock.advance(2)
    assert not page.hears()
    database_clock.advance(seconds - 2)
    assert page.hears()
    database_clock.advance(1)
    assert not page.hears()


def test_that_a_task_does_not_get_on_is_news(
    viewer: Client, held: tuple[Lease, Task], database_clock: DatabaseClock
) -> None:
    _, task = held
    now = database_clock.now
    Task.objects.filter(pk=task.pk).update(
        progress_timeout=5 * SECOND,
        progressed_at=now,
        ttl=timedelta(hours=1),
        expires_at=now + timedelta(hours=1),
    )
    page = Open(viewer, TASKS)
    database_clock.advance(4)
    assert not page.hears()
    database_clock.advance(1)
    assert page.hears()


@pytest.mark.parametrize("state", ["active", "expired", "released", "free"])
def test_the_page_of_a_lease_has_no_news_while_nothing_happens(
    viewer: Client, database_clock: DatabaseClock, state: str
) -> None:
    lease = make_lease(state=state, ttl=3_600)
    page = Open(viewer, f"{LEASES}{lease.pk}/")
    for _ in range(3):
        database_clock.advance(2)
        assert not page.hears()


@pytest.mark.parametrize("state", ["ready", "succeeded", "failed", "cancelled", "running"])
def test_the_page_of_a_task_has_no_news_while_nothing_happens(
    viewer: Client, database_clock: DatabaseClock, state: str
) -> None:
    task = make_task(state=state, ttl=3_600)
    if state != "running":
        make_worker()
    page = Open(viewer, f"{TASKS}{task.pk}/")
    assert not page.hears()
    Task.objects.filter(pk=task.pk).update(priority=3)
    assert page.hears()


def test_the_page_of_a_lease_hears_of_events_and_of_takeovers_that_grow_old(
    viewer: Client, database_clock: DatabaseClock
) -> None:
    lease = make_lease(resource="berth:1")
    url = f"{LEASES}{lease.pk}/"
    page = Open(viewer, url)
    for holder in ("bea", "cid", "dan", "eve"):
        expire(lease)
        Lease.objects.acquire("berth:1", holder=holder, ttl=86_400)
        assert page.hears()
    assert get(viewer, url).code == "flapping"
    assert not page.hears()
    LeaseEvent._base_manager.update(at=database_clock.now)
    page.hears()
    database_clock.advance(599)
    assert not page.hears()
    database_clock.advance(2)
    assert page.hears()
    assert get(viewer, url).code != "flapping"


# What polls share


@pytest.fixture
def shared(shared_readings: None, monkeypatch: pytest.MonkeyPatch) -> DatabaseClock:
    """As it is served: polls share readings, by a clock that is moved by hand."""
    clock = DatabaseClock()
    for module in (base, locmem):
        ticks = SimpleNamespace(time=lambda: clock.now.timestamp())
        monkeypatch.setattr(module, "time", ticks)
    return clock


def test_a_poll_hears_of_news_at_the_second_time_at_the_latest(
    viewer: Client, shared: DatabaseClock
) -> None:
    page = Open(viewer, TASKS)
    make_task()
    heard = []
    for _ in range(4):
        shared.advance(2)
        heard.append(page.hears())
    assert heard == [False, True, False, False]


def test_counts_may_be_a_little_old_but_not_beside_other_rows(
    viewer: Client, shared: DatabaseClock
) -> None:
    make_task(state="running", ttl=3_600)
    page = Open(viewer, f"{TASKS}?state=running")
    make_task(state="failed")
    heard = []
    for _ in range(6):
        shared.advance(3)
        heard.append(page.hears())
    assert heard == [False, False, False, False, True, False]
    make_task(state="failed")
    make_task(state="running", ttl=3_600)
    shared.advance(3)
    answer = poll(viewer, page.url, page.tag)
    tabs = {tab["label"]: str(tab["count"]) for tab in answer.context["tabs"]}
    assert (tabs["Failed"], tabs["Running"]) == ("2", "2")


@pytest.mark.parametrize("url", [TASKS, LEASES, f"{LEASES}{{lease}}/", f"{TASKS}{{task}}/"])
def test_of_two_polls_of_the_same_address_one_reads_nothing(
    viewer: Client, shared: DatabaseClock, url: str
) -> None:
    page = Open(viewer, url.format(lease=make_lease().pk, task=make_task().pk))
    with queries() as sent:
        assert not page.hears()
    assert not [sql for sql in sent() if 'FROM "leasing' in sql]


def test_users_share_what_all_may_see_and_nothing_else(
    viewer: Client, shared: DatabaseClock
) -> None:
    make_worker(name="dora")
    everything = signed_in("leasing_tasks.view_task", "leasing_tasks.view_worker", name="olga")
    assert "dora" in poll(everything, "/ops/").content.decode()
    assert "dora" not in poll(viewer, "/ops/").content.decode()


def test_the_payload_of_a_task_is_shared_by_those_alone_who_may_see_it(
    viewer: Client, shared: DatabaseClock
) -> None:
    url = f"{TASKS}{make_task(name='jobs.echo', data={'cargo': 'treasure'}).pk}/"
    seeing = signed_in("leasing_tasks.view_task", "leasing_tasks.view_payload", name="olga")
    for client, is_shown in ((seeing, True), (viewer, False), (seeing, True)):
        assert ("treasure" in poll(client, url).content.decode()) is is_shown


def test_who_opens_the_page_sees_it_as_it_is(viewer: Client, shared: DatabaseClock) -> None:
    Open(viewer, LEASES)
    lease = make_lease()
    shown = viewer.get(LEASES).context
    assert str(shown["tabs"][0]["count"]) == "1"
    assert [row.pk for row in shown["sections"][0].page.rows] == [lease.pk]


def test_counts_that_stopped_at_their_cap_are_shared_for_a_minute(
    viewer: Client, shared: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Capped, "is_capped", property(lambda count: count.value > 1))
    make_tasks(2, state="failed")
    page, overview = Open(viewer, f"{TASKS}?state=running"), Open(viewer, "/ops/")
    make_task(state="failed")
    heard = []
    for _ in range(5):
        shared.advance(16)
        heard.append((page.hears(), overview.hears()))
    # The overview names the newest failure, which is read each time.
    assert heard == [(False, True), *[(False, False)] * 2, (True, True), (False, False)]
