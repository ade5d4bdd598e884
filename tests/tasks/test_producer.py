"""The methods of a decorated function that enqueue its tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import FieldError
from django.db import transaction

from tasks import handler, registry
from tasks.exceptions import InvalidArguments, UnknownTask
from tasks.models import Task
from tasks.testing import FakeContext, drain, enqueued, inline
from tests.factories import claimed, make_task
from tests.tasks.support import Handlers

pytestmark = pytest.mark.usefixtures("own_handlers")


@pytest.fixture
def send() -> Any:
    @handler("invoices.send", queue="default")
    def send(ctx: Any, invoice_id: int, *, copies: int = 1) -> dict[str, int]:
        """Send an invoice."""
        return {"sent": invoice_id, "copies": copies}

    return send


@pytest.mark.django_db
def test_a_task_is_enqueued_with_the_parameters_of_its_handler(send: Any) -> None:
    task = send.enqueue(invoice_id=7)

    assert (task.name, task.task_data) == ("invoices.send", {"invoice_id": 7})
    drain(raises=True)
    task.refresh_from_db()
    assert task.task_output == {"sent": 7, "copies": 1}


@pytest.mark.django_db(transaction=True)
def test_on_commit_it_is_stored_when_its_transaction_has_committed(send: Any) -> None:
    with transaction.atomic():
        send.using(priority=5).enqueue_on_commit(7, copies=2)
        with pytest.raises(InvalidArguments):
            send.enqueue_on_commit(invoice=7)
        assert not enqueued()

    (task,) = enqueued(send)
    assert (task.data, task.priority) == ({"invoice_id": 7, "copies": 2}, 5)


def test_a_transaction_is_only_waited_for_on_commit(send: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'transaction'"):
        send.using(transaction="default").enqueue(7)


@pytest.mark.django_db
def test_positional_arguments_are_stored_by_name(send: Any) -> None:
    assert send.enqueue(7, copies=2).task_data == {"invoice_id": 7, "copies": 2}


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((7, 8), {}, "invoices.send: too many positional arguments"),
        ((7,), {"invoice_id": 8}, "invoices.send: multiple values for argument 'invoice_id'"),
    ],
)
def test_positional_arguments_without_a_name_of_their_own_are_refused(
    send: Any, args: Any, kwargs: Any, complaint: str
) -> None:
    with pytest.raises(TypeError, match=f"^{complaint}$"):
        send.enqueue(*args, **kwargs)


def test_arguments_of_a_star_have_no_names() -> None:
    @handler("invoices.total")
    def total(ctx: Any, *amounts: int) -> int:
        return sum(amounts)

    with pytest.raises(TypeError, match=r"arguments of \*amounts have no names"):
        total.enqueue(1, 2)


@pytest.mark.django_db
def test_options_cannot_be_mistaken_for_parameters_of_the_handler() -> None:
    @handler
    def paint(ctx: Any, priority: str, self: str, data: str) -> None: ...

    urgent = paint.using(priority=5, unique_key="fence").using(delay=60)
    task = urgent.enqueue(priority="the fence", self="me", data="red")

    assert task.task_data == {"priority": "the fence", "self": "me", "data": "red"}
    assert (task.priority, task.unique_key) == (5, "fence")
    assert task.scheduled_at > task.created_at
    # An option that was given once does not stay.
    assert paint.enqueue(priority="a", self="b", data="c").priority == 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("prio", "did you mean 'priority'"),
        ("countdown", "delay"),
        ("data", "the data of the task goes to enqueue"),
        ("args", "the data of the task goes to enqueue"),
    ],
)
def test_using_refuses_an_unknown_option_before_anything_is_enqueued(
    send: Any, option: str, said: str
) -> None:
    with pytest.raises(TypeError, match=option) as error:
        send.using(**{option: 5})

    assert said in str(error.value)


@pytest.mark.django_db
def test_an_option_of_one_task_is_refused_for_many(send: Any) -> None:
    with pytest.raises(TypeError, match="unique_key"):
        send.using(unique_key="x").enqueue_many([send.data(invoice_id=7)])


@pytest.mark.django_db
def test_many_tasks_are_enqueued_by_one_call(send: Any) -> None:
    data = [send.data(1), send.data(invoice_id=2, copies=3), {"invoice_id": 3}]

    tasks = send.using(priority=5).enqueue_many(data)

    assert [task.task_data for task in tasks] == [
        {"invoice_id": 1},
        {"invoice_id": 2, "copies": 3},
        {"invoice_id": 3},
    ]
    assert {(task.name, task.priority) for task in tasks} == {("invoices.send", 5)}
    assert send.enqueue_many([]) == []


@pytest.mark.django_db
def test_async_code_has_twins(send: Any) -> None:
    task = async_to_sync(send.aenqueue)(invoice_id=7)
    later = async_to_sync(send.using(delay=timedelta(hours=1)).aenqueue)(8)
    (many,) = async_to_sync(send.aenqueue_many)([send.data(9)])

    assert enqueued(send) == [task, later, many]
    assert later.scheduled_at > task.scheduled_at


@pytest.mark.django_db
def test_the_decorated_function_stays_the_function_that_it_was(send: Any) -> None:
    assert inspect.isfunction(send)
    assert send.__doc__ == "Send an invoice."
    assert list(inspect.signature(send).parameters) == ["ctx", "invoice_id", "copies"]
    assert registry.find("invoices.send").function is send
    assert send(FakeContext(), 7) == {"sent": 7, "copies": 1}


@pytest.mark.django_db
def test_a_coroutine_function_stays_one() -> None:
    @handler
    async def ring(ctx: Any, times: int) -> int:
        return times

    assert inspect.iscoroutinefunction(ring)
    assert async_to_sync(ring)(FakeContext(), 3) == 3
    with inline():
        task = ring.enqueue(3)
    assert Task.objects.get(pk=task.pk).result == 3


@handler
def bare(ctx: Any) -> None: ...


@handler(max_attempts=3)
def nameless(ctx: Any) -> None: ...


def test_a_handler_without_a_name_has_the_dotted_path_of_its_function() -> None:
    # Not by the fixture's copy: the module is imported once.
    for function, name in ((bare, "bare"), (nameless, "nameless")):
        registered = registry.find(function)
        assert registered.name == f"{__name__}.{name}"
    assert registry.find(nameless).max_attempts == 3


@pytest.mark.parametrize("decorate", [handler, handler()])
def test_a_lambda_needs_a_name(decorate: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"A lambda has no name of its own: pass one to handler"):
        decorate(lambda ctx: None)


@pytest.mark.django_db
def test_of_two_names_of_one_function_its_tasks_get_the_upper_one() -> None:
    @handler("new")
    @handler("old")
    def both(ctx: Any) -> None: ...

    assert both.enqueue().name == Task.objects.enqueue(both).name == "new"
    assert registry.find("old").function is registry.find("new").function is both


class Desk:
    def file(self, ctx: Any, letter: str) -> str:
        return letter


class Stamp:
    def __init__(self) -> None:
        self.data = "paid"

    def __call__(self, ctx: Any, letter: str) -> str:
        return f"{letter}: {self.data}"


@pytest.mark.django_db
def test_an_object_that_is_a_handler_keeps_attributes_of_its_own() -> None:
    stamp: Any = handler("letters.stamp")(Stamp())

    assert stamp(None, letter="a") == "a: paid"
    assert stamp.enqueue(letter="a").name == "letters.stamp"


@pytest.mark.django_db
def test_what_can_have_no_methods_is_registered_all_the_same() -> None:
    method: Any = Desk().file
    assert handler("letters.file")(method) is method
    assert Task.objects.enqueue("letters.file", {"letter": "a"}).name == "letters.file"


@pytest.mark.django_db
def test_a_handler_that_was_removed_is_unknown(handlers: Handlers, send: Any) -> None:
    del handlers["invoices.send"]

    with pytest.raises(UnknownTask, match=r"'invoices\.send'"):
        send.enqueue(invoice_id=7)


@pytest.mark.django_db
def test_a_task_has_the_names_that_callers_expect(send: Any) -> None:
    task = send.enqueue(invoice_id=7)
    assert (task.data, task.result, task.finished_at) == ({"invoice_id": 7}, None, None)

    Task.objects.complete(claimed(task, "ann"), {"sent": 7})
    task.refresh_from_db()

    assert task.result == {"sent": 7}
    assert task.finished_at == task.processed_at is not None
    with pytest.raises(FieldError):  # queries name the columns
        Task.objects.filter(**{"result": 7})


@pytest.mark.django_db(transaction=True)
def test_the_observer_of_an_end_finds_these_names_too() -> None:
    seen: list[Any] = []

    @handler(on_end=lambda task: seen.append((task.data, task.result, task.finished_at)))
    def weigh(ctx: Any, grams: int) -> int:
        return grams

    weigh.enqueue(grams=3)
    (mine,) = Task.objects.take("ann")
    assert Task.objects.complete_claimed([(mine, 3)]) == []

    assert seen == [({"grams": 3}, 3, Task.objects.get().processed_at)]


@pytest.mark.django_db
def test_the_verbs_of_producers_and_operators_have_async_twins(send: Any) -> None:
    @async_to_sync
    async def work() -> tuple[int, int]:
        await Task.objects.aenqueue(send, {"invoice_id": 7}, priority=5)
        await Task.objects.aenqueue_many("invoices.send", [{"invoice_id": 8}], max_attempts=2)
        cancelled = await Task.objects.filter(priority=5).acancel(by="olga", reason="a mistake")
        return cancelled, await Task.objects.filter(priority=5).aretry(by="olga")

    make_task(state="failed")

    assert work() == (1, 1)
    assert [(each.priority, each.status, each.max_attempts) for each in enqueued(send)] == [
        (5, "ready", 10),
        (0, "ready", 2),
    ]
