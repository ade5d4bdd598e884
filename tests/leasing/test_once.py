"""Work that is done once a window."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, transaction

from leasing import once
from leasing.exceptions import (
    InvalidResource,
    InvalidTTL,
    LeaseHeld,
    LeaseInTransaction,
    LeaseLost,
    LeaseTimeout,
    PayloadMismatch,
)
from leasing.holding.keeper import keeper
from leasing.models import LeaseEvent, OnceKey
from leasing.models.once import OnceQuerySet
from leasing.runtime.aio import drive, in_thread
from leasing.stores import portable
from leasing.testing.keeper import ManualKeeper, manual_keeper
from leasing.waiting.notifier import notifier
from tests.leasing.conftest import Sent
from tests.leasing.stopped import Waits
from tests.leasing.support import PATIENCE

pytestmark = pytest.mark.django_db

Charge = Callable[[], Any]


@pytest.fixture(autouse=True)
def clocks(request: pytest.FixtureRequest) -> Iterator[ManualKeeper | None]:
    """The clocks stand still, but for tests with transactions of their own."""
    if request.node.get_closest_marker("django_db").kwargs.get("transaction"):
        yield None
        return
    with manual_keeper() as clocks:
        yield clocks


@pytest.fixture
def done() -> list[str]:
    """Return the work that was done, and by whom."""
    return []


def body(done: list[str], who: str = "ann", result: Any = "receipt") -> Charge:
    def charge() -> Any:
        done.append(who)
        return result

    return charge


def begin(**options: Any) -> OnceKey:
    """Begin the work, and never end it: as one who was killed."""
    row: OnceKey = drive(once("charge", **{"window": 3600, "ttl": 30, **options})._steps())
    return row


def row() -> OnceKey:
    return OnceKey.objects.get()


# Once


def test_the_first_does_it_and_the_others_are_given_its_result(done: list[str]) -> None:
    charge = once("charge", window=3600)

    assert charge.run(body(done, "ann", {"receipt": 7})) == {"receipt": 7}
    assert charge.run(body(done, "bob")) == {"receipt": 7}
    assert once("charge", window=60).run(body(done, "cid")) == {"receipt": 7}

    assert done == ["ann"]


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}, 1.5, "😀", {"a": [1, {"b": None}]}])
def test_any_json_is_a_result_and_nothing_is_one_too(result: Any, done: list[str]) -> None:
    charge = once("charge", window=3600)

    assert charge.run(body(done, "ann", result)) == result
    assert charge.run(body(done, "bob")) == result
    assert done == ["ann"]


def test_each_key_is_work_of_its_own(done: list[str]) -> None:
    for number in (1, 2):
        once(f"charge:{number}", window=3600).run(body(done, str(number)))

    assert done == ["1", "2"]


def test_finished_work_holds_nothing(done: list[str], clocks: ManualKeeper) -> None:
    once("charge", window=3600).run(body(done))

    assert keeper.holds == []
    assert not OnceKey.objects.active().exists()
    assert row().released_at == row().finished_at == clocks.now
    assert (str(row()), row().lease_resource) == ("charge", "once:charge")


def test_a_renewal_that_meets_the_end_is_no_loss(
    done: list[str], clocks: ManualKeeper, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = OnceQuerySet.finish

    def finish_and_renew(rows: Any, row: OnceKey, result: Any) -> None:
        finish(rows, row, result)
        clocks.renew()

    monkeypatch.setattr(OnceQuerySet, "finish", finish_and_renew)

    assert once("charge", window=3600).run(body(done)) == "receipt"
    assert [name for name, *_ in sent] == ["acquired"]


def test_keys_are_no_leases_to_keep_a_ledger_of(done: list[str], sent: Sent) -> None:
    once("charge", window=3600).run(body(done))

    assert not LeaseEvent.objects.exists()
    assert [name for name, *_ in sent] == ["acquired"]


# While it runs


def test_the_lease_is_renewed_while_it_runs(done: list[str], clocks: ManualKeeper) -> None:
    def slowly() -> str:
        clocks.advance(90)
        return "receipt"

    assert once("charge", window=3600, ttl=10).run(slowly) == "receipt"
    assert row().renewals > 20
    assert once("charge", window=3600, ttl=10).run(body(done)) == "receipt"


def test_a_duplicate_is_refused_while_it_runs(done: list[str]) -> None:
    charge = once("charge", window=3600)

    def ask_again() -> str:
        with pytest.raises(LeaseHeld, match="^once:charge is held by") as refusal:
            charge.run(body(done, "bob"))
        assert type(refusal.value) is LeaseHeld
        return "receipt"

    assert charge.run(ask_again) == "receipt"
    assert done == []


@pytest.mark.parametrize("wait", [60, None])
def test_a_duplicate_may_wait_for_the_result(
    done: list[str], clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch, wait: float | None
) -> None:
    begun = begin(ttl=600)
    Waits(clocks, monkeypatch).after(5, lambda: OnceKey.objects.all().finish(begun, "receipt"))

    assert once("charge", window=3600, ttl=600, wait=wait).run(body(done)) == "receipt"

    assert done == []
    assert 5 <= clocks.passed <= 6


def test_a_duplicate_waits_in_vain(
    done: list[str], clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    Waits(clocks, monkeypatch)
    begin(ttl=60)

    with pytest.raises(LeaseTimeout, match="once:charge is held by"):
        once("charge", window=3600, ttl=60, wait=5).run(body(done))

    assert done == []


# When it fails


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, LeaseHeld("something else")])
def test_when_it_raises_the_next_does_it_at_once(error: Any, done: list[str]) -> None:
    charge = once("charge", window=3600)

    def fail() -> None:
        raise error

    with pytest.raises(error if isinstance(error, type) else LeaseHeld):
        charge.run(fail)
    assert keeper.holds == []

    assert charge.run(body(done)) == "receipt"
    assert done == ["ann"]


def test_who_was_killed_blocks_the_next_until_the_lease_has_ended(
    done: list[str], clocks: ManualKeeper
) -> None:
    begin(ttl=30)
    charge = once("charge", window=3600, ttl=30)

    clocks.advance(29.999)
    with pytest.raises(LeaseHeld):
        charge.run(body(done))
    clocks.advance(0.001)

    assert charge.run(body(done)) == "receipt"
    assert row().grants == 2


@pytest.mark.parametrize(
    "result", [object(), {1, 2}, float("nan"), b"bytes", "a\0b", "\ud800", datetime.date.today()]
)
def test_a_result_that_is_no_json_is_an_error_and_the_next_does_it_again(
    result: Any, done: list[str]
) -> None:
    charge = once("charge", window=3600)

    with pytest.raises(ValueError, match="^The result"):
        charge.run(body(done, "ann", result))
    assert (keeper.holds, row().finished_at) == ([], None)

    assert charge.run(body(done, "bob")) == "receipt"


def test_a_result_that_the_database_did_not_take_is_no_result(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rows: Any, row: OnceKey, result: Any) -> None:
        raise OperationalError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(OnceQuerySet, "finish", fail)
        with pytest.raises(OperationalError):
            once("charge", window=3600).run(body(done, "ann"))
    assert keeper.holds == []

    assert once("charge", window=3600).run(body(done, "bob")) == "receipt"
    assert done == ["ann", "bob"]


def lose(how: str) -> None:
    """Take the lease from its holder."""
    if how == "taken over":
        OnceKey.objects.update(grant_id=uuid.uuid4(), holder="thief")
    else:
        OnceKey.objects.revoke()


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "not heard"])
@pytest.mark.parametrize("how", ["taken over", "revoked"])
def test_the_result_of_a_lost_lease_is_refused(
    how: str, heard: bool, done: list[str], clocks: ManualKeeper, sent: Sent
) -> None:
    def slept() -> str:
        lose(how)
        if heard:
            clocks.renew()
        sent.clear()
        return "too late"

    reason = {"taken over": "thief has held it since", "revoked": "it was revoked"}[how]
    with pytest.raises(LeaseLost, match=f"once:charge was lost: {reason}"):
        once("charge", window=3600).run(slept)

    assert (row().finished_at, row().result) == (None, None)
    assert [(name, details["verb"]) for name, _, details in sent] == [("refused", "finish")]
    assert keeper.holds == []


def test_the_result_of_a_successor_is_not_overwritten(
    done: list[str], clocks: ManualKeeper
) -> None:
    def slept() -> str:
        clocks.frozen = True
        clocks.advance(60)
        once("charge", window=3600, ttl=30).run(body(done, "bob", "bob's"))
        return "too late"

    with pytest.raises(LeaseLost, match="since"):
        once("charge", window=3600, ttl=30).run(slept)

    assert (row().result, done) == ("bob's", ["bob"])


def test_a_lease_that_ran_out_and_was_not_taken_is_finished(
    done: list[str], clocks: ManualKeeper
) -> None:
    """Nobody else has begun it, so it need not be done again."""

    def slept() -> str:
        clocks.frozen = True
        clocks.advance(60)
        return "just in time"

    assert once("charge", window=3600, ttl=30).run(slept) == "just in time"
    assert once("charge", window=3600, ttl=30).run(body(done)) == "just in time"


# Another payload


def test_the_same_key_with_another_payload_is_refused(done: list[str]) -> None:
    once("charge", window=3600, payload={"amount": 5}).run(body(done))

    with pytest.raises(
        PayloadMismatch, match="^charge was already used with a different payload"
    ) as error:
        once("charge", window=3600, payload={"amount": 6}).run(body(done))
    assert error.value.key == "charge"
    with pytest.raises(PayloadMismatch):
        once("charge", window=3600).run(body(done))

    assert once("charge", window=3600, payload={"amount": 5}).run(body(done)) == "receipt"
    assert done == ["ann"]


def test_another_payload_is_refused_while_the_first_runs(done: list[str]) -> None:
    begin(payload=1)

    with pytest.raises(PayloadMismatch):
        once("charge", window=3600, payload=2, wait=60).run(body(done))


def test_another_payload_is_refused_after_a_crash(done: list[str], clocks: ManualKeeper) -> None:
    """Half of it may have been done, with what the first came with."""
    begin(payload=1, ttl=30)
    clocks.advance(60)

    with pytest.raises(PayloadMismatch):
        once("charge", window=3600, payload=2).run(body(done))
    assert once("charge", window=3600, payload=1).run(body(done)) == "receipt"


def test_another_payload_is_welcome_when_the_window_is_over(
    done: list[str], clocks: ManualKeeper
) -> None:
    once("charge", window=60, payload=1).run(body(done, "ann", 1))
    clocks.advance(60)

    assert once("charge", window=60, payload=2).run(body(done, "bob", 2)) == 2
    with pytest.raises(PayloadMismatch):
        once("charge", window=60, payload=1).run(body(done))


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ((1, 2), [1, 2]),
        (datetime.date(2026, 1, 2), datetime.date(2026, 1, 2)),
        (decimal.Decimal("1.50"), decimal.Decimal("1.50")),
        (uuid.UUID(int=7), uuid.UUID(int=7)),
        ("\ud800", "\ud800"),
    ],
)
def test_payloads_are_compared_by_what_they_say(one: Any, same: Any, done: list[str]) -> None:
    for payload in (one, same):
        once("charge", window=3600, payload=payload).run(body(done))

    assert done == ["ann"]


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 123456, datetime.UTC)


@pytest.mark.parametrize("one", [MOMENT, MOMENT.replace(tzinfo=None), MOMENT.time()])
def test_payloads_a_microsecond_apart_are_two(one: Any, done: list[str]) -> None:
    once("charge", window=3600, payload=[one]).run(body(done))

    with pytest.raises(PayloadMismatch):
        once("charge", window=3600, payload=[one.replace(microsecond=123457)]).run(body(done))


@pytest.mark.parametrize(
    "payload",
    [object(), {1, 2}, {1: "a", "b": 2}, b"bytes", {1: "a"}, [{"a": ({None: 1},)}]],
)
def test_a_payload_that_is_no_json_is_refused(payload: Any, done: list[str]) -> None:
    """Reported by its repr, the same would be another in every process."""
    with pytest.raises(ValueError, match="^The payload is not JSON"):
        once("charge", window=3600, payload=payload).run(body(done))

    assert (done, OnceKey.objects.exists()) == ([], False)


# The window


def test_when_the_window_is_over_it_is_done_anew(done: list[str], clocks: ManualKeeper) -> None:
    charge = once("charge", window=60)
    charge.run(body(done, "ann", 1))
    clocks.advance(59.999)
    assert charge.run(body(done, "bob", 2)) == 1
    clocks.advance(0.001)

    assert charge.run(body(done, "cid", 3)) == 3
    assert done == ["ann", "cid"]
    clocks.advance(59)
    assert charge.run(body(done, "dan", 4)) == 3


def test_the_window_is_that_of_whoever_did_it(done: list[str], clocks: ManualKeeper) -> None:
    once("charge", window=60).run(body(done, "ann"))
    clocks.advance(61)
    once("charge", window=3600).run(body(done, "bob"))
    clocks.advance(61)
    once("charge", window=60).run(body(done, "cid"))

    assert done == ["ann", "bob"]


def test_work_that_outlasts_its_window_is_still_done_by_one_at_a_time(
    done: list[str], clocks: ManualKeeper
) -> None:
    charge = once("charge", window=60, ttl=30)

    def slowly() -> int:
        for seconds in (60, 30):
            clocks.advance(seconds)
            with pytest.raises(LeaseHeld):
                charge.run(body(done, "bob"))
            with pytest.raises(LeaseHeld):
                once("charge", window=60, ttl=30, payload="another").run(body(done, "cid"))
        return 1

    assert charge.run(slowly) == 1
    assert charge.run(body(done, "dan", 2)) == 2


def test_a_result_begun_anew_is_not_the_old_one(clocks: ManualKeeper, done: list[str]) -> None:
    once("charge", window=60).run(body(done, "ann", "old"))
    clocks.advance(60)
    begin(window=60)

    with pytest.raises(LeaseHeld):
        once("charge", window=60).run(body(done))
    assert (row().result, row().finished_at) == (None, None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"window": 30}, "The window must be longer than the ttl"),
        ({"window": 10, "ttl": 10}, "longer than the ttl: it is 10 s, the ttl is 10 s. Pass ttl="),
        ({"window": datetime.timedelta(seconds=5), "ttl": 10}, "must be longer than the ttl"),
        ({"window": -1}, "The window must be from 0"),
        ({"window": "an hour"}, "The window must be a number"),
        ({"window": 60, "ttl": 0}, "The ttl must be"),
        ({"window": 60, "wait": -1}, "The wait must be"),
    ],
)
def test_times_that_cannot_be_are_refused(
    options: dict[str, Any], complaint: str, done: list[str]
) -> None:
    with pytest.raises(InvalidTTL, match=complaint):
        once("charge", **options).run(body(done))

    assert (done, OnceKey.objects.exists()) == ([], False)


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", 7])
def test_a_key_is_a_name(key: Any, done: list[str]) -> None:
    with pytest.raises(InvalidResource, match="^The key must"):
        once(key, window=60).run(body(done))


def test_inside_a_transaction_nothing_is_done_once(done: list[str]) -> None:
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        once("charge", window=60).run(body(done))
    assert done == []


# The conditions, each by itself


def test_finished_work_is_not_available_though_nobody_holds_it(done: list[str]) -> None:
    once("charge", window=3600).run(body(done))

    assert not OnceKey.objects.all().available().exists()


@pytest.mark.usefixtures("portable")
def test_a_row_that_is_about_to_be_taken_is_refused_after_three_tries(
    monkeypatch: pytest.MonkeyPatch, done: list[str]
) -> None:
    tries = []

    def grant(rows: Any, terms: Any, limit: int, **key: Any) -> list[Any]:
        tries.append(key)
        return []

    monkeypatch.setattr(portable, "grant", grant)
    with pytest.raises(LeaseHeld, match="being acquired by someone else"):
        once("charge", window=60).run(body(done))

    assert (tries, done) == ([{"key": "charge"}] * 3, [])


# Settled by an operator


def lapsed(clocks: ManualKeeper) -> None:
    begin()
    clocks.advance(30)


def raised(clocks: ManualKeeper) -> None:
    with pytest.raises(ZeroDivisionError):
        once("charge", window=3600).run(lambda: 1 / 0)


@pytest.mark.parametrize("left", [lapsed, raised])
def test_a_settled_key_does_no_work_for_one_more_window(
    left: Callable[[ManualKeeper], None], done: list[str], clocks: ManualKeeper
) -> None:
    left(clocks)
    clocks.advance(3000)

    assert OnceKey.objects.settle({"receipt": 7}, by="olga") == 1

    charge = once("charge", window=3600)
    clocks.advance(3599)
    assert charge.run(body(done)) == {"receipt": 7}
    assert row().settled_by == "olga"
    clocks.advance(1)
    assert charge.run(body(done)) == "receipt"
    assert (row().settled_by, done) == ("", ["ann"])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda clocks: OnceKey.objects.bulk_create([OnceKey(key="charge")]), id="new"),
        pytest.param(lambda clocks: begin(), id="held"),
        pytest.param(lambda clocks: once("charge", window=60).run(lambda: 1), id="finished"),
    ],
)
def test_a_key_without_work_that_was_left_is_not_settled(
    make: Callable[[ManualKeeper], Any], clocks: ManualKeeper
) -> None:
    make(clocks)
    before = OnceKey.objects.values().get()

    assert OnceKey.objects.settle("receipt") == 0

    assert OnceKey.objects.values().get() == before


def test_a_result_whose_window_is_over_is_not_settled(clocks: ManualKeeper) -> None:
    once("charge", window=60).run(lambda: "receipt")
    clocks.advance(60)

    assert OnceKey.objects.settle("another") == 0


def test_a_settled_key_keeps_another_payload_out(clocks: ManualKeeper, done: list[str]) -> None:
    lapsed(clocks)
    OnceKey.objects.settle(None)

    with pytest.raises(PayloadMismatch):
        once("charge", window=3600, payload=2).run(body(done))


def test_the_late_result_of_a_settled_key_is_refused(clocks: ManualKeeper) -> None:
    begun = begin()
    clocks.advance(30)
    OnceKey.objects.settle("settled")

    with pytest.raises(LeaseLost, match="it was revoked or released at"):
        OnceKey.objects.all().finish(begun, "too late")

    assert row().result == "settled"


def test_a_settlement_that_is_no_json_is_refused(clocks: ManualKeeper) -> None:
    lapsed(clocks)

    with pytest.raises(ValueError, match="^The result is not JSON"):
        OnceKey.objects.settle(object())

    assert row().finished_at is None


def test_attempts_count_the_grants_of_one_window(clocks: ManualKeeper) -> None:
    counted = []
    for seconds in (30, 30, 3600):
        begin()
        counted.append((row().attempts, row().grants))
        clocks.advance(seconds)
    begin()

    assert [*counted, (row().attempts, row().grants)] == [(1, 1), (2, 2), (3, 3), (1, 4)]


# As a decorator


def test_a_decorated_function_runs_once_for_each_key(done: list[str]) -> None:
    @once("import:{day}", window=3600)
    def import_day(day: str, shop: int = 7) -> str:
        """Import."""
        done.append(day)
        return f"{day} of {shop}"

    assert import_day("monday") == import_day(day="monday") == "monday of 7"
    assert import_day("monday", 7) == "monday of 7"  # which is what it is when left out
    assert import_day("tuesday") == "tuesday of 7"
    assert done == ["monday", "tuesday"]
    assert (import_day.__name__, import_day.__doc__) == ("import_day", "Import.")
    with pytest.raises(PayloadMismatch, match="import:monday"):
        import_day("monday", shop=8)


def test_the_arguments_may_be_left_out_of_the_payload(done: list[str]) -> None:
    class Importer:
        @once("import:{day}", window=3600, payload="by any importer")
        def run(self, day: str) -> str:
            done.append(day)
            return day

        @once("import:{day}", window=3600)
        def fail(self, day: str) -> None: ...

    assert Importer().run("monday") == Importer().run("monday") == "monday"
    assert done == ["monday"]
    with pytest.raises(ValueError, match="The payload is not JSON"):
        Importer().fail("tuesday")


def test_a_call_that_does_not_fit_is_refused_first() -> None:
    @once("import:{day}", window=3600)
    def import_day(day: str) -> None: ...

    with pytest.raises(TypeError, match="day"):
        import_day()  # type: ignore[call-arg]
    assert not OnceKey.objects.exists()


# Async


@pytest.mark.django_db(transaction=True)
def test_a_key_is_settled_from_async_code() -> None:
    raised(None)  # type: ignore[arg-type]

    assert async_to_sync(OnceKey.objects.all().asettle)("receipt", "olga") == 1
    assert (row().result, row().settled_by) == ("receipt", "olga")


@pytest.mark.django_db(transaction=True)
def test_a_decorated_coroutine_runs_once(done: list[str]) -> None:
    @once("import:{day}", window=3600)
    async def import_day(day: str) -> str:
        await asyncio.sleep(0)
        done.append(day)
        return day

    async def story() -> list[str]:
        return [await import_day("monday"), await import_day("monday")]

    assert async_to_sync(story)() == ["monday", "monday"]
    assert done == ["monday"]
    assert not OnceKey.objects.active().exists()


@pytest.mark.django_db(transaction=True)
def test_async_duplicates_wait_for_the_one_that_runs(done: list[str]) -> None:
    charge = once("charge", window=3600, wait=20)

    async def slowly() -> str:
        done.append("ann")
        async with asyncio.timeout(PATIENCE):
            while len(notifier("default").waiters.get("once:charge", ())) < 4:
                await asyncio.sleep(0)
        return "receipt"

    async def story() -> list[str]:
        given: list[str] = await asyncio.gather(*(charge.arun(slowly) for _ in range(5)))
        return given

    assert async_to_sync(story)() == ["receipt"] * 5
    assert done == ["ann"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ["raised", "cancelled"])
def test_an_async_body_that_fails_is_done_again_by_the_next(end: str, done: list[str]) -> None:
    charge = once("charge", window=3600)
    begun = asyncio.Event()

    async def fail() -> None:
        begun.set()
        if end == "raised":
            raise KeyError
        await asyncio.Event().wait()

    async def receipt() -> str:
        return "receipt"

    async def story() -> str:
        task = asyncio.create_task(charge.arun(fail))
        await begun.wait()
        task.cancel() if end == "cancelled" else None
        with pytest.raises(KeyError if end == "raised" else asyncio.CancelledError):
            await task
        result: str = await charge.arun(receipt)
        return result

    assert async_to_sync(story)() == "receipt"


@pytest.mark.django_db(transaction=True)
def test_the_async_result_of_a_lost_lease_is_refused() -> None:
    async def slept() -> str:
        await in_thread(OnceKey.objects.revoke)
        return "too late"

    async def story() -> None:
        with pytest.raises(LeaseLost, match="it was revoked"):
            await once("charge", window=3600).arun(slept)

    async_to_sync(story)()
    assert row().finished_at is None
