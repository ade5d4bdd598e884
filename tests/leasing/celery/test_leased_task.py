"""Celery's tasks under leases. Most of it is about holds alone, and runs in memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from leasing.celery import LeasedTask, is_skipped
from leasing.celery.task import PUT_OFF
from leasing.exceptions import InvalidResource, LeaseHeld, LeaseLost, LeaseTimeout
from leasing.models import Lease
from leasing.testing import assert_free, assert_held, expire, hold_elsewhere, in_memory
from tests.leasing.celery.conftest import Bench
from tests.leasing.support import PATIENCE
from tests.limits import Limits

pytestmark = pytest.mark.usefixtures("where")


@pytest.fixture
def where(request: pytest.FixtureRequest) -> Iterator[None]:
    on_rows = request.node.get_closest_marker("django_db")
    with nullcontext() if on_rows else in_memory():
        yield


def make(bench: Bench, body: Callable[..., Any], **options: Any) -> Any:
    """A bound task with ``body``, ``resource`` "sync:{account}" unless said otherwise."""
    options = {"resource": "sync:{account}", "bind": True, "base": LeasedTask, **options}
    options["shared"] = False  # or every app that comes later would have it too
    return bench.app.task(name=f"t{len(bench.app.tasks)}", **options)(body)


def body_that_tells(self: Any, account: Any = "default", page: int = 1) -> Any:
    assert_held(self.request.hold)
    assert self.request.fencing_token == self.request.hold.fencing_token > 0
    return self.request.hold.resource


# The winner


@pytest.mark.django_db(transaction=True)
def test_the_body_runs_under_a_lease_and_knows_its_token(bench: Bench) -> None:
    task = make(bench, body_that_tells)

    assert bench.run(task, 7).value == "sync:7"

    assert_free("sync:7")


@pytest.mark.parametrize(
    ("args", "kwargs", "resource"),
    [((7,), {}, "sync:7"), ((), {"account": "a"}, "sync:a"), ((), {}, "sync:default")],
)
def test_a_resource_is_made_of_all_arguments_of_the_call(
    bench: Bench, args: Any, kwargs: Any, resource: str
) -> None:
    assert bench.run(make(bench, body_that_tells), *args, kwargs=kwargs).value == resource


def test_a_task_without_fields_is_a_singleton(bench: Bench) -> None:
    def body(account: int) -> str:
        assert_held("singleton")
        return "done"

    task = make(bench, body, bind=False, resource="singleton")

    assert bench.run(task, 7).value == "done"


@pytest.mark.parametrize("account", ["a\nb", "", "x" * 201, " b"])
def test_a_name_that_cannot_be_used_fails_the_call_and_says_whose(
    bench: Bench, account: str
) -> None:
    task = make(bench, body_that_tells, resource="{account}")

    outcome = bench.run(task, account)

    assert outcome.state == "FAILURE"
    assert isinstance(outcome.value, InvalidResource)
    assert task.name in str(outcome.value) and "'{account}'" in str(outcome.value)


def test_a_body_that_fails_gives_the_lease_back(bench: Bench) -> None:
    def body(self: Any, account: int) -> None:
        raise KeyError(account)

    outcome = bench.run(make(bench, body), 7)

    assert (outcome.state, type(outcome.value)) == ("FAILURE", KeyError)
    assert_free("sync:7")


def test_options_of_the_lease_are_passed_on(bench: Bench) -> None:
    def body(self: Any, account: int) -> Any:
        hold = self.request.hold
        return hold.ttl, hold.row.metadata

    task = make(bench, body, ttl=45, lease={"metadata": {"why": "nightly"}})
    outcome = bench.run(task, 7)

    ttl, metadata = outcome.value
    assert ttl == 45
    assert metadata == {"task": task.name, "task_id": outcome.id, "retries": 0, "why": "nightly"}


# A lease that is lost


def lost_in_the_body(self: Any, account: int, ensure: bool = False) -> str:
    expire(self.request.hold)
    if ensure:
        self.request.hold.ensure()
    return "done"


@pytest.mark.parametrize("ensure", [True, False])
def test_a_task_whose_lease_was_lost_ends_as_failed(bench: Bench, ensure: bool) -> None:
    outcome = bench.run(make(bench, lost_in_the_body), 7, ensure)

    assert (outcome.state, type(outcome.value)) == ("FAILURE", LeaseLost)


@pytest.mark.parametrize("ensure", [True, False])
@pytest.mark.parametrize("backoff", [False, 3])
def test_a_lost_lease_is_retried_where_the_task_retries_losses(
    bench: Bench, ensure: bool, backoff: Any
) -> None:
    task = make(
        bench, lost_in_the_body, autoretry_for=(LeaseLost,), retry_backoff=backoff, max_retries=1
    )

    assert bench.run(task, 7, ensure).state == "RETRY"

    (message,) = bench.sent()
    assert message["retries"] == 1
    assert bench.run(task, 7, ensure, retries=1).state == "FAILURE"


def test_what_the_task_does_not_retry_for_is_not_retried(bench: Bench) -> None:
    task = make(
        bench, lost_in_the_body, autoretry_for=(Exception,), dont_autoretry_for=(LeaseLost,)
    )

    assert bench.run(task, 7).state == "FAILURE"


# The loser


def never(self: Any, account: int) -> None:
    raise AssertionError("the loser's body ran")


def test_a_loser_is_put_off_without_costing_a_retry(bench: Bench) -> None:
    task = make(bench, never, countdown=100, max_retries=0)

    with hold_elsewhere("sync:7"):
        outcome = bench.run(task, 7, retries=0)
    (message,) = bench.sent()

    assert outcome.state == "RETRY"
    assert isinstance(outcome.value.exc, LeaseHeld)
    assert 80 <= outcome.value.when <= 120
    assert message["id"] == outcome.id
    assert (message["retries"], message[PUT_OFF]) == (0, 1)
    assert message["eta"] is not None
    assert message["body"][0] == [7]


def test_a_call_is_put_off_as_often_as_it_may_be(bench: Bench) -> None:
    task = make(bench, never, max_put_off=2)

    with hold_elsewhere("sync:7"):
        assert bench.run(task, 7, **{PUT_OFF: 1}).state == "RETRY"
        (message,) = bench.sent()
        assert message[PUT_OFF] == 2
        last = bench.run(task, 7, **{PUT_OFF: 2})

    assert (last.state, type(last.value)) == ("FAILURE", LeaseHeld)


def test_headers_of_the_call_stay_with_it_when_it_is_put_off(bench: Bench) -> None:
    with hold_elsewhere("sync:7"):
        bench.run(make(bench, never), 7, tenant="north")

    (message,) = bench.sent()
    assert message["tenant"] == "north"


def test_a_call_that_cannot_be_put_off_goes_back_to_the_broker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make(bench, never)
    monkeypatch.setattr(type(task), "apply_async", lambda *args, **kwargs: 1 / 0)

    with hold_elsewhere("sync:7"):
        outcome = bench.run(task, 7)

    assert isinstance(outcome.value, Reject)
    assert outcome.value.requeue


def test_a_loser_that_is_skipped_says_so_in_its_result(bench: Bench) -> None:
    task = make(bench, never, when_held="skip")

    with hold_elsewhere("sync:7", holder="ann"):
        outcome = bench.run(task, 7)

    assert outcome.state == "SUCCESS"
    assert is_skipped(outcome.value)
    assert outcome.value["skipped"] == "sync:7"
    assert outcome.value["holder"] == "ann"
    assert bench.sent() == []
    assert is_skipped(bench.app.AsyncResult(outcome.id).get(timeout=1))


def test_what_a_skipped_call_becomes_can_be_overridden(bench: Bench) -> None:
    class Silent(LeasedTask):
        def skipped(self, held: LeaseHeld) -> Any:
            raise Ignore(str(held))

    with hold_elsewhere("sync:7"):
        outcome = bench.run(make(bench, never, when_held="skip", base=Silent), 7)

    assert outcome.state == "IGNORED"


def test_a_message_that_came_twice_leaves_the_result_to_the_call_that_runs(bench: Bench) -> None:
    doubles = []

    def body(self: Any, account: int) -> str:
        doubles.append(bench.run(self, account, id=self.request.id))
        return "done"

    outcome = bench.run(make(bench, body, when_held="skip"), 7)

    assert doubles[0].state == "IGNORED"
    assert outcome.value == "done"
    assert bench.app.AsyncResult(outcome.id).get(timeout=1) == "done"


@pytest.mark.parametrize("options", [{}, {"wait": None}], ids=["for a while", "for ever"])
def test_a_loser_may_wait_for_its_turn(bench: Bench, options: dict[str, Any]) -> None:
    task = make(bench, body_that_tells, when_held="wait", **options)
    begun, end = threading.Event(), threading.Event()

    def rival() -> None:
        with hold_elsewhere("sync:7"):
            begun.set()
            end.wait(PATIENCE)

    thread = threading.Thread(target=rival)
    thread.start()
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, end.set).start()

    assert bench.run(task, 7).value == "sync:7"
    thread.join()


def test_a_loser_that_waited_in_vain_fails(bench: Bench) -> None:
    with hold_elsewhere("sync:7"):
        outcome = bench.run(make(bench, never, when_held="wait", wait=0.01), 7)

    assert (outcome.state, type(outcome.value)) == ("FAILURE", LeaseTimeout)


def test_a_retry_that_comes_before_its_attempt_has_ended_waits_for_it(bench: Bench) -> None:
    results: list[Any] = []
    threads: list[threading.Thread] = []

    def body(self: Any, account: int) -> str:
        if self.request.retries:
            return "second"
        run = partial(bench.run, self, account, id=self.request.id, retries=1)
        threads.append(threading.Thread(target=lambda: results.append(run())))
        threads[0].start()
        threads[0].join(0.1)
        assert threads[0].is_alive()  # as long as this holds the lease
        raise self.retry(countdown=0)

    task = make(bench, body, when_held="skip")
    assert bench.run(task, 7).state == "RETRY"
    threads[0].join(PATIENCE)

    assert results[0].value == "second"


def test_a_retry_is_not_skipped_for_the_attempt_that_died_after_asking_for_it(
    bench: Bench, limits: Limits
) -> None:
    limits(settling=0.0)
    task = make(bench, never, when_held="skip")

    with Lease.objects.hold("sync:7", metadata={"task_id": "4f7d", "retries": 0}):
        assert bench.run(task, 7, id="4f7d", retries=1).state == "RETRY"
        assert is_skipped(bench.run(task, 7, id="other", retries=1).value)


# Without a worker


def test_an_eager_call_takes_the_lease_too(bench: Bench) -> None:
    task = make(bench, body_that_tells)

    assert task.apply((7,)).get() == "sync:7"
    with hold_elsewhere("sync:7"):
        assert isinstance(task.apply((7,)).result, LeaseHeld)


def test_an_eager_call_may_be_skipped(bench: Bench) -> None:
    with hold_elsewhere("sync:7"):
        assert is_skipped(make(bench, never, when_held="skip").apply((7,)).get())


@pytest.mark.parametrize("when_held", ["retry", "skip"])
def test_a_direct_call_takes_the_lease_too(bench: Bench, when_held: str) -> None:
    task = make(bench, body_that_tells, when_held=when_held)

    assert task(7) == "sync:7"
    with hold_elsewhere("sync:7"), pytest.raises(LeaseHeld):
        task(7)


def test_a_body_may_call_its_own_task_for_something_else(bench: Bench) -> None:
    def body(self: Any, account: int) -> Any:
        inner = self(account - 1) if account else []
        return [self.request.hold.resource, *inner]

    assert bench.run(make(bench, body), 2).value == ["sync:2", "sync:1", "sync:0"]


def test_the_body_alone_can_be_called(bench: Bench) -> None:
    def body(self: Any, account: int) -> int:
        return account

    with hold_elsewhere("sync:7"):
        assert make(bench, body).run(7) == 7


# Declarations


@pytest.mark.parametrize("resource", ["sync:{acount}", "sync:{}", "sync:{0}", "{page:{width}}", ""])
def test_a_resource_that_names_no_argument_is_refused(bench: Bench, resource: str) -> None:
    with pytest.raises(TypeError, match="resource"):
        make(bench, body_that_tells, resource=resource).name  # noqa: B018 - tasks are lazy


def test_an_unknown_way_to_lose_is_refused(bench: Bench) -> None:
    with pytest.raises(TypeError, match="when_held"):
        make(bench, body_that_tells, when_held="cry").name  # noqa: B018 - tasks are lazy


def test_a_generator_is_refused(bench: Bench) -> None:
    def body(self: Any, account: int) -> Any:
        yield account

    with pytest.raises(TypeError, match="generator"):
        make(bench, body).name  # noqa: B018 - tasks are lazy


def test_any_keyword_may_name_the_resource_where_the_body_takes_all(bench: Bench) -> None:
    def body(self: Any, **more: Any) -> Any:
        return self.request.hold.resource

    assert bench.run(make(bench, body), kwargs={"account": 3}).value == "sync:3"


def test_resources_may_be_computed(bench: Bench) -> None:
    class Mine(LeasedTask):
        def resource_for(self, args: Any, kwargs: Any) -> str:
            return f"mine:{len(args)}"

    def body(self: Any, *each: Any) -> Any:
        return self.request.hold.resource

    assert bench.run(make(bench, body, base=Mine, resource=""), 1, 2).value == "mine:2"


def test_without_celery_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['celery'] = None\nimport leasing\nimport leasing.celery"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert "ImportError: leasing.celery needs Celery: install django-leasing[celery]" in done.stderr
