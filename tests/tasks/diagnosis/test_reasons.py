"""Why tasks wait, in the same words on every surface."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import F
from django.test import Client

from leasing.functions import DbNow, after, database_now
from tasks.dashboard.queue_rows import read_queues
from tasks.diagnosis import explain, reasons
from tasks.models import Queue, Sample, Task, Worker
from tasks.sample import SLEEP
from tests.api_calls import call
from tests.factories import claimed, make_task, make_tasks, make_worker
from tests.limits import Limits
from tests.pages import get, queries

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("database_clock")]


def of_ann(slots: int = 2) -> None:
    make_worker(name="ann", slots={"thread": slots})
    Worker.objects.update(last_seen_at=DbNow(), started_at=after(timedelta(hours=-1)))


def claimed_by_ann(**options: Any) -> Task:
    """A task that ann claimed two minutes ago, of which she has done 4 of 10."""
    task = make_task(state="running", holder="ann", **options)
    Task.objects.filter(pk=task.pk).update(
        acquired_at=DbNow() - timedelta(minutes=2), progress={"done": 4, "total": 10}
    )
    return task


def waiting(count: int, **options: Any) -> None:
    """Tasks that have been due for 40 s, the first for 100 s."""
    first, *_ = make_tasks(count, **options)
    Task.objects.filter(status="ready").update(scheduled_at=after(timedelta(seconds=-40)))
    minute = timedelta(seconds=60)
    Task.objects.filter(pk=first.pk).update(scheduled_at=F("scheduled_at") - minute)


def usually_takes_six_seconds() -> None:
    usual = {SLEEP: {"failures": 0, "runs": {"10": 9}, "waits": {}}}
    slot = int(database_now("default").timestamp()) - 60
    Sample.objects.create(queue="default", slot=slot, handlers=usual)


def saturated() -> str:
    of_ann()
    usually_takes_six_seconds()
    claimed_by_ann()
    make_task(state="running", holder="ann")
    waiting(3)
    return (
        "3 tasks wait in the queue default, the oldest for 1 min 40 s: all 2 threads are busy: "
        "2 with sample.sleep (2 min, usually 6.2 s)."
    )


def blocked() -> str:
    of_ann(1)
    Worker.objects.update(blocked={"thread": 1})
    waiting(1)
    return (
        "1 task waits in the queue default for 1 min 40 s: no thread of the worker is free: "
        "1 blocked by handlers whose tasks have ended."
    )


def key_held() -> str:
    of_ann()
    usually_takes_six_seconds()
    task = claimed_by_ann(concurrency_key="customer:77", concurrency_limit=1)
    waiting(2, concurrency_key="customer:77", concurrency_limit=1)
    return (
        "2 tasks wait for the key customer:77, the oldest for 1 min 40 s: held by "
        f"task:{task.pk} (sample.sleep, running for 2 min, usually 6.2 s, 4 of 10 done)."
    )


def key_of_several() -> str:
    of_ann(9)
    first, second = (claimed_by_ann(concurrency_key="k", concurrency_limit=2) for _ in range(2))
    waiting(1, concurrency_key="k", concurrency_limit=2)
    return (
        "1 task waits for the key k (2 tasks at a time) for 1 min 40 s: held by "
        f"task:{first.pk} (sample.sleep, running for 2 min, 4 of 10 done), "
        f"task:{second.pk} (sample.sleep, running for 2 min, 4 of 10 done)."
    )


def unclaimed() -> str:
    of_ann()
    waiting(1)
    return (
        "1 task waits in the queue default for 1 min 40 s: a worker has a free slot, but claims "
        "nothing."
    )


@pytest.mark.usefixtures("compatible")
@pytest.mark.parametrize("plant", [saturated, blocked, key_held, key_of_several, unclaimed])
def test_every_surface_has_the_same_sentence(
    admin_client: Client, client: Client, plant: Callable[[], str]
) -> None:
    sentence = plant()
    task = Task.objects.filter(status="ready").latest("pk")

    assert get(admin_client, "/ops/").one("[data-code=waits_long] .loud").text == sentence
    assert sentence in get(admin_client, "/ops/queues/").text
    assert sentence in get(admin_client, f"/ops/tasks/{task.pk}/").text
    out = StringIO()
    call_command("queues", "list", "--json", stdout=out)
    assert [line["waiting"] for line in json.loads(out.getvalue())] == [[sentence]]
    call_command("tasks", "explain", str(task.pk), stdout=out)
    assert sentence in out.getvalue()
    (line,) = call(client, "GET", "/queues").body["queues"]
    assert line["waiting"] == [sentence]
    facts = call(client, "GET", f"/tasks/{task.pk}/diagnosis").body["facts"]
    assert facts["In line"] == sentence


def test_who_waits_for_a_key_and_who_holds_it_link_and_count_each_other(
    admin_client: Client,
) -> None:
    key_held()
    held, *_, waits = Task.objects.order_by("pk")

    assert f"/ops/tasks/{held.pk}/" in get(admin_client, f"/ops/tasks/{waits.pk}/").links
    assert dict(explain(held).facts)["Concurrency key"] == "customer:77: 2 tasks wait for it"
    need = get(admin_client, "/ops/").one("[data-code=waits_long]")
    assert need.links.count(f"/ops/tasks/{held.pk}/") == 3
    assert "/ops/runbook/stuck-queue/" in need.links
    assert f"If task:{held.pk} hangs, cancel it on its page." in need.one("p").text


def test_what_was_put_off_although_a_worker_has_its_handler_waits_for_its_own_time() -> None:
    of_ann()
    task = make_task()
    Task.objects.give_back(claimed(task, "bea"), "No handler", delay=timedelta(seconds=30))
    scheduled = Task.objects.get(pk=task.pk).scheduled_at
    waiting(1)
    Task.objects.filter(pk=task.pk).update(scheduled_at=scheduled)

    (reason,) = reasons.reasons(["default"], database_now("default"))["default"]

    assert reason.sentence.startswith("1 task waits in the queue default for ")


def test_only_the_queues_that_have_waited_longest_are_explained_with_a_statement_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_ann()
    names = [f"q{number}" for number in range(8)]
    Worker.objects.update(queues=names)

    def statements(first: int, last: int) -> int:
        for name in names[first:last]:
            waiting(1)
            Task.objects.filter(queue="default").update(queue=name)
        with queries() as sent:
            found = [line.name for line in read_queues().lines if line.reasons]
        assert names[last - 1] in found and len(found) == min(last, reasons.EXPLAINED)
        return len(sent())

    one = statements(0, 1)
    assert [statements(1, 5), statements(5, 8)] == [one + 4, one + 4]


def test_more_tasks_than_are_looked_at_are_counted_as_many(limits: Limits) -> None:
    limits(looked_at=3)
    of_ann()
    waiting(5)
    make_task(state="scheduled")

    (line,) = read_queues().lines
    (reason,) = line.reasons
    assert reason.sentence.startswith("3+ tasks wait in the queue default, ")


def test_a_paused_queue_is_not_explained_twice() -> None:
    of_ann()
    waiting(1)
    Queue.objects.pause("default", by="olga", reason="month end")

    assert [line.reasons for line in read_queues().lines] == [[]]
