"""The bound on what a token of the API holds at once."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DatabaseError, connections
from django.http import HttpRequest
from django.test import RequestFactory
from ninja.errors import HttpError
from pytest_django import Settings

from leasing.api import bounds
from leasing.api.access import Access
from leasing.api.bounds import in_room, room_for
from leasing.conf import leasing_settings
from leasing.exceptions import LeaseHeld
from leasing.functions import after
from leasing.models import ApiToken, Lease, TokenGrant
from leasing.querysets.token_grants import RESERVED_FOR, TokenGrantQuerySet
from leasing.runtime.aio import Steps, Undoable, adrive, drive
from leasing.testing.keeper import ManualKeeper
from leasing.validation.terms import Terms
from tasks.models import Task
from tests.factories import make_task, make_tasks
from tests.leasing.support import OtherSession, after_a_query_before, under_repeatable_read
from tests.processes import wait_for

pytestmark = pytest.mark.django_db

CHANGE = Access("leasing.change_lease")


def coming(max_held: int | None, name: str = "ci") -> HttpRequest:
    """A request with a new token that may hold so much at once, after its route has let it in."""
    secret = ApiToken.objects.issue(name, scopes=[CHANGE.permission], max_held=max_held)[1]
    request = RequestFactory().post("/", headers={"Authorization": f"Bearer {secret}"})
    CHANGE(request)
    return request


def acquire(request: HttpRequest, name: str, request_id: uuid.UUID | None = None) -> Lease:
    with room_for(request, 1, request_id) as room:
        lease = Lease.objects.acquire(name, holder="me")
        room.granted([lease])
    return lease


def claim(request: HttpRequest, wanted: int) -> list[Task]:
    with room_for(request, wanted) as room:
        tasks = list(Task.objects.claim("me", limit=room.size))
        room.granted(tasks)
    return tasks


def test_leases_and_tasks_are_counted_together() -> None:
    request = coming(3)
    make_tasks(5)
    acquire(request, "crane:1")
    assert len(claim(request, 10)) == 2
    for grant in (lambda: acquire(request, "crane:2"), lambda: claim(request, 1)):
        with pytest.raises(HttpError, match="This token may hold 3 leases and tasks at once"):
            grant()
    assert Lease.objects.count() == 1
    assert Task.objects.filter(grants__gt=0).count() == 2


def test_a_claim_of_several_takes_room_for_what_it_got() -> None:
    request = coming(3)
    make_task()
    assert len(claim(request, 3)) == 1
    assert TokenGrant.objects.count() == 1
    for number in range(2):
        acquire(request, f"crane:{number}")


def test_what_ended_makes_room() -> None:
    request = coming(3)
    make_task()
    released, expired = acquire(request, "crane:1"), acquire(request, "crane:2")
    (task,) = claim(request, 1)
    for end in (
        released.release,
        lambda: Lease.objects.filter(pk=expired.pk).update(expires_at=after(timedelta(0))),
        lambda: Task.objects.complete(task),
    ):
        with pytest.raises(HttpError):
            acquire(request, "crane:3")
        end()
        acquire(request, f"crane:{uuid.uuid4()}")


def test_a_lease_that_somebody_else_has_now_is_not_counted() -> None:
    request = coming(1)
    acquire(request, "crane:1").release()
    Lease.objects.acquire("crane:1", holder="another")
    acquire(request, "crane:2")


def test_others_are_not_counted() -> None:
    bounded, other, free = coming(1), coming(1, "other"), coming(None, "free")
    acquire(other, "crane:1")
    acquire(free, "crane:2")
    acquire(free, "crane:3")
    acquire(bounded, "crane:4")
    assert TokenGrant.objects.count() == 2


def test_what_was_not_granted_takes_no_room() -> None:
    request = coming(1)
    Lease.objects.acquire("crane:1", holder="another")
    for _ in range(2):
        with pytest.raises(Exception, match="crane:1"):
            acquire(request, "crane:1")
        assert claim(request, 1) == []
    acquire(request, "crane:2")


def test_a_request_that_is_sent_again_has_the_room_that_it_had() -> None:
    request, request_id = coming(1), uuid.uuid4()
    lease = acquire(request, "crane:1", request_id)
    with room_for(request, 1, request_id) as room:
        room.granted([lease])
    with pytest.raises(RuntimeError), room_for(request, 1, request_id):
        raise RuntimeError
    assert TokenGrant.objects.get().grant_id == lease.grant_id
    with pytest.raises(HttpError):
        acquire(request, "crane:2")


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_a_request_that_is_sent_again_meanwhile_leaves_the_other_its_room(
    first_to_end: int,
) -> None:
    request, request_id = coming(1), uuid.uuid4()
    under_way = [room_for(request, 1, request_id) for _ in range(2)]
    for room in under_way:
        assert room.__enter__().size == 1
    under_way.pop(first_to_end).__exit__()
    with pytest.raises(HttpError):
        acquire(request, "crane:2")
    under_way.pop().__exit__()
    acquire(request, "crane:2")


def test_a_request_that_is_sent_again_in_vain_leaves_what_the_first_won() -> None:
    request, request_id = coming(3), uuid.uuid4()
    make_tasks(2)
    first, again = (room_for(request, 2, request_id) for _ in range(2))
    with room_for(request, 1):
        assert [room.__enter__().size for room in (first, again)] == [2, 2]
        first.granted(Task.objects.claim("me", limit=2))
        first.__exit__()
        again.__exit__()
        with pytest.raises(HttpError):
            acquire(request, "crane:1")
    acquire(request, "crane:1")


def test_room_that_the_dead_reserved_is_free_again_later(clocks: ManualKeeper) -> None:
    request = coming(1)
    TokenGrant.objects.create(token=ApiToken.objects.get(), request_id=uuid.uuid4())
    clocks.advance(RESERVED_FOR.total_seconds() + leasing_settings.API_MAX_WAIT - 1)
    with pytest.raises(HttpError):
        acquire(request, "crane:1")
    clocks.advance(1)
    acquire(request, "crane:1")


def test_the_room_of_a_request_that_waits_for_long_is_its_own(
    clocks: ManualKeeper, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "API_MAX_WAIT": 3600}
    request = coming(1)
    TokenGrant.objects.create(token=ApiToken.objects.get(), request_id=uuid.uuid4())
    clocks.advance(3600)
    with pytest.raises(HttpError):
        acquire(request, "crane:1")


def test_what_is_held_for_long_is_counted_for_long() -> None:
    request = coming(1)
    acquire(request, "crane:1")
    TokenGrant.objects.update(reserved_at=after(-2 * RESERVED_FOR))
    with pytest.raises(HttpError):
        acquire(request, "crane:2")


def test_one_name_of_two_requests_of_two_tokens_is_two() -> None:
    one, other, request_id = coming(1), coming(1, "other"), uuid.uuid4()
    acquire(one, "crane:1", request_id)
    acquire(other, "crane:2", request_id)
    assert sorted(TokenGrant.objects.values_list("token__name", flat=True)) == ["ci", "other"]


def test_a_grant_is_answered_though_it_cannot_be_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object) -> None:
        raise DatabaseError

    request = coming(1)
    monkeypatch.setattr(TokenGrantQuerySet, "settle", away)
    assert acquire(request, "crane:1").holder == "me"
    with pytest.raises(HttpError):  # counted all the same, for a while
        acquire(request, "crane:2")


@pytest.mark.django_db(transaction=True)
def test_no_two_requests_take_the_same_room() -> None:
    coming(5)
    token = ApiToken.objects.get()

    def reserve(_: int) -> int:
        try:
            return TokenGrant.objects.reserve(token, 2, uuid.uuid4())
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(reserve, range(8)))
    assert sorted(won, reverse=True) == [2, 2, 1, 0, 0, 0, 0, 0]
    assert TokenGrant.objects.count() == 5


@pytest.mark.django_db(transaction=True)
def test_no_two_requests_take_the_same_room_under_any_isolation_level(
    other_session: OtherSession, on_postgresql: None
) -> None:
    coming(1)
    token = ApiToken.objects.get()

    def reserve() -> int:
        return TokenGrant.objects.reserve(token, 1, uuid.uuid4())

    with (
        under_repeatable_read(),
        after_a_query_before("FOR NO KEY UPDATE", lambda: other_session.run(reserve)),
    ):
        assert reserve() == 0
    assert TokenGrant.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_room_that_two_requests_share_is_left_by_both_under_any_isolation_level(
    other_session: OtherSession, on_postgresql: None
) -> None:
    coming(1)
    token, request_id = ApiToken.objects.get(), uuid.uuid4()
    for _ in range(2):
        assert TokenGrant.objects.reserve(token, 1, request_id) == 1

    def leave() -> None:
        TokenGrant.objects.settle(token, request_id, [])

    with (
        under_repeatable_read(),
        after_a_query_before("UPDATE", lambda: other_session.run(leave)),
    ):
        leave()
    assert not TokenGrant.objects.exists()


def steps_of(request: HttpRequest, name: str, wait: float) -> Steps[Lease]:
    """The steps of a request that may wait for a lease."""
    terms = Terms.check(holder="me")
    return in_room(request, Lease.objects.all().acquiring_named(name, terms, wait))


def test_a_request_that_is_stopped_in_its_grant_keeps_its_room_for_its_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "run_later", lambda call: call())
    request, request_id = coming(1), uuid.uuid4()
    terms = replace(Terms.check(holder="me"), request_id=request_id)

    def steps() -> Steps[Lease]:
        return in_room(request, Lease.objects.all().acquiring_named("c", terms, 0), request_id)

    stopped = steps()
    for step in stopped:
        assert callable(step)
        step()
        if isinstance(step, Undoable):
            break
    stopped.close()
    with pytest.raises(HttpError):
        acquire(request, "crane:2")
    assert drive(steps()).grants == 1


def test_a_request_that_waited_in_vain_takes_no_room() -> None:
    request = coming(1)
    Lease.objects.acquire("crane:1", holder="another")
    with pytest.raises(LeaseHeld):
        drive(steps_of(request, "crane:1", 0))
    assert drive(steps_of(request, "crane:2", 0)).holder == "me"
    with pytest.raises(HttpError):
        drive(steps_of(request, "crane:3", 0))


@pytest.mark.django_db(transaction=True)
def test_a_request_that_waits_keeps_its_room_until_it_is_stopped() -> None:
    request = coming(1)
    Lease.objects.acquire("crane:1", holder="another")

    async def hang_up() -> None:
        waiting = asyncio.ensure_future(adrive(steps_of(request, "crane:1", 60)))
        while not await TokenGrant.objects.aexists():
            await asyncio.sleep(0.01)
        with pytest.raises(HttpError):
            await adrive(steps_of(request, "crane:2", 0))
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(hang_up())
    wait_for(lambda: not TokenGrant.objects.exists())
    acquire(request, "crane:2")
