"""The attempts of a task, and the waits between them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasing.functions import DbNow
from leasing.web.paging import page_of
from tasks.dashboard.timeline import Timeline, timeline
from tasks.exceptions import GiveUp
from tasks.models import Task, TaskAttempt
from tests.factories import claimed, make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("database_clock")]


def enqueued() -> Task:
    task = make_task()
    Task.objects.update(created_at=DbNow(), scheduled_at=DbNow())
    return task


def again(task: Task, holder: str) -> Task:
    """``task``, due and claimed once more."""
    Task.objects.filter(pk=task.pk).update(scheduled_at=DbNow())
    return claimed(Task.objects.get(pk=task.pk), holder)


def dated() -> None:
    """Date by the stopped clock what a server's own default has dated."""
    TaskAttempt._base_manager.filter(
        ended_at__lt=datetime.fromisoformat("2030-01-01T00:00Z")
    ).update(ended_at=DbNow())


def read(task: Task, now: datetime, most: int = 50) -> Timeline:
    """The timeline of ``task`` as its page shows it."""
    page = page_of(TaskAttempt.objects.filter(task=task), None, most)
    return timeline(task, now, page.rows, has_more=bool(page.older))


def shown(task: Task, database_clock: DatabaseClock) -> Timeline:
    dated()
    return read(Task.objects.get(pk=task.pk), database_clock.now)


def lengths(seen: Timeline) -> list[tuple[str, str, float | None]]:
    return [
        (
            span.outcome or span.kind,
            span.holder,
            None if span.ended_at is None else (span.ended_at - span.began_at).total_seconds(),
        )
        for span in seen.spans
    ]


def test_attempts_stand_as_spans_with_the_waits_between(database_clock: DatabaseClock) -> None:
    task = enqueued()
    database_clock.advance(3)
    mine = again(task, "ann")
    database_clock.advance(5)
    Task.objects.fail(mine, ValueError("no luck"))
    dated()
    database_clock.advance(7)
    mine = again(task, "bob")
    database_clock.advance(2)

    seen = shown(task, database_clock)
    assert lengths(seen) == [
        ("wait", "", 3.0),
        ("failed", "ann", 5.0),
        ("wait", "", 7.0),
        ("running", "bob", None),
    ]
    assert [span.number for span in seen.attempts] == [1, 2]

    Task.objects.complete(mine, {})
    seen = shown(task, database_clock)
    assert lengths(seen)[-1] == ("succeeded", "bob", 2.0)


def test_a_task_that_waits_has_an_open_end_and_says_until_when(
    database_clock: DatabaseClock,
) -> None:
    task = enqueued()
    due_at = database_clock.now + timedelta(hours=1)
    Task.objects.update(scheduled_at=due_at)

    (span,) = shown(task, database_clock).spans

    assert (span.kind, span.ended_at, span.due_at) == ("wait", None, due_at)


def test_an_attempt_whose_holder_is_gone_is_overdue_and_then_lost(
    database_clock: DatabaseClock,
) -> None:
    task = enqueued()
    mine = again(task, "ann")
    database_clock.advance(31)
    assert lengths(shown(task, database_clock)) == [("overdue", "ann", None)]

    Task.objects.recover()
    dated()
    database_clock.advance(4)
    Task.objects.note_refused(mine, "complete", "late")
    seen = shown(task, database_clock)
    assert lengths(seen) == [("lost", "ann", 31.0), ("wait", "", None)]
    assert seen.spans[0].refused_report == "result"


@pytest.mark.parametrize("end", ["failed", "cancelled while it waits", "cancelled at work"])
def test_what_ended_badly_has_no_attempt_too_many(database_clock: DatabaseClock, end: str) -> None:
    task = enqueued()
    row = Task.objects.filter(pk=task.pk)
    if end == "cancelled while it waits":
        database_clock.advance(6)
        row.cancel()
        assert lengths(shown(task, database_clock)) == [("wait", "", 6.0)]
        return
    mine = again(task, "ann")
    database_clock.advance(5)
    if end == "failed":
        Task.objects.fail(mine, GiveUp("no hope"))
    else:
        row.cancel()
        Task.objects.accept_cancel(mine)
    outcome = "failed" if end == "failed" else "cancelled"

    assert lengths(shown(task, database_clock)) == [(outcome, "ann", 5.0)]


def test_so_many_attempts_are_read_and_the_rest_is_said_to_be_there(
    database_clock: DatabaseClock,
) -> None:
    task = enqueued()
    for holder in "abcd":
        expire(again(task, holder))
        Task.objects.recover()
        dated()
        database_clock.advance(1)

    with CaptureQueriesContext(connection) as queries:
        seen = read(Task.objects.get(pk=task.pk), database_clock.now, most=2)

    assert len(queries) == 2 and "LIMIT 3" in queries[1]["sql"]
    assert seen.has_more
    assert [span.holder for span in seen.attempts] == ["c", "d"]
    assert [span.kind for span in seen.spans] == ["attempt", "wait", "attempt", "wait"]
