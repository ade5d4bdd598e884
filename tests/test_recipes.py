"""The recipes of docs/recipes.md: each block does what its text says."""

from __future__ import annotations

import re
from io import StringIO
from types import ModuleType
from typing import Any

import pytest
from django.core.files.storage import InMemoryStorage
from django.core.management import CommandError, call_command
from django.test import RequestFactory
from django.urls import path
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from leasing import once
from leasing.testing import hold_elsewhere, manual_keeper
from leasing.testing.keeper import ManualKeeper
from tasks.models import OutboxMessage, Task
from tasks.outbox import publish
from tasks.outbox.relay import Relay
from tasks.testing import drain, run
from tests.plugin import ROOT

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_handlers")]

PAGE = (ROOT / "docs" / "recipes.md").read_text()
RECIPES = dict(re.findall(r"^## ([^\n]*)\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.M))


@pytest.fixture
def time() -> Any:
    """The clocks of leases and of the database, moved by hand."""
    with manual_keeper() as clocks:
        yield clocks


def recipe(title: str) -> Any:
    """Return what the block below that heading defines."""
    names: dict[str, Any] = {}
    exec(compile(RECIPES[title], title, "exec"), names)
    return type("Recipe", (), {name: staticmethod(each) for name, each in names.items()})


def running(*tasks: Task) -> list[Task]:
    """Claim what can run now, for another worker."""
    return list(Task.objects.claim("another worker", limit=10, ttl=3600))


def test_each_recipe_has_one_block_and_a_test_here() -> None:
    headings = re.findall("^## (.*)$", PAGE, re.M)
    blocks = re.findall("^```(.*)$", PAGE, re.M)
    tested = re.findall(r'recipe\("([^"]+)"\)', (ROOT / "tests" / "test_recipes.py").read_text())

    assert blocks == ["python", ""] * len(headings)
    assert headings == list(RECIPES) == list(dict.fromkeys(tested))


def test_many_changes_are_one_run_after_the_last_of_them(time: ManualKeeper) -> None:
    debounce = recipe("Debounce")
    debounce.article_changed(7)
    first = Task.objects.get().scheduled_at
    time.advance(20)
    debounce.article_changed(7)
    debounce.article_changed(8)

    assert Task.objects.count() == 2
    task = Task.objects.get(unique_key="search.index:7")
    assert (task.scheduled_at - first).total_seconds() == pytest.approx(20, abs=1)


def test_a_change_during_a_run_is_a_run_of_its_own_that_waits_for_it(
    time: ManualKeeper,
) -> None:
    debounce = recipe("Debounce")
    debounce.article_changed(7)
    time.advance(30)
    (before,) = running()
    debounce.article_changed(7)
    time.advance(30)

    assert running() == []  # one article's runs do not overlap
    Task.objects.complete(before, None)
    assert len(running()) == 1


def test_a_customer_with_many_tasks_leaves_slots_to_the_others() -> None:
    build = recipe("Fair share per customer").build
    build.enqueue_many(build.data(customer_id=1, day=day) for day in range(10))
    build.enqueue_many(build.data(customer_id=2, day=day) for day in range(2))

    assert sorted(task.data["customer_id"] for task in running()) == [1, 1, 2, 2]


def test_tasks_of_a_customer_run_one_by_one_and_not_beside_other_code(time: ManualKeeper) -> None:
    sync = recipe("One task of a customer at a time").sync
    for customer in (1, 1, 1, 2):
        sync.enqueue(customer_id=customer)

    with hold_elsewhere("customer:1", "a command", ttl=60):
        task = run(Task.objects.filter(task_data={"customer_id": 1})[0])
        assert (task.status, task.attempts) == ("ready", 0)
        assert Task.objects.scheduled().get() == task
    assert [each.data["customer_id"] for each in running()] == [1, 2]


def test_a_job_is_done_once_in_its_window_however_short_it_is(time: ManualKeeper) -> None:
    nightly = recipe("Not again for n seconds").nightly_report
    sent: list[str] = []

    def first() -> None:
        sent.append("first")
        assert nightly(lambda: sent.append("beside the first")) is False

    assert nightly(first) is True
    time.advance(13 * 60)
    assert nightly(lambda: sent.append("second")) is False
    time.advance(60)
    assert nightly(lambda: sent.append("third")) is True
    assert sent == ["first", "third"]


def test_a_job_that_failed_is_done_by_the_next_caller() -> None:
    nightly = recipe("Not again for n seconds").nightly_report
    sent: list[str] = []

    with pytest.raises(ZeroDivisionError):
        nightly(lambda: 1 / 0)
    assert nightly(lambda: sent.append("sent")) is True


def test_no_more_begin_than_the_limit_permits(time: ManualKeeper) -> None:
    send = recipe("At most n in a time").send
    for number in range(7):
        send.enqueue(number=number)

    states = [run(task).status for task in Task.objects.order_by("pk")]
    assert states == ["succeeded"] * 5 + ["ready"] * 2
    assert not Task.objects.filter(attempts__gt=1).exists()
    time.advance(10)
    assert [task.status for task in drain()] == ["succeeded"] * 2


def test_a_slot_that_is_being_taken_is_no_permission() -> None:
    permitted = recipe("At most n in a time").permitted
    answers: list[bool] = []
    once("sms:0", window=10, ttl=2).run(lambda: answers.append(permitted("sms", 1, 10)))
    assert answers == [False]


def test_the_next_task_of_a_chain_is_stored_with_the_result_of_the_first() -> None:
    chain = recipe("A chain")
    task = run(chain.charge.enqueue(order_id=7))
    assert task.result == {"receipt": "receipt-7"}
    (confirmation,) = drain()
    assert confirmation.result == {"mailed": "receipt-7"}


def test_a_chain_that_lost_its_task_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = recipe("A chain")
    enqueue = chain.confirm.enqueue

    def enqueue_too_late(**data: Any) -> None:
        Task.objects.filter(pk=task.pk).revoke(reason="taken from it")
        enqueue(**data)

    monkeypatch.setattr(chain.confirm, "enqueue", enqueue_too_late)
    task = chain.charge.enqueue(order_id=7)
    run(task)
    assert task.status != "succeeded"
    assert Task.objects.get() == task


def test_the_parts_are_put_together_when_all_are_done() -> None:
    build = recipe("Fan out, and continue when all are done").build
    run(build.enqueue(chapters=3))
    collector = Task.objects.get(name="report.bind")
    first = Task.objects.filter(name="report.chapter")[0]

    run(first)
    assert (run(collector).status, collector.attempts) == ("ready", 0)
    done = drain(skip_delays=True)
    assert done[-1].result == ["chapter 0", "chapter 1", "chapter 2"]


def test_a_collector_fails_with_a_part_and_succeeds_when_both_are_retried() -> None:
    build = recipe("Fan out, and continue when all are done").build
    run(build.enqueue(chapters=2))
    part = Task.objects.filter(name="report.chapter").order_by("pk")[0]
    Task.objects.filter(pk=part.pk).cancel()
    drain(skip_delays=True)
    collector = Task.objects.get(name="report.bind")
    assert (collector.status, collector.attempts) == ("failed", 1)

    for name in ("report.chapter", "report.bind"):
        Task.objects.filter(name=name).retry()
        drain()
    assert Task.objects.get(name="report.bind").result == ["chapter 0", "chapter 1"]


def test_what_has_expired_is_not_sent() -> None:
    codes = recipe("Expiring tasks")
    assert run(codes.request_code("0151")).result == {"sent": "0151"}
    late = codes.send_code.enqueue(number="0152", until="2026-01-01T00:00:00Z")
    assert run(late).result == {"expired": "2026-01-01T00:00:00Z"}


def test_a_backlog_of_expired_tasks_is_cancelled_at_once(time: ManualKeeper) -> None:
    codes = recipe("Expiring tasks")
    old, new = codes.request_code("0151"), codes.request_code("0152")
    Task.objects.filter(pk=old.pk).update(created_at="2026-01-01T00:00:00Z")

    assert codes.clear_backlog() == 1
    assert Task.objects.cancelled().get() == old
    assert Task.objects.ready().get() == new


def test_a_large_file_is_passed_by_its_key_and_removed_at_the_end(settings: Settings) -> None:
    large = recipe("Large payloads")
    storage = InMemoryStorage()
    large.read.__globals__["default_storage"] = storage

    task = large.receive(b"x" * 1000)
    assert storage.exists(task.data["upload"])
    assert run(task).result == {"bytes": 1000}
    assert not storage.exists(task.data["upload"])


@pytest.mark.django_db(transaction=True)
def test_a_webhook_is_signed_and_acted_on_once_however_often_it_arrives(
    live_server: LiveServer, settings: Settings
) -> None:
    webhook = recipe("A webhook")
    webhook.receive.__module__ = "shop.webhooks"
    urls = ModuleType("urls_of_a_webhook")
    urls.urlpatterns = [path("hook", webhook.receive)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    settings.WEBHOOK_URL, settings.WEBHOOK_SECRET = f"{live_server.url}/hook", "secret"
    relay = Relay(webhook.send)
    for order in (1, 2):
        publish("orders.paid", {"order": order}, key="orders")

    for _ in range(2):
        while relay.look() == 0:
            pass
        assert not OutboxMessage.objects.pending().exists()
        OutboxMessage.objects.update(published_at=None)  # as if a relay had died before it noted it
    assert webhook.shipped == [1, 2]

    settings.WEBHOOK_SECRET = "another"
    forged = webhook.signature(b"{}")
    settings.WEBHOOK_SECRET = "secret"
    request = RequestFactory().post("/hook", b"{}", "application/json", HTTP_X_SIGNATURE=forged)
    assert webhook.receive(request).status_code == 401
    settings.WEBHOOK_URL = f"{live_server.url}/elsewhere"
    while relay.look() == 0:
        pass
    failed = OutboxMessage.objects.get(failures=1)
    assert (failed.payload, failed.last_error) == (
        {"order": 1},
        "HTTPError: HTTP Error 404: Not Found",
    )


def test_a_file_of_the_bank_is_compared_with_the_keys(time: ManualKeeper) -> None:
    compare = recipe("Reconcile with a downstream file").compare
    for key in ("paid", "unpaid", "twice"):
        once(key, window=3600).run(lambda: "receipt")
    with pytest.raises(ZeroDivisionError):
        once("left", window=3600).run(lambda: 1 / 0)
    time.advance(60)
    keys = StringIO()
    with pytest.raises(CommandError, match="1 open"):
        call_command("tasks", "reconcile", "--json", stdout=keys)
    keys.seek(0)
    bank = StringIO("key,cents\npaid,5\nleft,5\ntwice,5\ntwice,5\nelsewhere,5\n")

    assert compare(keys, bank) == {
        "settle": ["left"],
        "twice": ["twice"],
        "unpaid": ["unpaid"],
        "unknown": ["elsewhere"],
    }
