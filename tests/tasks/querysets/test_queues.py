"""Queues that are paused."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client

from tasks.exceptions import UnknownQueue
from tasks.models import Queue, Task, Worker
from tests.factories import make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession
from tests.pages import Page, get, signed_in
from tests.tasks.support import Reported

pytestmark = pytest.mark.django_db

QUEUES = "/admin/leasing_tasks/queue/"
VIEW = ("leasing_tasks.view_queue", "leasing_tasks.view_task")


def claim(**options: object) -> list[int]:
    return sorted(task.pk for task in Task.objects.claim("ann", limit=9, **options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("queues")
def test_nothing_of_a_paused_queue_is_claimed_until_it_is_resumed(reported: Reported) -> None:
    mail, other = make_task(queue="mail"), make_task()
    reported.clear()

    assert Queue.objects.pause("mail", by="olga", reason="the server is down")
    assert claim() == [other.pk]
    assert claim(queues=["mail"]) == []

    assert Queue.objects.resume("mail", by="olga")
    assert claim() == [mail.pk]
    assert [(name, rest) for name, _, rest in reported if name in ("paused", "resumed")] == [
        ("paused", {"queue": "mail", "by": "olga", "reason": "the server is down"}),
        ("resumed", {"queue": "mail", "by": "olga"}),
    ]


def test_what_runs_when_its_queue_is_paused_runs_on() -> None:
    task = make_task(state="running")
    Queue.objects.pause("default")

    Task.objects.heartbeat(task)
    Task.objects.fail(task, "no luck")

    assert claim() == []


def test_who_paused_first_and_why_stays(reported: Reported, database_clock: DatabaseClock) -> None:
    paused_at = database_clock.now
    Queue.objects.pause("default", by="olga", reason="x" * 600)
    database_clock.advance(5)

    assert not Queue.objects.pause("default", by="bob", reason="no")

    queue = Queue.objects.get()
    assert (queue.paused_by, queue.reason, queue.paused_at) == ("olga", "x" * 500, paused_at)
    assert Queue.objects.resume("default") and not Queue.objects.resume("default")
    queue.refresh_from_db()
    assert (queue.paused_at, queue.paused_by, queue.reason) == (None, "", "")
    assert [name for name, *_ in reported] == ["paused", "resumed"]


@pytest.mark.usefixtures("queues")
def test_one_queue_is_resumed_and_not_the_others() -> None:
    for name in ("default", "mail"):
        Queue.objects.pause(name)

    Queue.objects.resume("mail")

    assert [queue.name for queue in Queue.objects.paused()] == ["default"]


def test_a_queue_that_nobody_knows_cannot_be_paused() -> None:
    with pytest.raises(UnknownQueue):
        Queue.objects.pause("mial")
    assert not Queue.objects.resume("mial")
    assert not Queue.objects.exists()


def test_a_queue_that_is_no_longer_declared_can_still_be_paused() -> None:
    Queue.objects.declare(["old"])
    assert Queue.objects.pause("default")  # which has no row, and another has one

    assert Queue.objects.pause("old")


@pytest.mark.django_db(transaction=True)
def test_a_pause_is_told_when_it_has_committed(reported: Reported) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Queue.objects.pause("default")
        raise ZeroDivisionError

    assert reported == []
    assert not Queue.objects.paused().exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_a_pause_counts_from_its_commit(other_session: OtherSession) -> None:
    first, second = make_task(priority=9), make_task()
    other_session.begin()
    other_session.run(lambda: Queue.objects.pause("default"))
    assert [task.pk for task in Task.objects.claim("ann")] == [first.pk]

    other_session.commit()
    assert claim() == []
    assert Task.objects.ready().get().pk == second.pk


def test_a_worker_makes_its_queues_known_and_leaves_a_pause_as_it_is() -> None:
    Queue.objects.pause("default", reason="deploy")

    Worker.objects.register("ann", hostname="h", pid=1, queues=["default", "mail"])

    assert list(Queue.objects.order_by("name").values_list("name", "reason")) == [
        ("default", "deploy"),
        ("mail", ""),
    ]


# The admin


def act(client: Client, action: str, *names: str, **more: str) -> Page:
    data = {"action": action, "_selected_action": list(names), **more}
    return Page(client.post(QUEUES, data, follow=True))


def test_an_operator_pauses_with_a_reason_and_resumes() -> None:
    client = signed_in(*VIEW, "leasing_tasks.pause_queue", name="olga", is_staff=True)
    Queue.objects.declare(["default", "mail"])
    assert "● open" in get(client, QUEUES).text

    assert act(client, "pause", "mail").all("[data-preview]")
    assert "Give a reason" in act(client, "pause", "mail", confirmed="yes", reason=" ").text
    assert not Queue.objects.paused().exists()
    page = act(client, "pause", "mail", confirmed="yes", reason="the server is down")
    assert "Paused: 1 of 1 queue." in page.text and "‖ paused" in page.text
    queue = Queue.objects.paused().get()
    assert (queue.name, queue.paused_by, queue.reason) == ("mail", "olga", "the server is down")
    assert "the server is down" in get(client, f"{QUEUES}mail/change/").text

    page = act(client, "resume", "default", "mail", confirmed="yes")
    assert "Resumed: 1 of 2 queues. Not changed: 1 not paused." in page.text
    assert not Queue.objects.paused().exists()
