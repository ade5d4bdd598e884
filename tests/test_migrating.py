"""docs/migrating.md: its programs do the same here, and what its tables name is there."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from inspect import signature
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery.schedules import crontab
from django.core.management import get_commands, load_command_class
from django.db import transaction

import leasing
import tasks
from leasing import exceptions as lease_exceptions
from leasing.conf import leasing_settings
from leasing.holding import Hold, Term
from leasing.models import Lease
from leasing.store import HoldOptions
from leasing.testing import hold_elsewhere
from tasks import exceptions, handler, retry, schedule, signals, testing
from tasks.conf import task_settings
from tasks.execution.context import Context
from tasks.models import Queue, Schedule, ScheduleSlot, Task
from tasks.producer import HandlerFunction, ProducerOptions
from tasks.testing import drain, run
from tests.plugin import ROOT

pytestmark = [pytest.mark.usefixtures("own_handlers", "own_celery_tasks")]

PAGE = (ROOT / "docs" / "migrating.md").read_text()
BLOCKS = re.findall(r"^```py(?:thon)?\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def block(containing: str, **names: Any) -> SimpleNamespace:
    """Return what the block that contains this text defines, with these names defined before."""
    (text,) = (block for block in BLOCKS if containing in block)
    exec(compile(text, "migrating.md", "exec"), names)
    return SimpleNamespace(**names)


# The tables


def codes() -> list[str]:
    """The code in the middle column, ours, of the tables that compare."""
    ours = re.findall(r"^\|.*?\|(.*?)\|.*\|$", PAGE, re.MULTILINE)
    return list(dict.fromkeys(code for cell in ours for code in re.findall("`([^`]+)`", cell)))


def parameters(of: Callable[..., Any]) -> set[str]:
    return set(signature(of).parameters)


#: The attributes, functions and classes that the page speaks of are those of these.
FACES: tuple[Any, ...] = (
    *(tasks, testing, signals, retry, exceptions, Task, Task(), Task.objects, Task.objects.none()),
    *(leasing, lease_exceptions, Lease, Lease(), Lease.objects, Lease.objects.none(), transaction),
    *(Queue.objects, ScheduleSlot, Hold, Term, Context, HandlerFunction, builtins),
)
NAMES = {name for face in FACES for name in dir(face)} | {*tasks.__all__, *leasing.__all__}
#: What its readers have: a handler, a row, models, a class of errors.
GIVEN = {"send", "task", "ctx", "hold", "lease", "key", "E", "error", "attempt", "held"} | {
    *("Task", "Lease", "Queue", "ScheduleSlot", "tasks", "transaction", "signals", "testing"),
    *("logging", "getLogger"),
}
OPTIONS = (
    parameters(handler)
    | parameters(schedule)
    | ProducerOptions.__optional_keys__
    | {
        *HoldOptions.__optional_keys__,
        *(name for of in (leasing.once, leasing.leased, tasks.wait_for) for name in parameters(of)),
        *(name for of in (retry.Exponential, retry.RetryOn) for name in parameters(of)),
        *("invoice_id", "pk", "resource", "now_at"),  # data, columns
    }
)
#: The statements that a piece of code may stand in.
FRAMES = (
    *("f({})", "{}", "f({}0)", "{} pass", "{}\ndef f(): pass", "try: pass\n{}: pass"),
    *("async def f():\n  {} pass", "{} f(): pass"),
)


def parsed(code: str) -> ast.Module:
    for frame in FRAMES:
        try:
            return ast.parse(frame.format(code))
        except SyntaxError:
            pass
    raise AssertionError(f"{code!r} is not code")


def unknown(code: str) -> set[str]:
    """Return what ``code`` names that is not there."""
    words = code.split()
    if re.fullmatch("[A-Z_]+", code):
        return {code} - {*leasing_settings.known(), *task_settings.known()}
    if words[0].startswith(("--", "run_worker", "manage.py")):
        line = ["run_worker", *words] if words[0].startswith("--") else words
        name, *arguments = [word for word in line if word != "manage.py"]
        arguments += ["2"] if arguments[-1:] == ["--coroutines"] else []
        command = load_command_class(get_commands()[name], name)
        command.create_parser("manage.py", name).parse_args(arguments)  # exits if it cannot
        return set()
    nodes = list(ast.walk(parsed(code)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
    options = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    return names - NAMES - GIVEN - {"f"} | options - OPTIONS


def test_what_takes_the_place_of_something_is_there() -> None:
    named = codes()
    assert len(named) > 100
    assert {code: missing for code in named if (missing := unknown(code))} == {}


@pytest.mark.parametrize("code", ["send.enqeue(7)", "retires=3", "MAX_ATEMPTS", "raise Snoze(60)"])
def test_a_wrong_name_in_a_table_would_be_found(code: str) -> None:
    assert unknown(code)


def test_options_that_others_have_are_told_by_those_here() -> None:
    (listed,) = re.findall(r"An option that others\s+have \((.*?)\)", PAGE)
    options = re.findall(r"`(\w+)=`", listed)

    assert len(options) == 3

    @handler("sync")
    def sync(ctx: Context) -> None: ...

    decorate: Callable[..., Any] = handler
    using: Callable[..., Any] = sync.using
    for option in options:
        with pytest.raises(TypeError, match=f"argument '{option}'"):
            decorate("sync", **{option: 5})
        with pytest.raises(TypeError, match=rf"argument '{option}': \w"):
            using(**{option: 5})


# Celery


@pytest.mark.django_db
def test_a_forwarder_hands_each_message_over_once() -> None:
    moved = block("bind=True, acks_late=True")
    keys = {moved.send_invoice.apply([7], {"copies": 2}, task_id="4f7d").get() for _ in range(2)}
    keys.add(moved.send_invoice.apply([8], task_id="5a11").get())

    first, second = Task.objects.order_by("pk")
    assert keys == {first.pk, second.pk}
    assert run(first).result == {"sent": 7, "copies": 2}


def test_the_program_of_celery_does_what_the_page_says() -> None:
    before = block("retry_backoff_max=600)\n", download=lambda url: "three small words")
    assert before.fetch.max_retries == 3
    assert before.count.apply([before.fetch.apply(["/"]).get()]).get() == 3


@pytest.mark.django_db
def test_the_program_that_was_moved_does_the_same() -> None:
    after = block('"pages.fetch"', download=lambda url: "three small words")
    task = after.start("/")
    assert 50 < (task.scheduled_at - datetime.now(UTC)).total_seconds() < 70
    run(task)
    (counted,) = drain()
    assert (counted.name, counted.result) == ("pages.count", 3)


@pytest.mark.django_db
def test_its_errors_are_retried_as_often_and_others_are_not() -> None:
    def download(url: str) -> str:
        raise {"/down": ConnectionError, "/wrong": ValueError}[url]

    after = block('"pages.fetch"', download=download)
    down, wrong = after.start("/down"), after.start("/wrong")
    runs = [task.pk for task in drain(skip_delays=True)]
    assert (runs.count(down.pk), runs.count(wrong.pk)) == (4, 1)
    before = block("retry_backoff_max=600)\n", download=download)
    assert before.fetch.max_retries + 1 == 4


# django-celery-beat


class Rows(list[Any]):
    """Stands for the manager of PeriodicTask."""

    def select_related(self, *names: str) -> Rows:
        return self

    def order_by(self, name: str) -> Rows:
        return Rows(sorted(self, key=lambda row: row.name))


def beat_row(name: str, task: str = "shop.sync", **fields: Any) -> SimpleNamespace:
    """A row with the fields that django-celery-beat 2.9 gives it, and their defaults."""
    empty: tuple[str, ...] = (
        "interval",
        "crontab",
        "solar",
        "clocked",
        "queue",
        "exchange",
        "routing_key",
    )
    empty += ("priority", "expires", "expire_seconds", "start_time", "last_run_at")
    defaults = {"args": "[]", "kwargs": '{"shop": 7}', "headers": "{}", "one_off": False}
    more = {"enabled": True, "total_run_count": 0, "pk": len(name)}
    return SimpleNamespace(
        **{**dict.fromkeys(empty), **defaults, **more, "name": name, "task": task, **fields}
    )


def at(cron: str, timezone: str = "UTC") -> SimpleNamespace:
    """A CrontabSchedule."""
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    return SimpleNamespace(
        **dict(zip(names, cron.split(), strict=True)), timezone=ZoneInfo(timezone)
    )


def every(number: int, period: str) -> SimpleNamespace:
    """An IntervalSchedule."""
    return SimpleNamespace(every=number, period=period)


@pytest.fixture
def copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], db: None
) -> Callable[..., dict[str, str]]:
    """Runs the script on these rows: what it prints of each."""

    @handler("sync", aliases=["shop.sync"])
    def sync(ctx: Context, shop: int, full: bool = False) -> None: ...

    def copied(*rows: SimpleNamespace) -> dict[str, str]:
        models = SimpleNamespace(PeriodicTask=SimpleNamespace(objects=Rows(rows)))
        monkeypatch.setitem(sys.modules, "django_celery_beat", SimpleNamespace(models=models))
        monkeypatch.setitem(sys.modules, "django_celery_beat.models", models)
        block("from django_celery_beat.models")
        lines = capsys.readouterr().out.splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    return copied


def test_the_rows_of_beat_become_schedules(copied: Callable[..., dict[str, str]]) -> None:
    printed = copied(
        beat_row("nightly", crontab=at("30 3 * * mon-fri", "Europe/Berlin")),
        beat_row("pulse", interval=every(5, "minutes"), args="[8, true]", kwargs="{}"),
        beat_row("stopped", interval=every(1, "days"), enabled=False),
    )

    assert set(printed.values()) == {"copied"}
    nightly, pulse, stopped = Schedule.objects.order_by("name")
    assert (nightly.task_name, nightly.task_data) == ("sync", {"shop": 7})
    assert (nightly.cron, nightly.timezone) == ("30 3 * * mon-fri", "Europe/Berlin")
    assert (pulse.every, pulse.task_data) == (timedelta(minutes=5), {"shop": 8, "full": True})
    assert (bool(stopped.paused_at), stopped.paused_by) == (True, "django-celery-beat")
    assert nightly.paused_at is pulse.paused_at is None


def test_what_is_due_once_is_enqueued_once(copied: Callable[..., dict[str, str]]) -> None:
    later = datetime(2040, 1, 1, tzinfo=UTC)
    rows = (
        beat_row("clocked", clocked=SimpleNamespace(clocked_time=later), one_off=True),
        beat_row("once by cron", crontab=at("0 0 1 1 *"), one_off=True),
        beat_row("had its run", interval=every(1, "hours"), one_off=True, total_run_count=1),
    )
    for _ in range(2):
        printed = copied(*rows)

    assert printed == {
        "clocked": "copied",
        "once by cron": "copied",
        "had its run": "left out: it has run, or is disabled",
    }
    assert not Schedule.objects.exists()
    by_cron, clocked = Task.objects.order_by("scheduled_at")
    assert clocked.scheduled_at == later and clocked.data == {"shop": 7}
    assert (by_cron.scheduled_at.month, by_cron.scheduled_at.day) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"solar": SimpleNamespace(event="sunset")}, "solar schedules"),
        ({"crontab": at("0 0 1 * 1")}, "both days"),
        ({"crontab": at("0 22-2 * * *")}, "not a valid cron expression"),
        ({"interval": every(500, "microseconds")}, "from 1 second"),
        ({"interval": every(5, "minutes"), "expires": datetime(2040, 1, 1, tzinfo=UTC)}, "ends"),
        ({"interval": every(5, "days"), "start_time": datetime(2040, 1, 1, tzinfo=UTC)}, "later"),
        ({"interval": every(5, "minutes"), "queue": "celery"}, "Unknown queue"),
        ({"interval": every(5, "minutes"), "kwargs": '{"shp": 7}'}, "'shp' is unknown"),
        ({"interval": every(5, "minutes"), "args": "[1, 2, 3]"}, "too many positional"),
        ({"interval": every(5, "minutes"), "task": "celery.backend_cleanup"}, "No handler"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_copied_is_printed(
    copied: Callable[..., dict[str, str]], fields: dict[str, Any], reason: str
) -> None:
    printed = copied(beat_row("strange", **fields), beat_row("usual", interval=every(5, "days")))

    assert printed["strange"].startswith("NOT COPIED") and reason in printed["strange"]
    assert printed["usual"] == "copied"
    assert Schedule.objects.get().name == "usual"
    assert not Task.objects.exists()


def test_options_that_are_left_out_are_printed(copied: Callable[..., dict[str, str]]) -> None:
    printed = copied(
        beat_row("odd", interval=every(5, "days"), priority=3, headers='{"x": 1}', expire_seconds=9)
    )
    assert printed == {"odd": "copied, without its priority, expire_seconds, headers"}


@pytest.mark.parametrize(
    "cron",
    [
        *("*/5 * * * *", "1,13,30-45,50-59/2 8-17/2 * * *", "0 0 */2 * *", "0 9 1-7,15 * *"),
        *("0 9 * */3 *", "0 9 * jan-mar sat,sun", "0 9 * * 0", "*/7 3 * * */2", "15 6 31 * *"),
    ],
)
def test_celery_and_a_schedule_here_mean_the_same_times(cron: str) -> None:
    minute, hour, day, month, weekday = cron.split()
    now = datetime(2026, 11, 23, 9, 59, 30, tzinfo=UTC)
    celery_s = crontab(minute, hour, weekday, day, month, nowfun=lambda: now, app=celery.Celery())
    celery_s.tz = UTC

    moment, times = now, []
    for _ in range(20):
        start, ends_in, _ = celery_s.remaining_delta(moment, tz=UTC)
        moment = start + ends_in
        times.append(moment)
    rule = Schedule(cron=cron).rule
    assert rule.upcoming(rule.first(now), 20) == times


# Locks


@pytest.mark.django_db(transaction=True)
def test_the_job_of_cron_is_done_by_one_host() -> None:
    job = block("def import_feed")
    done: list[str] = []
    pages = [lambda: done.append(job.import_feed([], wait=0)), lambda: done.append("page")]

    assert job.import_feed(pages) == "imported"
    assert "is importing until" in done[0] and done[1:] == ["page"]
    assert job.import_feed([]) == "imported"


@pytest.mark.django_db
def test_the_job_of_shedlock_is_skipped_elsewhere() -> None:
    job = block('@leased("report"')
    with hold_elsewhere("report"):
        assert job.report() is None
    assert job.report() > 0


@pytest.mark.django_db
def test_what_the_tables_say_of_procrastinate_s_locks_is_so() -> None:
    @handler("sync", concurrency_key="customer:{customer}")
    def sync(ctx: Context, customer: int) -> None: ...

    waiting = sync.using(unique_key="x", unique_for="waiting")
    first = waiting.enqueue(customer=7)
    assert waiting.enqueue(customer=7).is_duplicate
    (claimed,) = Task.objects.claim("a worker", ttl=60)
    assert claimed == first
    assert not waiting.enqueue(customer=7).is_duplicate  # another may wait while one runs
    assert list(Task.objects.claim("a worker")) == []  # and does not run beside it
