"""What became of keys: open, or perhaps done twice, by page, file and command."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from leasing import once
from leasing.functions import DbNow, after
from leasing.models import AuditEntry, OnceKey
from leasing.runtime.aio import drive
from tasks.exceptions import GiveUp
from tasks.models import Task
from tests.factories import claimed, make_task
from tests.fixtures import client_with, clocks
from tests.limits import Limits
from tests.pages import get, signed_in
from tests.tasks.support import lose, make_due

__all__ = ["clocks"]

pytestmark = pytest.mark.django_db

PAGE = "/ops/keys/"
MINUTE = timedelta(minutes=1)

viewer = client_with("leasing_tasks.view_task", "leasing.view_lease")


# Keys in each state


def task(state: str, **columns: Any) -> Callable[[str], Any]:
    def make(key: str) -> None:
        made = make_task(state=state, idempotency_key=key)
        if columns:
            Task.objects.filter(pk=made.pk).update(**columns)

    return make


def lost_and(end: Callable[[Task], object]) -> Callable[[str], Any]:
    """A task whose first holder was lost, and whose second one ends it."""

    def make(key: str) -> None:
        made = make_task(state="running", idempotency_key=key, queue="default")
        lose(made)
        make_due(made)
        end(claimed(made, "second"))

    return make


def late_result(key: str) -> None:
    made = make_task(state="running", idempotency_key=key, max_attempts=1)
    lose(made)
    with pytest.raises(Exception, match="lost"):
        Task.objects.complete(made, {})


def retried(key: str) -> None:
    made = make_task(state="running", idempotency_key=key)
    Task.objects.fail(made, ValueError("again"))
    make_due(made)
    Task.objects.complete(claimed(made, "second"), {})


def begun(key: str, **columns: Any) -> None:
    drive(once(key, window=3600, ttl=30)._steps())
    if columns:
        OnceKey.objects.filter(key=key).update(**columns)


def left(key: str) -> None:
    begun(key, expires_at=after(-MINUTE))


def begun_twice(key: str) -> None:
    left(key)
    left(key)


def raised(key: str) -> None:
    begun(key)
    OnceKey.objects.filter(key=key).revoke()
    OnceKey.objects.filter(key=key).update(expires_at=after(-MINUTE), released_at=DbNow())


def done(key: str) -> None:
    once(key, window=3600, ttl=30).run(lambda: key)


def again(key: str) -> None:
    left(key)
    done(key)


def settled(key: str) -> None:
    left(key)
    left(key)
    OnceKey.objects.filter(key=key).settle(None, by="olga")


def next_window(key: str) -> None:
    done(key)
    OnceKey.objects.filter(key=key).update(window_ends_at=DbNow())
    done(key)


FOUND: dict[str, tuple[str, Callable[[str], Any]]] = {
    "due and not claimed": ("open", task("ready", scheduled_at=after(-MINUTE))),
    "retry that nobody begins": ("open", task("retrying", scheduled_at=after(-MINUTE))),
    "lost and done": ("perhaps_twice", lost_and(lambda task: Task.objects.complete(task, {}))),
    "lost and failed": ("perhaps_twice", lost_and(lambda task: Task.objects.fail(task, GiveUp()))),
    "failed with a late result": ("perhaps_twice", late_result),
    "once, left": ("open", left),
    "once, raised": ("open", raised),
    "once, done by the second": ("perhaps_twice", again),
    "once, begun twice": ("open", begun_twice),
    # The last: what loses a task recovers this one, too.
    "not renewed": ("open", task("running", expires_at=after(-MINUTE))),
}
IN_ORDER: dict[str, Callable[[str], Any]] = {
    **{state: task(state) for state in ("succeeded", "given_up", "cancelled", "running")},
    "just due": task("ready"),
    "not due": task("scheduled"),
    "waits for its retry": task("retrying", scheduled_at=after(MINUTE)),
    "just not renewed": task("running", expires_at=after(-MINUTE / 6)),
    "succeeded after a failure": retried,
    "lost at its last attempt": task("failed"),
    "once, held": begun,
    "once, just left": lambda key: begun(key, expires_at=after(-MINUTE / 6)),
    "once, done": done,
    "once, settled": settled,
    "once, done in the next window": next_window,
    "leasing_tasks:prune": left,
}


def reconcile(*options: str) -> tuple[str, str]:
    """What the command prints, and its error."""
    out = StringIO()
    try:
        call_command("tasks", "reconcile", *options, stdout=out)
    except CommandError as error:
        assert error.returncode == 1
        return out.getvalue(), str(error)
    return out.getvalue(), ""


def plant() -> dict[str, str]:
    """Make a key of each kind; returns those with a finding."""
    for key, make in IN_ORDER.items():
        make(key)
    for key, (_, make) in FOUND.items():
        make(key)
    make_task(state="stuck")  # without a key
    return {key: finding for key, (finding, _) in FOUND.items()}


@pytest.mark.usefixtures("clocks")
def test_exactly_the_discrepancies_are_found_on_page_and_in_files_and_by_the_command(
    viewer: Client,
) -> None:
    planted = plant()

    printed, error = reconcile("--since", "1d", "--json")

    rows = {row["key"]: row for row in json.loads(printed)}
    assert {key: row["finding"] for key, row in rows.items() if row["finding"]} == planted
    assert rows.keys() == planted.keys() | IN_ORDER.keys() - {"leasing_tasks:prune"}
    assert error == f"10 findings in {len(rows)} keys: 6 open, 4 perhaps twice."
    assert set(rows["lost and done"]) == {
        *("source", "key", "id", "state", "moment", "token", "attempts", "finding")
    }
    assert (rows["once, settled"]["state"], rows["once, done"]["state"]) == ("settled", "finished")
    text, same = reconcile()
    assert (same, len(text.splitlines())) == (error, 11)
    shown = get(viewer, PAGE)
    assert {row["Key"]: row.badges[0].replace(" ", "_") for row in shown.rows} == planted
    assert shown.tabs == {
        "state=findings": "10", "state=open": "6", "state=perhaps_twice": "4",
        "state=all": str(len(rows)),
    }  # fmt: skip
    exported = json.loads(b"".join(viewer.get("/ops/keys.json")).decode())
    assert {row["key"]: row["finding"] for row in exported} == planted


def test_in_order_the_command_ends_with_0() -> None:
    assert reconcile("--json") == ("[\n]\n", "")
    done("charge")
    assert reconcile() == ("1 key, nothing found.\n", "")


def test_keys_of_an_earlier_time_are_left_out() -> None:
    day = timedelta(days=1)
    task("ready", scheduled_at=after(-8 * day))("task")
    begun("once", expires_at=after(-8 * day), acquired_at=after(-8 * day))

    assert reconcile()[1] == ""
    assert reconcile("--since", "9d")[1].startswith("2 findings in 2 keys")


@pytest.mark.parametrize("since", ["yesterday-ish", "1e300", "nan", "inf", "0", "-7"])
def test_a_time_that_cannot_be_is_refused(since: str) -> None:
    with pytest.raises(CommandError, match="is no duration: use 90|--since is out of bounds"):
        call_command("tasks", "reconcile", "--since", since)


@pytest.mark.slow
def test_ten_of_twenty_thousand_are_found() -> None:
    template = make_task(state="succeeded", idempotency_key="task 0")
    done("once 0")
    row = OnceKey.objects.get()
    tasks, keys = [], []
    for number in range(1, 10_000):
        template.pk, template.idempotency_key = None, f"task {number}"
        tasks.append(Task(**{f.attname: getattr(template, f.attname) for f in Task._meta.fields}))
        keys.append(OnceKey(key=f"once {number}"))
    for made in tasks:
        made._is_fixture = True
    Task.objects.bulk_create(tasks)
    OnceKey.objects.bulk_create(keys)
    same = {f.attname: getattr(row, f.attname) for f in OnceKey._meta.fields}
    OnceKey.objects.update(**{k: v for k, v in same.items() if k not in ("id", "key")})
    for key, (_, make) in FOUND.items():
        make(key)

    printed, error = reconcile("--json")

    rows = json.loads(printed)
    assert len(rows) == 20_010
    assert {row["key"] for row in rows if row["finding"]} == FOUND.keys()
    assert error.startswith("10 findings in 20,010 keys")


# The page


def test_a_key_is_found_by_its_name(viewer: Client) -> None:
    for key in ("a", "b"):
        task("ready", scheduled_at=after(-MINUTE))(key)
        left(key)

    page = get(viewer, f"{PAGE}?state=all&q=a")

    assert [row["Key"] for row in page.rows] == ["a", "a"]
    assert page.tabs["state=all"] == "2"


def test_keys_of_once_are_for_those_who_may_see_leases() -> None:
    left("once")
    task("ready", scheduled_at=after(-MINUTE))("task")
    client = signed_in("leasing_tasks.view_task")

    assert [row["Key"] for row in get(client, PAGE).rows] == ["task"]
    assert b"once" not in b"".join(client.get("/ops/keys.csv"))


def test_a_search_goes_on_where_it_ended(viewer: Client, limits: Limits) -> None:
    limits(reach=2)
    left("old")
    for key in ("a", "b", "c"):
        done(key)

    page = get(viewer, PAGE)
    assert (page.rows, "No match among the first 2 keys" in page.text) == ([], True)
    assert [row["Key"] for row in get(viewer, page.next).rows] == ["old"]


@pytest.mark.parametrize("asked", ["state=closed", "at=nonsense"])
def test_a_filter_that_cannot_be_is_refused(asked: str, viewer: Client) -> None:
    assert get(viewer, f"{PAGE}?{asked}").status == 400
    assert viewer.get(f"/ops/keys.csv?{asked}").status_code == 400


# Settling by command


def settle(key: str, *options: str, result: str = '{"receipt": 7}') -> str:
    out = StringIO()
    words = ["settle", key, "--result", result, "--reason", "in the file", "--by", "olga"]
    call_command("tasks", *words, *options, stdout=out)
    return out.getvalue()


def test_after_its_settlement_once_never_calls() -> None:
    left("charge")

    assert settle("charge") == "Settled charge.\n"

    assert once("charge", window=3600).run(pytest.fail) == {"receipt": 7}
    assert reconcile()[1] == ""
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.reason) == ("olga", "settle", "in the file")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (begun, "Nothing to settle: charge is held."),
        (done, "Nothing to settle: charge is already finished."),
        (lambda key: None, "There is no key charge of once."),
        (task("ready"), r"charge is the key of the enqueue of task:\d+, not of once"),
    ],
)
def test_what_is_not_settled_says_why_and_stays(make: Any, sentence: str) -> None:
    make("charge")
    before = list(OnceKey.objects.values())

    with pytest.raises(CommandError, match=sentence):
        settle("charge")

    assert list(OnceKey.objects.values()) == before


@pytest.mark.parametrize("result", ["{", "1" * 5000, "[" * 100_000, "NaN", '"\\u0000"'])
def test_a_result_that_is_no_json_is_refused(result: str) -> None:
    left("charge")

    with pytest.raises(CommandError, match="not valid JSON|not JSON|NUL character"):
        settle("charge", result=result)

    assert OnceKey.objects.get().finished_at is None
