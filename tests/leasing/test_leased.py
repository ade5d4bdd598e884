"""``@leased``: functions, coroutines and views that run under a lease."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from leasing import Leader, leased, once
from leasing.exceptions import (
    InvalidResource,
    InvalidTTL,
    LeaseHeld,
    LeaseInTransaction,
    LeaseLost,
    LeaseTimeout,
)
from leasing.holding import Hold
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.testing.keeper import ManualKeeper
from tests.leasing.stopped import Waits
from tests.leasing.support import events, held_names

pytestmark = pytest.mark.django_db
in_earnest = pytest.mark.django_db(transaction=True)


# Functions


def test_a_function_runs_under_its_lease_and_returns() -> None:
    @leased("report")
    def build() -> list[str]:
        """Build it."""
        return held_names()

    assert build() == ["report"]
    assert held_names() == []
    assert (build.__name__, build.__doc__) == ("build", "Build it.")
    assert not iscoroutinefunction(build)


def test_a_lost_race_raises_and_the_body_does_not_run() -> None:
    @leased("report")
    def build() -> None:
        pytest.fail("the body must not run")

    Lease.objects.acquire("report", holder="ann")

    with pytest.raises(LeaseHeld, match="report is held by ann"):
        build()


def test_each_call_has_a_hold_of_its_own() -> None:
    @leased("report:{pk}")
    def build(pk: int, deeper: bool = False) -> list[str]:
        return build(pk + 1) if deeper else held_names()

    assert build(1, deeper=True) == ["report:1", "report:2"]
    with pytest.raises(LeaseHeld):
        rebuild(1)
    assert held_names() == []


@leased("report:{pk}")
def rebuild(pk: int) -> None:
    rebuild(pk)


class Shop:
    id = 7


@pytest.mark.parametrize(
    ("resource", "args", "kwargs", "name"),
    [
        ("report:{pk}", (5,), {}, "report:5"),
        ("report:{pk}", (), {"pk": 5}, "report:5"),
        ("report:{pk}:{lang}", (5,), {}, "report:5:en"),
        ("report:{pk}:{lang}", (5, "de"), {}, "report:5:de"),
        ("report:{pk:04d}", (5,), {}, "report:0005"),
        ("shop:{pk.id}", (Shop,), {}, "shop:7"),
        ("shop:{pk[id]}", ({"id": 7},), {}, "shop:7"),
        ("{rest[day]}", (5,), {"day": "monday"}, "monday"),
        ("{day}", (5,), {"day": "monday"}, "monday"),
        ("{lang}:{rest[rest]}", (5,), {"rest": "monday"}, "en:monday"),
        ("report:{{pk}}", (5,), {}, "report:{pk}"),
    ],
)
def test_the_name_is_made_of_the_arguments(
    resource: str, args: Any, kwargs: Any, name: str
) -> None:
    @leased(resource)
    def build(pk: Any, lang: str = "en", **rest: Any) -> list[str]:
        return held_names()

    assert build(*args, **kwargs) == [name]


@pytest.mark.parametrize("decorate", [leased, lambda key: once(key, window=3600)])
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("report:{id}", "{id}, but build has no such argument. Its arguments: pk, lang."),
        ("{pk}:{day}:{id}", "{day}, {id}, but build has no such argument."),
        ("report:{pk:{width}}", "{width}, but build has no such argument."),
        ("report:{}", "{}, but build has no such argument."),
        ("report:{0}", "{0}, but build has no such argument."),
    ],
)
def test_a_name_without_its_argument_is_refused_where_it_is_written(
    decorate: Any, template: str, said: str
) -> None:
    def build(pk: int, lang: str = "en") -> None: ...

    with pytest.raises(TypeError, match=re.escape(f"{template!r} uses {said}")):
        decorate(template)(build)


def test_any_argument_may_be_in_keywords_that_are_collected() -> None:
    leased("report:{day}")(anything)
    with pytest.raises(TypeError, match=re.escape("uses {0}")):
        leased("report:{0}")(anything)


def test_what_can_be_no_name_with_any_arguments_is_refused_where_it_is_written() -> None:
    for name in ("", " report", "x" * 201):
        with pytest.raises(InvalidResource):
            leased(name)(rebuild)
    with pytest.raises(ValueError, match="expected '}'"):
        leased("report:{pk")(rebuild)


def test_the_decorator_needs_the_name_of_a_resource() -> None:
    with pytest.raises(TypeError, match=r'@leased needs the name of a resource: @leased\("report:'):

        @leased  # type: ignore[arg-type]
        def build() -> None: ...


def test_who_looks_at_its_arguments_sees_those_that_are_given() -> None:
    """As API frameworks do, and ``@handler``."""
    assert str(inspect.signature(abuild)) == "(pk: 'int') -> 'str'"


def generate() -> Iterator[int]:
    yield 1


async def agenerate() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [generate, agenerate, partial(generate)])
@pytest.mark.parametrize(
    "decorate", [leased("report"), once("report", window=3600), Leader("report").lead]
)
def test_a_generator_would_outlive_what_guards_its_call(decorate: Any, function: Any) -> None:
    with pytest.raises(TypeError, match="is a generator function"):
        decorate(function)


def test_a_parameter_called_hold_is_given_the_hold() -> None:
    @leased("report:{pk}", ttl=10)
    def build(pk: int, hold: Term) -> Term:
        hold.ensure()
        assert hold.resource == f"report:{pk}"
        return hold

    assert not build(5).valid  # type: ignore[call-arg]
    assert Lease.objects.get().ttl.total_seconds() == 10


def test_a_keyword_only_hold_is_given_too() -> None:
    @leased("report")
    def build(*, hold: Hold | None = None) -> bool:
        return hold is not None

    assert build()


def test_the_options_are_those_of_a_hold(
    clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(clocks, monkeypatch)
    held = Lease.objects.acquire("report", ttl=60)
    waits.after(3, lambda: Lease.objects.release(held))
    reported: list[Term] = []

    @leased("report", holder="ann", wait=10, metadata={"why": "monthly"}, on_lost=reported.append)
    def build(hold: Term) -> None:
        lease = Lease.objects.get()
        assert (lease.holder, lease.metadata) == ("ann", {"why": "monthly"})
        Lease.objects.revoke()
        clocks.renew()

    with pytest.raises(LeaseLost, match="revoked"):
        build()  # type: ignore[call-arg]
    assert [hold.resource for hold in reported] == ["report"]


def test_options_that_cannot_be_are_refused_at_the_call() -> None:
    @leased("report", ttl=0)
    def build() -> None: ...

    with pytest.raises(InvalidTTL):
        build()


def test_an_error_of_the_body_is_raised_and_the_lease_released() -> None:
    @leased("report")
    def build() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        build()
    assert held_names() == []
    assert events("report") == ["acquired", "released"]


def test_a_refusal_that_the_body_raises_is_the_bodys() -> None:
    Lease.objects.acquire("something else", holder="bob")

    @leased("report")
    def view(request: HttpRequest) -> HttpResponse:
        Lease.objects.acquire("something else")
        return HttpResponse()

    with pytest.raises(LeaseHeld, match="something else is held by bob"):
        view(RequestFactory().get("/"))
    assert held_names() == ["something else"]


def test_inside_a_transaction_it_does_not_run() -> None:
    @leased("report")
    def build() -> None:
        pytest.fail("the body must not run")

    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        build()


# Views


@leased("report:{pk}")
def view(request: HttpRequest, pk: int) -> HttpResponse:
    """A view."""
    return HttpResponse(f"report {pk}")


class Method(View):
    @leased("report:{pk}")
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(f"report {pk}")


@method_decorator(leased("report:{kwargs[pk]}"), name="dispatch")
class DecoratedByKeyword(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(f"report {pk}")


@leased("report:{pk}")
def anything(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse(f"report {kwargs['pk']}")


@leased("report:{pk}")
def all_by_name(**kwargs: Any) -> HttpResponse:
    return HttpResponse(f"report {kwargs['pk']}")


class RestRequest:
    """As Django REST framework has it."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request


VIEWS: dict[str, Any] = {
    "any arguments": anything,
    "request by name": lambda request, pk: view(request=request, pk=pk),
    "all by name": lambda request, pk: all_by_name(request=request, pk=pk),
    "of a REST framework": lambda request, pk: view(RestRequest(request), pk=pk),  # type: ignore[arg-type]
    "function": view,
    "method": Method.as_view(),
    "dispatch": DecoratedByKeyword.as_view(),
}


@pytest.mark.parametrize("name", list(VIEWS))
def test_a_view_answers_under_its_lease(name: str) -> None:
    response = VIEWS[name](RequestFactory().get("/"), pk=5)

    assert (response.status_code, response.content) == (200, b"report 5")
    assert events("report:5") == ["acquired", "released"]


@pytest.mark.parametrize("name", list(VIEWS))
def test_a_view_that_lost_the_race_answers_409(name: str) -> None:
    Lease.objects.acquire("report:5", holder="web-1:4711", ttl=20)

    response = VIEWS[name](RequestFactory().get("/"), pk=5)

    # Anybody may read it, so it tells nothing of who works where.
    assert (response.status_code, json.loads(response.content)) == (409, {"error": "busy"})
    assert 1 <= int(response.headers["Retry-After"]) <= 20
    assert events("report:5") == ["acquired"]


def test_a_client_is_told_to_come_back_within_a_minute() -> None:
    Lease.objects.acquire("report:5", ttl=3600)

    assert view(RequestFactory().get("/"), 5).headers["Retry-After"] == "60"


def test_a_view_that_lost_the_race_may_answer_with_a_page_of_its_own() -> None:
    def busy(request: HttpRequest, held: LeaseHeld, **kwargs: Any) -> HttpResponse:
        return HttpResponse(f"{kwargs['pk']} is being built by {held.holder}", status=503)

    @leased("report:{pk}", on_held=busy)
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("built")

    request = RequestFactory().get("/")
    assert view(request, pk=5).content == b"built"
    Lease.objects.acquire("report:5", holder="ann")
    response = view(request, pk=5)
    assert (response.status_code, response.content) == (503, b"5 is being built by ann")


def test_a_function_that_lost_the_race_may_return_something_else() -> None:
    @leased("report", on_held=lambda held: held.holder)
    def build() -> str:
        return "built"

    Lease.objects.acquire("report", holder="ann")
    assert build() == "ann"


def test_what_is_given_a_request_beside_its_own_arguments_is_no_view() -> None:
    @leased("report:{pk}")
    def build(pk: int, lang: str, request: HttpRequest | None = None) -> None: ...

    Lease.objects.acquire("report:5")
    with pytest.raises(LeaseHeld):
        build(5, "en", request=RequestFactory().get("/"))


def test_a_view_that_waited_in_vain_answers_409_too(
    clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(clocks, monkeypatch)
    Lease.objects.acquire("report", ttl=60)

    @leased("report", wait=5)
    def slow(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert slow(RequestFactory().get("/")).status_code == 409
    assert sum(waits.seconds) == pytest.approx(5)
    with pytest.raises(LeaseTimeout):
        leased("report", wait=5)(lambda: None)()


# Coroutines


@leased("report:{pk}")
async def abuild(pk: int, hold: Term) -> str:
    """A coroutine."""
    hold.ensure()
    await asyncio.sleep(0)
    return hold.resource


@leased("report")
async def aview(request: HttpRequest) -> HttpResponse:
    await Lease.objects.aacquire("something else")
    return HttpResponse("done")


@in_earnest
def test_a_coroutine_runs_under_its_lease_or_raises() -> None:
    assert iscoroutinefunction(abuild)
    assert abuild.__doc__ == "A coroutine."
    assert async_to_sync(abuild)(5) == "report:5"  # type: ignore[call-arg]
    assert held_names() == []

    Lease.objects.acquire("report:5", holder="ann")
    with pytest.raises(LeaseHeld, match="held by ann"):
        async_to_sync(abuild)(5)  # type: ignore[call-arg]


@in_earnest
def test_an_async_view_answers_or_refuses() -> None:
    request = AsyncRequestFactory().get("/")
    assert async_to_sync(aview)(request).content == b"done"

    # Now what its body asks for is held: that is no refusal of the view's own.
    with pytest.raises(LeaseHeld, match="something else"):
        async_to_sync(aview)(request)

    Lease.objects.acquire("report", holder="ann")
    response = async_to_sync(aview)(request)
    assert (response.status_code, json.loads(response.content)) == (409, {"error": "busy"})


@in_earnest
def test_a_coroutine_that_lost_the_race_may_return_something_else() -> None:
    async def ask(pk: int, held: LeaseHeld) -> str:
        await asyncio.sleep(0)
        return f"{pk}: {held.holder}"

    Lease.objects.acquire("report:5", holder="ann")
    for on_held in (ask, lambda pk, held: f"{pk}: {held.holder}"):
        asked = leased("report:{pk}", on_held=on_held)(elsewhere)
        assert async_to_sync(asked)(5) == "5: ann"


async def elsewhere(pk: int) -> str:
    return "built"


@in_earnest
def test_the_body_of_a_coroutine_is_cancelled_when_the_lease_is_lost() -> None:
    ended: list[str] = []

    @leased("report")
    async def build(hold: Term) -> None:
        asyncio.get_running_loop().call_soon(hold.mark_lost, "for a test")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(LeaseLost, match="report was lost: for a test"):
        async_to_sync(build)()  # type: ignore[call-arg]
    assert ended == ["cancelled"]
