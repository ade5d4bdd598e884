"""The page of one worker: whether it lives, what it does, what it did."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from leasing.functions import after
from leasing.models import Lease
from tasks.dashboard.badges import WORKER_BADGES
from tasks.models import Task, Worker, WorkerState
from tests.factories import make_lease, make_task, make_worker
from tests.fixtures import client_with
from tests.pages import get, sent_by, signed_in

pytestmark = pytest.mark.django_db


viewer = client_with("leasing_tasks.view_worker", "leasing_tasks.view_task")


def url_of(worker: Worker) -> str:
    return f"/ops/workers/{worker.pk}/"


@pytest.mark.parametrize(
    ("state", "moment"),
    [("live", None), ("late", "last_seen_at"), ("gone", "last_seen_at"), ("stopped", "stopped_at")],
)
def test_a_worker_tells_how_it_is(viewer: Client, state: str, moment: str | None) -> None:
    worker = make_worker(name="dora", state=state)
    page = get(viewer, url_of(worker))
    assert page.one("h1").text == "dora"
    assert page.badges == [WORKER_BADGES[WorkerState(state)].word]
    reported = [getattr(worker, moment).isoformat(timespec="milliseconds")] if moment else []
    assert [each["datetime"] for each in page.answers["why"].all("time")] == reported
    frozen = f"If process {worker.pid} on {worker.hostname} still exists, it is frozen"
    assert (frozen in page.answers["next"].text) == (state in ("late", "gone"))


def test_it_shows_what_it_works_on_and_what_it_did(viewer: Client) -> None:
    worker = make_worker(name="dora")
    now, done, other = (
        make_task(state="running", holder="dora"),
        make_task(state="succeeded", holder="dora"),
        make_task(state="succeeded", holder="emil"),
    )
    failed = make_task(state="failed", holder="dora")
    page = get(viewer, url_of(worker))
    assert page.answers["why"].numbers == [1]

    def linked(part: str) -> set[str]:
        return set(page.one(f"[data-live={part}]").links)

    assert linked("now") == {f"/ops/tasks/{now.pk}/"}
    assert linked("claimed") == {f"/ops/tasks/{task.pk}/" for task in (done, failed)}
    assert f"/ops/tasks/{other.pk}/" not in page.links
    (attempt,) = page.all("[data-live=failed] li")
    assert attempt.links == [f"/ops/tasks/{failed.pk}/"]
    assert attempt.all(".aside")[0].numbers[0] == 1 and "no luck" in attempt.text


def test_the_list_shows_remote_workers_by_the_tasks_that_they_hold(viewer: Client) -> None:
    make_worker(name="dora")
    make_task(state="running", holder="dora")
    make_task(state="succeeded", holder="idle")
    held = {
        name: [make_task(state="running", holder=name) for _ in range(count)]
        for name, count in {"remote-1": 1, "remote-2": 5}.items()
    }

    one, many = get(viewer, "/ops/workers/").all("[data-live=remote] tbody tr")

    assert (one.one(".name").text, many.one(".name").text) == ("remote-1", "remote-2")
    assert one.links == [f"/ops/tasks/{task.pk}/" for task in held["remote-1"]]
    assert many.links == [f"/ops/tasks/{task.pk}/" for task in held["remote-2"][:3]]
    assert many.one(".number").text == "5"
    assert many.one(".who").text.endswith("and 2 more")
    stopped = get(viewer, "/ops/workers/?state=stopped")
    assert not stopped.all("[data-live=remote] tr")


def test_what_a_process_of_its_name_left_is_told_apart(viewer: Client) -> None:
    worker = make_worker(name="dora")
    task = make_task(state="running", holder="dora")
    Worker.objects.update(started_at=after(timedelta(seconds=5)))
    for url in (url_of(worker), "/ops/workers/"):
        page = get(viewer, url)
        assert page.one("[data-left]").links == [f"/ops/tasks/{task.pk}/"]
    assert page.one("td.number").numbers == [0, 4], "none of its threads is at it"


def test_a_list_names_some_of_the_tasks_of_each_worker(viewer: Client) -> None:
    make_worker(name="dora")
    Task.objects.enqueue_many("sample.sleep", [{"sleep_duration_seconds": 1}] * 5)
    Task.objects.claim("dora", limit=5)
    page = get(viewer, "/ops/workers/")
    assert page.one("td.who [data-key=more]").numbers == [2]
    assert page.one("td.number").numbers == [4, 4, 1]


def test_workers_of_one_parent_stand_together_below_it(viewer: Client) -> None:
    names = [("web:2", 2, 1), ("solo", None, None), ("mail:1", 1, 0), ("web:1", 1, 3)]
    for name, index, restarts in names:
        fleet: Any = {"fleet": name[:-2], "fleet_index": index, "fleet_restarts": restarts}
        make_worker(name=name, **(fleet if index else {}))
    for url, is_brief in (("/ops/workers/", False), ("/ops/", True)):
        tables = [each.all("tr") for each in get(viewer, url).all("table.rows tbody")]
        (rows,) = [rows for rows in tables if any("parent" in row.classes for row in rows)]
        assert [(row.all("th bdi") or row.all("td.name a"))[0].text for row in rows] == [
            *("web", "web:1", "web:2"),
            *("mail", "mail:1", "solo"),
        ]
        heads = [row for row in rows if row.all("th")]
        assert [head.one(".aside").numbers for head in heads] == [[2, 4], [1]]
        if not is_brief:
            assert rows[1].one("td.name .aside").numbers[-1] == 3


def test_a_worker_tells_of_its_parent_and_of_its_death(viewer: Client) -> None:
    fleet: Any = {"fleet": "web"}
    died = make_worker(name="web:1:a", fleet_index=1, fleet_restarts=0, **fleet)
    present = make_worker(name="web:1:b", fleet_index=1, fleet_restarts=1, **fleet)
    sibling = make_worker(name="web:2:c", fleet_index=2, fleet_restarts=0, **fleet)
    make_worker(name="mail:1:d", fleet_index=1, fleet_restarts=0, fleet="mail")
    Worker.objects.sign_off_dead(died.name, "was killed by signal 9")

    page = get(viewer, url_of(died))
    assert page.badges[0] == "died"
    assert page.answers["why"].text.endswith("it was killed by signal 9.")
    assert page.answers["parent"].links == [url_of(present), url_of(sibling)]
    page = get(viewer, url_of(present))
    assert page.answers["parent"].links == [url_of(sibling)]
    assert page.answers["parent"].numbers == [1, 1, 2]
    (row,) = get(viewer, "/ops/workers/?state=stopped").all("tr.child")
    assert row.one(".small").text.startswith("died")


def test_a_poll_is_news_only_when_a_worker_beside_it_changes(viewer: Client) -> None:
    one = make_worker(name="web:1", fleet="web", fleet_index=1)
    make_worker(name="web:2", fleet="web", fleet_index=2)

    def tag() -> str:
        return viewer.get(url_of(one), headers={"X-Live": "1"})["ETag"]

    seen = tag()
    Worker.objects.exclude(pk=one.pk).update(last_seen_at=after(timedelta(seconds=-1)))
    assert tag() == seen
    Worker.objects.sign_off_dead("web:2", "was killed by signal 9")
    assert tag() != seen


def test_slots_are_shown_by_kind(viewer: Client) -> None:
    worker = make_worker(
        name="dora",
        slots={"thread": 2, "coroutine": 100},
        blocked={"coroutine": 1},
        handlers={"sample.sleep": "thread"},
    )
    Task.objects.enqueue_many("sample.sleep", [{"sleep_duration_seconds": 1}] * 3)
    Task.objects.claim("dora", limit=3)
    rows = get(viewer, "/ops/workers/").all("td.number li")
    assert [row.numbers for row in rows] == [[2, 2, 1], [1, 100, 1]]
    page = get(viewer, url_of(worker))
    assert page.answers["why"].numbers == [2, 1]  # running, prefetched
    assert page.answers["role"].numbers[:3] == [102, 2, 2]


def test_one_that_generates_has_no_tasks_to_show(viewer: Client) -> None:
    worker = make_worker(name="emil", role="generator", slots={}, queues=[])
    page = get(viewer, url_of(worker))
    runs = get(viewer, url_of(make_worker()))
    assert page.answers["role"].text != runs.answers["role"].text
    assert runs.all("#now") and not page.all("#now")


def test_without_permission_for_tasks_none_are_shown() -> None:
    worker = make_worker(name="dora")
    make_task(state="succeeded", holder="dora")
    page = get(signed_in("leasing_tasks.view_worker"), url_of(worker))
    assert page.status == 200 and not page.all("#claimed")
    assert signed_in("leasing_tasks.view_task", name="olga").get(url_of(worker)).status_code == 403
    assert (
        signed_in("leasing_tasks.view_worker", name="nina").get("/ops/workers/999/").status_code
        == 404
    )


def test_the_page_asks_a_fixed_number_of_questions(viewer: Client) -> None:
    worker = make_worker(name="dora")

    def work() -> None:
        for state in ("running", "succeeded", "failed"):
            make_task(state=state, holder="dora")

    work()
    few = sent_by(viewer, url_of(worker))
    work()
    statements = sent_by(viewer, url_of(worker))
    assert len(statements) == len(few) <= 12
    assert not any("OFFSET" in sql for sql in statements)


def test_a_worker_killed_while_idle_and_restarted_shows_its_end(viewer: Client) -> None:
    killed = make_worker(name="dora:0000000a", pid=41, state="gone")
    Worker.objects.register("dora:0000000b", hostname="host-1", pid=42)

    (end,) = get(viewer, url_of(Worker.objects.get())).answers["before"].all("li")
    (row,) = get(viewer, "/ops/workers/").rows

    seen = killed.last_seen_at.isoformat(timespec="milliseconds")
    for shown in (end, row.cell("Worker").one("[data-crash]")):
        assert "pid 41" in shown.text and "ended without signing off" in shown.text
        assert shown.one("time")["datetime"] == seen
    assert "after 59 min" in end.text


def test_a_clean_restart_is_on_the_page_of_the_worker_alone(viewer: Client) -> None:
    make_worker(name="dora:0000000a", pid=41, state="stopped")
    Worker.objects.register("dora:0000000b", hostname="host-1", pid=42)

    (end,) = get(viewer, url_of(Worker.objects.get())).answers["before"].all("li")

    assert "pid 41 stopped cleanly" in end.text
    assert not get(viewer, "/ops/workers/").all("[data-crash]")


def test_a_child_killed_together_with_its_parent_shows_on_the_page_of_its_successor(
    viewer: Client,
) -> None:
    fleet: Any = {"fleet": "web", "fleet_index": 1, "fleet_restarts": 0}
    make_worker(name="web:1:0000000a", pid=41, state="gone", **fleet)
    make_worker(name="web:2:0000000b", pid=43, state="gone", **{**fleet, "fleet_index": 2})
    new = make_worker(name="web:1:0000000c", pid=42, **fleet)
    Worker.objects.succeed(new.name)

    (end,) = get(viewer, url_of(new)).answers["before"].all("li")

    assert "pid 41 ended without signing off" in end.text


def test_a_lease_leads_to_the_worker_that_holds_it() -> None:
    worker, client = make_worker(name="dora"), signed_in("leasing.view_lease")
    mine = make_lease(resource="leasing_tasks.sampling", holder="dora")
    released = make_lease(resource="report:7", holder="dora", state="released")
    other = make_lease(resource="report:8", holder="ann")

    def links(lease: Lease) -> list[str]:
        return get(client, f"/ops/leases/{lease.lease_id}/").answers["who"].links

    assert links(mine) == links(released) == [url_of(worker)]
    assert links(other) == []


def test_a_task_leads_to_the_worker_that_holds_it_whoever_may_see_workers() -> None:
    worker = make_worker(name="dora")
    mine = [make_task(state=state, holder="dora") for state in ("running", "stuck", "succeeded")]
    others = [make_task(state="running", holder="ann"), make_task()]
    sees, sees_not = (
        signed_in("leasing_tasks.view_worker", "leasing_tasks.view_task"),
        signed_in("leasing_tasks.view_task", name="ann"),
    )

    def links(client: Client, task: Task) -> list[str]:
        return get(client, f"/ops/tasks/{task.pk}/").answers["who"].links

    assert [links(sees, task) for task in mine] == [[url_of(worker)]] * 3
    assert [links(sees, task) for task in others] == [[], []]
    assert links(sees_not, mine[0]) == []
