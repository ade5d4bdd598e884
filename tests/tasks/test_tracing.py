"""One task is one trace, whose context its row carries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from opentelemetry import trace

import tasks.tracing
from leasing.runtime.events import during, happened
from tasks.exceptions import InvalidOutput, Snooze
from tasks.execution import runner
from tasks.execution.attempt import Attempt, Outcome
from tasks.execution.completer import store_outcomes
from tasks.execution.context import Context
from tasks.models import Task, TaskStatus
from tasks.worker import child
from tasks.worker.child import Answer, Job
from tasks.worker.hand_back import give_back
from tasks.worker.processes import ChildProcess
from tests.factories import claimed, make_task
from tests.leasing.support import expire
from tests.plugin import ENVIRONMENT, ROOT
from tests.processes import wait_for
from tests.tasks.support import Handlers, RunTask, make_due
from tests.tasks.workers import states, working
from tests.tracing import Faulty, Spans, attributes, current_span, events, is_in, links_to, traced

pytestmark = pytest.mark.django_db

#: Headers of a caller, in a trace of its own.
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def connected(connection_stays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of the test, and its transaction, stay."""
    monkeypatch.setattr(connections, "close_all", lambda: None)


def fails(ctx: Any, **data: Any) -> None:
    raise ValueError("no luck")


def carried(task: Task) -> dict[str, str]:
    """Return the trace context in the row."""
    text = Task.objects.values_list("trace_context", flat=True).get(pk=task.pk)
    return json.loads(text) if text else {}


def span_id(header: str) -> str:
    return header.split("-")[2]


def id_of(span: Any) -> str:
    return f"{span.context.span_id:016x}"


# The tree


@pytest.mark.usefixtures("handlers")
def test_the_page_prints_the_tree_that_it_shows() -> None:
    text = (ROOT / "docs" / "tracing.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    printed = StringIO()
    try:
        with redirect_stdout(printed), transaction.atomic():
            exec(compile(code, "tracing.md", "exec"), {})
    finally:
        tasks.tracing.uninstrument()

    assert printed.getvalue() == shown


def test_each_attempt_is_a_part_of_the_enqueue_and_linked_to_the_one_before(
    spans: Spans, run_task: RunTask
) -> None:
    task = run_task(fails)
    make_due(task)
    run_task(lambda ctx, **data: None, task=claimed(task, "worker-b"))

    send = spans.one("send default")
    first, second = spans.named("process default")
    assert is_in(first, send) and is_in(second, send)
    assert not first.links and links_to(second, first)
    assert is_in(spans.one("fail default"), first)
    assert is_in(spans.one("complete default"), second)
    assert all(is_in(claim, send) for claim in spans.named("claim default"))
    assert len(spans.named("claim default")) == 2


def test_what_a_failed_attempt_leaves_is_no_query_of_its_own(
    spans: Spans, run_task: RunTask
) -> None:
    with CaptureQueriesContext(connection) as queries:
        task = run_task(fails)
    followed = len(queries)
    with CaptureQueriesContext(connection) as queries:
        tasks.tracing.uninstrument()
        run_task(fails)

    assert followed == len(queries)
    assert span_id(carried(task)["previous"]) == id_of(spans.one("process default"))


def test_spans_are_those_of_the_conventions(spans: Spans, run_task: RunTask) -> None:
    task = run_task(fails, data={"secret": "Xyzzy"})

    send, process = spans.one("send default"), spans.one("process default")
    assert send.kind is trace.SpanKind.PRODUCER
    assert process.kind is trace.SpanKind.CONSUMER
    assert attributes(process) == {
        "messaging.system": "django-leasing",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(task.pk),
        "messaging.client.id": task.holder,
        "tasks.name": "jobs.echo",
        "tasks.attempt": 1,
        "tasks.max_attempts": 10,
        "tasks.outcome": "failed",
        "leasing.fencing_token": task.fencing_token,
        "error.type": "ValueError",
    }
    assert process.status.description == "ValueError: no luck"
    assert events(process) == ["exception"]
    assert attributes(send)["messaging.message.id"] == str(task.pk)
    assert not any("Xyzzy" in span.to_json() for span in spans.all)


# Enqueues


def test_an_enqueue_is_a_part_of_what_its_caller_does(spans: Spans) -> None:
    with spans.provider.get_tracer("test").start_as_current_span("request"):
        task = Task.objects.enqueue("jobs.echo")

    send = spans.one("send default")
    assert is_in(send, spans.one("request"))
    assert span_id(carried(task)["traceparent"]) == id_of(send)
    assert task.trace_context == Task.objects.get().trace_context


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_on_commit_is_a_part_of_what_asked_for_it(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("test")
    with transaction.atomic(), tracer.start_as_current_span("request"):
        Task.objects.enqueue_on_commit("jobs.echo")

    assert is_in(spans.one("send default"), spans.one("request"))
    assert carried(Task.objects.get())


def test_many_that_are_enqueued_together_have_one_span(spans: Spans) -> None:
    stored = Task.objects.enqueue_many("jobs.echo", [{"n": n} for n in range(3)])

    send = spans.one("send default")
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert {span_id(carried(task)["traceparent"]) for task in stored} == {id_of(send)}
    assert [task.trace_context for task in stored] == [
        row.trace_context for row in Task.objects.order_by("pk")
    ]


def test_an_enqueue_that_meets_another_says_so_and_leaves_its_trace(spans: Spans) -> None:
    first = Task.objects.enqueue("jobs.echo", unique_key="one")
    Task.objects.enqueue("jobs.echo", unique_key="one")

    sent, met = spans.named("send default")
    assert attributes(met)["tasks.is_duplicate"] is True
    assert span_id(carried(first)["traceparent"]) == id_of(sent)


def test_an_enqueue_that_replaces_another_brings_its_own_trace(spans: Spans) -> None:
    task = Task.objects.enqueue("jobs.echo", unique_key="one")
    Task.objects.enqueue("jobs.echo", {"n": 2}, unique_key="one", on_duplicate="replace")

    assert span_id(carried(task)["traceparent"]) == id_of(spans.named("send default")[1])


def test_a_refused_enqueue_is_an_error(spans: Spans) -> None:
    with pytest.raises(Exception, match="a different payload"):
        for n in range(2):
            Task.objects.enqueue("jobs.echo", {"n": n}, idempotency_key="one")

    assert attributes(spans.named("send default")[1])["error.type"] == "PayloadMismatch"


def test_the_headers_are_those_of_the_callers_propagator(spans: Spans) -> None:
    context = trace.propagation.tracecontext.TraceContextTextMapPropagator().extract(
        {"traceparent": CALLER, "tracestate": "vendor=7"}
    )
    with trace.use_span(trace.get_current_span(context)):
        task = Task.objects.enqueue("jobs.echo")

    assert carried(task)["tracestate"] == "vendor=7"
    assert carried(task)["traceparent"].split("-")[1] == CALLER.split("-")[1]


# Attempts


@pytest.mark.parametrize(
    ("does", "outcome", "verb"),
    [
        (lambda ctx, **data: None, "succeeded", "complete"),
        (fails, "failed", "fail"),
        (lambda ctx, **data: ctx.give_back("later"), "returned", "give back"),
    ],
)
def test_a_span_tells_how_the_attempt_ended(
    spans: Spans, run_task: RunTask, does: Callable[..., Any], outcome: str, verb: str
) -> None:
    task = run_task(does)

    process = spans.one("process default")
    assert attributes(process)["tasks.outcome"] == outcome
    assert is_in(spans.one(f"{verb} default"), process)
    # What may be tried again goes on from it.
    assert ("previous" in carried(task)) == (verb != "complete")


def test_snoozed_and_cancelled_attempts_are_gone_on_from(spans: Spans, run_task: RunTask) -> None:
    def snoozes(ctx: Any, **data: Any) -> None:
        raise Snooze(5)

    def is_cancelled(ctx: Any, **data: Any) -> None:
        Task.objects.filter(pk=ctx.task.pk).cancel(by="alice")
        ctx._attempt.cancel("alice")
        ctx.ensure()

    snoozed, cancelled = run_task(snoozes), run_task(is_cancelled)

    assert cancelled.status == TaskStatus.CANCELLED
    first, second = spans.named("process default")
    assert attributes(first)["tasks.outcome"] == "snoozed"
    assert attributes(second)["tasks.outcome"] == "cancelled"
    assert span_id(carried(snoozed)["previous"]) == id_of(first)
    assert span_id(carried(cancelled)["previous"]) == id_of(second)


def test_an_attempt_that_fails_alone_leaves_its_own_too() -> None:
    task = make_task(name="jobs.echo", state="running")
    task.traced = "{}"
    Task.objects.fail(task, "no luck")

    assert Task.objects.get().trace_context == "{}"


@pytest.mark.usefixtures("connected")
def test_many_failures_that_are_stored_together_leave_each_its_own(
    spans: Spans, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    handlers["jobs.echo"] = fails
    running = [make_task(name="jobs.echo", state="running") for _ in range(2)]
    store_outcomes([runner.work(attempt_of(task)) for task in running])

    left = [span_id(carried(task)["previous"]) for task in running]
    assert left == [id_of(span) for span in spans.named("process default")]


def test_an_output_that_is_no_json_fails_after_all(spans: Spans, run_task: RunTask) -> None:
    task = run_task(lambda ctx, **data: object())

    process = spans.one("process default")
    assert attributes(spans.one("complete default"))["error.type"] == InvalidOutput.__name__
    assert is_in(spans.one("fail default"), process)
    assert span_id(carried(task)["previous"]) == id_of(process)


@pytest.mark.usefixtures("connected")
def test_an_attempt_that_is_given_back_from_outside_has_ended(
    spans: Spans, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    def stops(ctx: Any, **data: Any) -> None:
        give_back([attempt], "its worker was stopped")
        assert len(spans.named("process default")) == 1

    handlers["jobs.echo"] = stops
    task = make_task(name="jobs.echo", state="running")
    attempt = attempt_of(task)
    attempt.carrier = threading.current_thread()
    runner.work(attempt)

    process = spans.one("process default")
    assert attributes(process)["tasks.outcome"] == "returned"
    assert span_id(carried(task)["previous"]) == id_of(process)


@pytest.mark.usefixtures("connected")
def test_an_attempt_that_times_out_has_ended(
    spans: Spans,
    attempt_of: Callable[[Task], Attempt],
    handlers: Handlers,
) -> None:
    handlers["jobs.echo"] = lambda ctx, **data: runner.time_out(attempt)
    attempt = attempt_of(make_task(name="jobs.echo", state="running", timeout=1))
    store_outcomes([runner.work(attempt)])

    process = spans.one("process default")
    assert attributes(process)["error.type"] == "TimeoutError"
    assert is_in(spans.one("fail default"), process)


@pytest.mark.usefixtures("connected")
def test_heartbeats_and_losses_are_events_of_the_attempt(
    spans: Spans, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    def works(ctx: Any, **data: Any) -> None:
        happened("hold.renewed", [attempt])
        attempt.mark_lost("somebody else has held it")

    handlers["jobs.echo"] = works
    attempt = attempt_of(make_task(name="jobs.echo", state="running"))
    runner.work(attempt)

    process = spans.one("process default")
    assert events(process) == ["heartbeat", "lost"]
    assert process.status.description == "lost: somebody else has held it"


def test_the_attempt_after_a_workers_death_is_linked_to_what_recovery_tells(
    spans: Spans, run_task: RunTask
) -> None:
    task = make_task(name="jobs.echo", state="running", holder="worker-a")
    expire(task)
    assert Task.objects.recover() == 1
    make_due(task)
    run_task(lambda ctx, **data: None, task=claimed(task, "worker-b"))

    lost, process = spans.one("lost default"), spans.one("process default")
    assert is_in(lost, spans.one("send default"))
    assert links_to(process, lost)
    said = attributes(lost)
    assert (said["messaging.client.id"], said["tasks.attempt"]) == ("worker-a", 1)
    assert lost.status.description == "worker-a did not renew its lease in time"


def test_a_task_that_nobody_traced_begins_a_trace_with_each_attempt(run_task: RunTask) -> None:
    task = make_task(name="jobs.echo", state="running")
    with traced() as spans:
        run_task(fails, task=task)
        make_due(task)
        run_task(fails, task=claimed(task, "worker-b"))

    first, second = spans.named("process default")
    assert first.parent is None and second.parent is None
    assert links_to(second, first)


# Where handlers run


@pytest.mark.django_db(transaction=True)
def test_what_a_handler_does_is_a_part_of_its_attempt_on_threads_and_in_coroutines(
    spans: Spans, handlers: Handlers
) -> None:
    tracer = spans.provider.get_tracer("test")

    def on_a_thread(ctx: Any) -> None:
        with tracer.start_as_current_span("inner"):
            Task.objects.enqueue("jobs.later", queue="default", delay=3600)

    async def in_a_coroutine(ctx: Any) -> None:
        with tracer.start_as_current_span("inner"):
            await Task.objects.filter(pk=0).aexists()

    handlers["jobs.later"] = fails
    handlers["jobs.thread"] = on_a_thread
    handlers["jobs.coroutine"] = in_a_coroutine
    for name in ("jobs.thread", "jobs.coroutine"):
        Task.objects.enqueue(name)
    with working():
        wait_for(lambda: states().count("succeeded") == 2)
        wait_for(lambda: len(spans.named("complete default")) == 2)

    inner, processes = spans.named("inner"), spans.named("process default")
    for process in processes:
        assert any(is_in(process, send) for send in spans.named("send default"))
    for span in inner:
        assert any(is_in(span, process) for process in processes)
    assert len(inner) == len(processes) == 2
    later = Task.objects.get(name="jobs.later")
    assert carried(later)["traceparent"].split("-")[1] in {
        f"{span.context.trace_id:032x}" for span in inner if span.context
    }


def leave(attempt: Attempt) -> None:
    """End the attempt where it began."""
    outcome = Outcome(attempt)
    happened("attempt.left", [attempt], outcome=outcome)


def test_a_child_process_goes_on_with_the_span_of_its_attempt(
    spans: Spans, attempt_of: Callable[[Task], Attempt], handlers: Handlers
) -> None:
    seen: list[int] = []
    handlers["jobs.echo"] = lambda ctx, **data: seen.append(current_span())
    task = make_task(name="jobs.echo", state="running")
    attempt = attempt_of(task)
    happened("attempt.begun", [attempt])
    job = Job(task, attempt.trusted_until, tasks.tracing.inject())
    leave(attempt)
    child.run(child.begin(job))

    assert [f"{each:016x}" for each in seen] == [id_of(spans.one("process default"))]
    assert current_span() == 0


def test_a_child_process_is_told_of_the_span(
    spans: Spans, attempt_of: Callable[[Task], Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    executor = ChildProcess(10.0)
    monkeypatch.setattr(executor, "_spawn", lambda: None)
    monkeypatch.setattr(executor, "_send", sent.append)
    monkeypatch.setattr(executor, "_receive", lambda *args: Answer(None, None, False, None))
    attempt = attempt_of(make_task(name="jobs.compute", state="running"))
    happened("attempt.begun", [attempt])
    executor.call(attempt, Context(attempt))
    leave(attempt)

    (job,) = sent
    assert span_id(json.loads(job.trace)["traceparent"]) == id_of(spans.one("process default"))


def test_a_message_to_a_broker_is_a_part_of_the_task(spans: Spans) -> None:
    first, other = Task.objects.enqueue_many("jobs.echo", [{}, {}])
    inside: list[int] = []
    happened("tasks.publishing", [first.pk])
    for task in (first, other):  # of the other it was not told
        with during("task.publish", task.pk, "default"):
            inside.append(current_span())

    known, unknown = spans.named("publish default")
    assert is_in(known, spans.one("send default"))
    assert attributes(known)["messaging.message.id"] == str(first.pk)
    assert [f"{each:016x}" for each in inside] == [id_of(known), id_of(unknown)]


# What it must not do


class Broken:
    """A tracer that has a fault in everything."""

    def start_span(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("the exporter's day off")


class BrokenSpan(trace.NonRecordingSpan):
    """A span with a fault in everything."""

    def _fail(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("the exporter's day off")

    add_event = set_attribute = set_attributes = set_status = record_exception = end = _fail


class BreakingLater:
    def start_span(self, *args: Any, **options: Any) -> Any:
        return BrokenSpan(trace.INVALID_SPAN_CONTEXT)


@pytest.mark.parametrize("tracer", [Broken(), BreakingLater()])
@pytest.mark.usefixtures("spans")
def test_errors_of_tracing_harm_no_work(tracer: Any, run_task: RunTask) -> None:
    provider: Any = Faulty(tracer)
    tasks.tracing.instrument(provider)
    Task.objects.enqueue_many("jobs.echo", [{}])
    task = run_task(fails)
    make_due(task)
    task = run_task(lambda ctx, **data: 7, task=claimed(task, "worker-b"))
    stuck = make_task(name="jobs.echo", state="stuck")
    Task.objects.recover()

    assert (task.status, task.task_output) == ("succeeded", 7)
    stuck.refresh_from_db()
    assert stuck.status == TaskStatus.READY


@pytest.mark.parametrize("text", ["{", "[]", '{"traceparent": "nonsense", "previous": "too"}'])
def test_a_row_that_carries_nonsense_is_run(spans: Spans, run_task: RunTask, text: str) -> None:
    task = make_task(name="jobs.echo")
    Task.objects.filter(pk=task.pk).update(trace_context=text)
    ended = run_task(lambda ctx, **data: None, task=claimed(task, "worker-a"))

    assert ended.status == TaskStatus.SUCCEEDED


def test_without_a_provider_nothing_is_written(run_task: RunTask) -> None:
    tasks.tracing.instrument()
    try:
        task = run_task(fails)
    finally:
        tasks.tracing.uninstrument()

    assert task.trace_context is None


@pytest.mark.usefixtures("unheard")
def test_nothing_is_written_or_read_while_it_is_off() -> None:
    with CaptureQueriesContext(connection) as queries:
        Task.objects.enqueue("jobs.echo")
        Task.objects.enqueue_many("jobs.echo", [{}, {}])
        claimed = Task.objects.take("worker-a", limit=2)
        Task.objects.complete_claimed([(each, None) for each in claimed])

    assert set(Task.objects.values_list("trace_context", flat=True)) == {None}
    if connection.vendor == "postgresql":  # the portable forms name every column, read or not
        read = [each["sql"] for each in queries if "INSERT INTO" not in each["sql"]]
        assert not [sql for sql in read if "trace_context" in sql]


@pytest.mark.usefixtures("unheard")
def test_a_claim_brings_what_its_tasks_carry_without_a_query_more(spans: Spans) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}, {}])
    with CaptureQueriesContext(connection) as queries:
        first = Task.objects.take("worker-a")
        followed = len(queries)
        tasks.tracing.uninstrument()
        second = Task.objects.take("worker-a")

    assert followed == len(queries) - followed
    assert [bool(each.trace_context) for each in (*first, *second)] == [True, False]


OFF = """
import sys

import django

django.setup()

import leasing.holding, tasks.worker.process, tasks.worker.child
from django.core.management import call_command
from leasing.models import Lease
from tasks.models import Task

call_command("migrate", verbosity=0)
Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 0})
with Lease.objects.hold("a"):
    call_command("run_worker", drain=True)
assert Task.objects.succeeded().count() == 1
print("opentelemetry:", any(name.split(".")[0] == "opentelemetry" for name in sys.modules))
"""


@pytest.mark.slow
def test_opentelemetry_is_not_imported_while_it_is_off(tmp_path: Any) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    env |= {
        "DATABASE_URL": f"sqlite:///{tmp_path / 'off.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", OFF], env=env, cwd=tmp_path, text=True, capture_output=True
    )

    assert done.stdout.splitlines()[-1:] == ["opentelemetry: False"], done.stderr


@pytest.mark.slow
def test_the_setting_without_the_extra_is_a_clear_error(tmp_path: Any) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['leasing', 'tasks'], LEASING={'TRACES': True})\n"
        "import django; django.setup()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=60
    )

    assert "pip install 'django-leasing[otel]'" in done.stderr.splitlines()[-1]
