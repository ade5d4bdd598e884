"""The name of a worker is a label and eight digits; a row takes the place of those before it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

from leasing.functions import after
from leasing.validation.names import default_holder, unique_name
from tasks.dashboard.forms import TaskSearch
from tasks.dashboard.listing import columns_search
from tasks.models import Task, Worker
from tasks.worker.registration import WorkerRegistration
from tests.conftest import Spawn
from tests.factories import make_task, make_worker
from tests.leasing.support import FakeClock
from tests.processes import wait_for
from tests.tasks.support import refusing

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host of the rows that ``make_worker`` makes."""
    monkeypatch.setattr(socket, "gethostname", lambda: "host-1")
    yield


def begun(name: str = "web:0000000b", **columns: Any) -> WorkerRegistration:
    registration = WorkerRegistration(name, queues=["default"], slots={}, **columns)
    registration.begin()
    return registration


def names() -> set[str]:
    return set(Worker.objects.values_list("name", flat=True))


# The name


def test_a_name_is_a_label_and_eight_digits_anew() -> None:
    one, other = unique_name("web"), unique_name("web")

    assert one != other
    label, digits = one.split(":")
    assert (label, len(digits), int(digits, 16) >= 0) == ("web", 8, True)
    assert unique_name().rpartition(":")[0] == default_holder().rpartition(":")[0]


def test_a_name_of_a_project_of_its_own_is_a_label(settings: Any) -> None:
    settings.LEASING = {"HOLDER": lambda: "crane:driver"}

    assert unique_name().rpartition(":")[0] == "crane:driver"


def test_two_workers_with_one_label_work_beside_each_other(spawn: Spawn) -> None:
    arguments = ["manage.py", "run_worker", "--workers", "0", "--name", "ann"]
    processes = [spawn(arguments) for _ in range(2)]

    wait_for(lambda: Worker.objects.present().count() == 2, timeout=60)
    for process in processes:
        process.terminate()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert {name.rpartition(":")[0] for name in names()} == {"ann"}


# What a label means


@pytest.mark.parametrize(
    ("states", "meant"),
    [
        (["live", "live"], [1]),
        (["live", "gone"], [0]),
        (["late", "stopped"], [0]),
        (["gone", "gone"], [1]),
        (["stopped", "stopped"], [1]),
    ],
)
def test_a_label_means_its_newest_live_process_or_else_its_newest(
    states: list[str], meant: list[int]
) -> None:
    made = [
        make_worker(name=f"web:{number:08}", state=state) for number, state in enumerate(states)
    ]
    make_worker(name="web:1:00000000")
    make_worker(name="web-2:00000000")
    make_worker(name="other")

    assert list(Worker.objects.called("web")) == [made[number] for number in meant]
    assert list(Worker.objects.called(made[0].name)) == [made[0]]
    assert not Worker.objects.called("we").exists()


def test_the_label_of_a_parent_means_a_worker_of_each_number() -> None:
    rows = {
        name: make_worker(name=f"web:{name}", fleet="web", fleet_index=int(name[0]), state=state).pk
        for name, state in {
            "1:0000000a": "gone",
            "1:0000000b": "live",
            "2:0000000c": "live",
            "3:0000000d": "stopped",
        }.items()
    }

    found = set(Worker.objects.called("web").values_list("pk", flat=True))
    assert found == {rows["1:0000000b"], rows["2:0000000c"]}
    assert [each.pk for each in Worker.objects.called("web:1")] == [rows["1:0000000b"]]
    Worker.objects.update(stopped_at=after(timedelta(0)))
    assert len(Worker.objects.called("web")) == 3


def test_tasks_are_found_by_the_label_of_their_worker() -> None:
    make_worker(name="web:0000000a")
    found = make_task(state="running", holder="web:0000000a")
    make_task(state="running", holder="web:0000000b")

    for holder in ("web", "web:0000000a"):
        search = TaskSearch({"holder": holder})
        assert search.is_valid()
        assert list(Task.objects.filter(columns_search(search.cleaned_data))) == [found]


# The row


def test_a_row_that_was_deleted_comes_back_with_its_start(holder_clock: FakeClock) -> None:
    registration = begun()
    started_at = Worker.objects.get().started_at
    Worker.objects.all().delete()
    holder_clock.advance(3600)

    registration.service.step()

    again = Worker.objects.get()
    assert started_at - timedelta(hours=1, seconds=1) < again.started_at < started_at


def test_a_heartbeat_writes_the_news_and_the_end_is_noted() -> None:
    news = {"blocked": {"thread": 0}}
    registration = WorkerRegistration("ann", lambda: news, queues=[], slots={})
    registration.begin()
    news["blocked"] = {"thread": 1}
    Worker.objects.update(last_seen_at=after(timedelta(hours=-1)))

    assert registration.service.step() == 6.0
    row = Worker.objects.get()
    assert row.blocked == {"thread": 1} and Worker.objects.present().exists()

    assert registration.service.close is not None
    registration.service.close()
    assert Worker.objects.get().stopped_at is not None


def test_a_database_that_is_away_is_no_hindrance() -> None:
    with refusing(OperationalError("away"), lambda sql, params: True):
        registration = begun()
    assert not Worker.objects.exists()

    registration.service.step()

    assert Worker.objects.present().exists()


def test_what_was_not_seen_for_a_day_is_forgotten() -> None:
    make_worker(name="old")
    make_worker(name="new", state="gone")
    Worker.objects.filter(name="old").update(last_seen_at=after(timedelta(hours=-25)))

    begun()

    assert names() == {"new", "web:0000000b"}


# Those before it


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("state", "how"), [("gone", "ended without signing off"), ("stopped", "stopped cleanly")]
)
def test_a_row_is_in_place_of_those_that_had_its_label_on_its_host(state: str, how: str) -> None:
    before = make_worker(name="web:0000000a", state=state)

    begun()

    row = Worker.objects.get()
    (end,) = row.former_ends
    assert (row.name, end.pid, end.started_at) == ("web:0000000b", before.pid, before.started_at)
    assert (end.how, end.at) == (how, before.stopped_at or before.last_seen_at)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    "columns",
    [
        {"name": "web:0000000a", "state": "live"},
        {"name": "web:0000000a", "state": "late"},
        {"name": "web:0000000a", "state": "gone", "hostname": "host-2"},
        {"name": "web:1:0000000a", "state": "gone"},
        {"name": "mail:0000000a", "state": "gone"},
    ],
)
def test_others_keep_their_rows(columns: dict[str, Any]) -> None:
    make_worker(**columns)

    begun()

    assert names() == {columns["name"], "web:0000000b"}


@pytest.mark.usefixtures("host")
def test_one_that_is_gone_only_later_goes_then_and_a_successor_s_row_stays(
    holder_clock: FakeClock, django_assert_num_queries: Any
) -> None:
    make_worker(name="web:0000000a")
    registration = begun()
    make_worker(name="web:0000000c", state="gone")
    Worker.objects.filter(name="web:0000000a").update(last_seen_at=after(timedelta(seconds=-31)))

    registration.service.step()

    assert names() == {"web:0000000b", "web:0000000c"}
    assert len(Worker.objects.get(name="web:0000000b").former_ends) == 1
    with django_assert_num_queries(2):  # its heartbeat, and its look for predecessors
        registration.service.step()
    # Whoever was there before it and is not gone by now is at work.
    holder_clock.advance(43)
    with django_assert_num_queries(1):
        registration.service.step()


@pytest.mark.usefixtures("host")
def test_the_latest_ends_of_a_label_are_known() -> None:
    for number in range(Worker.ENDS_KEPT + 2):
        begun(f"web:{number:08}", pid=number)
        # SQLite's clock has milliseconds: two ends in one of them would be in no order.
        moment = after(timedelta(seconds=number - 60))
        Worker.objects.filter(name=f"web:{number:08}").update(stopped_at=moment)

    begun("web:ffffffff")

    pids = [end.pid for end in Worker.objects.get().former_ends]
    assert pids == list(range(Worker.ENDS_KEPT + 1, 1, -1))


@pytest.mark.usefixtures("host")
def test_a_child_knows_the_ends_of_those_that_had_its_number_also_below_an_earlier_parent() -> None:
    for name in ("web:1:0000000a", "web:1:0000000b", "web:2:0000000c"):
        index = int(name.split(":")[1])
        make_worker(name=name, fleet="web", fleet_index=index, fleet_restarts=0)
    Worker.objects.sign_off_dead("web:1:0000000a", "was killed by signal 9")
    Worker.objects.filter(name="web:1:0000000a").update(stopped_at=after(-timedelta(seconds=1)))
    Worker.objects.sign_off("web:1:0000000b")

    begun("web:1:0000000d", fleet="web", fleet_index=1, fleet_restarts=2)

    ends = Worker.objects.get(name="web:1:0000000d").former_ends
    assert [end.how for end in ends] == ["stopped cleanly", "was killed by signal 9"]
    assert names() == {"web:1:0000000d", "web:2:0000000c"}
