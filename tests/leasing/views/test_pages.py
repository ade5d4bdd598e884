"""The pages on fencing, once and waiting, where they show what no block of theirs can run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasing.exceptions import LeaseLost, StaleToken
from leasing.models import Lease, LeaseEvent
from leasing.testing.keeper import ManualKeeper, manual_keeper
from tests.leasing.support import events
from tests.plugin import ROOT
from tests.press.models import Report
from tests.shop.models import Order
from tests.test_docs import blocks

pytestmark = pytest.mark.django_db

MODELS = {
    "fencing.md": ROOT / "tests" / "press" / "models.py",
    "waiting.md": ROOT / "tests" / "shop" / "models.py",
}


def page(name: str) -> Path:
    return ROOT / "docs" / name


def defines_a_model(block: str) -> bool:
    return re.search(r"^class \w+\((FencedModel|Leasable)\)", block, re.MULTILINE) is not None


@pytest.fixture(autouse=True)
def clocks() -> Iterator[ManualKeeper]:
    with manual_keeper() as clocks:
        yield clocks


@pytest.mark.parametrize("name", list(MODELS))
def test_the_models_that_are_shown_are_those_that_are_tested(name: str) -> None:
    source = MODELS[name].read_text()
    (shown,) = [block for block in blocks(page(name), "py") if defines_a_model(block)]
    lines = [line for line in shown.splitlines() if line and not line.startswith("from ")]

    assert [line for line in lines if line not in source.splitlines()] == []


@pytest.mark.parametrize("name", list(MODELS))
def test_what_is_shown_with_these_models_runs(name: str) -> None:
    namespace: dict[str, Any] = {"Report": Report, "Order": Order}
    for block in blocks(page(name), "py"):
        if not defines_a_model(block):
            exec(compile(block, name, "exec"), namespace)

    if name == "fencing.md":
        assert set(Report.objects.values_list("text", flat=True)) == {""}
    else:
        assert not Order.objects.filter(packed=False).exists()
        assert Order.objects.released().count() == 3


# The examples of docs/fencing.md, under attack


@pytest.fixture
def shown(clocks: ManualKeeper) -> dict[str, Any]:
    """Return the definitions of the page on fencing."""
    namespace: dict[str, Any] = {}
    for block in blocks(page("fencing.md"), "python"):
        exec(compile(block, "fencing.md", "exec"), namespace)
    return namespace


@pytest.fixture
def printer(shown: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The page's service; it has seen the token of the page's own hold."""
    from threading import Thread

    service = shown["ThreadingHTTPServer"](("127.0.0.1", 0), shown["LabelPrinter"])
    thread = Thread(target=service.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    shown["url"] = f"http://127.0.0.1:{service.server_port}/"
    yield shown
    service.shutdown()
    service.server_close()
    thread.join()


def two_holders(resource: str) -> tuple[Any, Any]:
    """One who was revoked and has not heard of it, and its successor."""
    late = Lease.objects.hold(resource, holder="ann").__enter__()
    Lease.objects.filter(resource=resource).revoke()
    mine = Lease.objects.hold(resource, holder="bob").__enter__()
    return late, mine


def line(text: bytes) -> Any:
    return lambda body: (body or b"") + text


def test_an_object_refuses_whoever_comes_after_a_newer_token(shown: dict[str, Any]) -> None:
    bucket, put = shown["Bucket"](), shown["put_fenced"]
    late, mine = two_holders("object:1")
    put(bucket, "a.txt", late, line(b"1"))
    put(bucket, "a.txt", mine, line(b"2"))
    put(bucket, "a.txt", mine, line(b"3"))

    with pytest.raises(StaleToken, match=r"a\.txt"):
        put(bucket, "a.txt", late, line(b"4"))

    assert bucket.get("a.txt").body == b"123"
    assert LeaseEvent.objects.get(kind="refused").reason.startswith("put: a.txt")


def test_an_object_written_between_the_look_and_the_write_is_looked_at_again(
    shown: dict[str, Any],
) -> None:
    """The sleeper looked before its successor came: the condition of the put refuses it, and the
    second look tells it why."""
    bucket, put = shown["Bucket"](), shown["put_fenced"]
    late, mine = two_holders("object:1")
    put(bucket, "a.txt", late, line(b"1"))
    looks = []

    def sleep(body: bytes) -> bytes:
        looks.append(body)
        put(bucket, "a.txt", mine, line(b"2"))
        return body + b"late"

    with pytest.raises(StaleToken):
        put(bucket, "a.txt", late, sleep)

    assert (looks, bucket.get("a.txt").body) == ([b"1"], b"12")


def test_an_object_made_between_the_look_and_the_write_is_not_overwritten(
    shown: dict[str, Any],
) -> None:
    bucket, put = shown["Bucket"](), shown["put_fenced"]
    late, mine = two_holders("object:1")

    def sleep(body: bytes | None) -> bytes:
        put(bucket, "new.txt", mine, line(b"2"))
        return b"late"

    with pytest.raises(StaleToken):
        put(bucket, "new.txt", late, sleep)

    assert bucket.get("new.txt").body == b"2"


def test_two_writes_of_one_holder_that_meet_are_both_made(shown: dict[str, Any]) -> None:
    bucket, put = shown["Bucket"](), shown["put_fenced"]
    hold = Lease.objects.hold("object:1").__enter__()
    twice = []

    def meet(body: bytes | None) -> bytes:
        twice.append(body)
        if len(twice) == 1:
            put(bucket, "a.txt", hold, line(b"1"))
        return (body or b"") + b"2"

    put(bucket, "a.txt", hold, meet)

    assert bucket.get("a.txt").body == b"12"


def test_a_hold_that_is_over_puts_nothing(shown: dict[str, Any], clocks: ManualKeeper) -> None:
    bucket = shown["Bucket"]()
    hold = Lease.objects.hold("object:1").__enter__()
    clocks.frozen = True
    clocks.advance(60)

    with pytest.raises(LeaseLost, match="renewed"):
        shown["put_fenced"](bucket, "a.txt", hold, line(b"late"))

    assert bucket.get("a.txt") is None


def test_a_service_refuses_an_older_token(printer: dict[str, Any]) -> None:
    print_label, url = printer["print_label"], printer["url"]
    service = printer["LabelPrinter"]
    service.printed.clear()
    late, mine = two_holders("printer:1")
    print_label(url, "one", late)
    print_label(url, "two", mine)
    print_label(url, "two again", mine)

    with pytest.raises(StaleToken, match="printer"):
        print_label(url, "late", late)

    assert service.printed == [b"one", b"two", b"two again"]
    assert events("printer:1")[-1] == "refused"


def test_another_failure_of_the_service_is_no_refusal(
    printer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handler: Any) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.send_response(500)
        handler.end_headers()

    monkeypatch.setattr(printer["LabelPrinter"], "do_POST", fail)
    hold = Lease.objects.hold("printer:1").__enter__()

    with pytest.raises(printer["HTTPError"]) as error:
        printer["print_label"](printer["url"], "one", hold)
    error.value.close()

    assert events("printer:1") == ["acquired"]
