"""What a relay publishes, as rows of each database say it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from leasing.functions import after
from tasks.models import Task
from tests.factories import make_task, make_tasks
from tests.leasing.support import OtherSession

pytestmark = pytest.mark.django_db

PATIENCE = 60.0


def published(seconds_ago: float) -> int:
    """A task whose message was sent so many seconds ago."""
    task = make_task(scheduled_at=None)
    columns = {
        "scheduled_at": after(timedelta(days=-1)),
        "published_at": after(timedelta(seconds=-seconds_ago)),
    }
    Task.objects.filter(pk=task.pk).update(**columns)
    return int(task.pk)


def test_a_message_is_late_when_it_is_older_than_patience() -> None:
    fresh, late = published(PATIENCE - 5), published(PATIENCE + 5)

    window = Task.objects.window("default", 9, PATIENCE)

    assert (window.keys, window.late) == ([], [late])
    assert Task.objects.mark_published([fresh, late], PATIENCE) == [late]
    assert Task.objects.mark_published([fresh, late], PATIENCE) == []


def test_what_lacks_a_message_could_be_claimed_now() -> None:
    waits, _ = make_task(), make_task(state="scheduled")
    published(1)

    assert list(Task.objects.unpublished()) == [waits]


def test_of_a_key_as_many_are_published_as_can_run() -> None:
    for _ in range(4):
        make_task(concurrency_key="a", concurrency_limit=3)
    make_task(concurrency_key="b", concurrency_limit=1)
    Task.objects.claim("ann")
    first, second, third, other = Task.objects.ready().order_by("pk")

    window = Task.objects.window("default", 9, PATIENCE)

    assert window.keys == [first.pk, second.pk, other.pk]
    assert third.pk not in window.late


def test_what_one_look_has_chosen_counts_in_the_next() -> None:
    """The second of ``b`` is seen once the first look has filled ``a``."""
    first, _, other, _ = (make_task(concurrency_key=key).pk for key in "aabb")

    assert Task.objects.window("default", 3, PATIENCE).keys == [first, other]


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_task_that_somebody_has_locked_is_not_waited_for(other_session: OtherSession) -> None:
    busy, free = make_tasks(2)
    other_session.lock(busy)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '1s'")
        marked = Task.objects.mark_published([busy.pk, free.pk], PATIENCE)

    other_session.commit()
    assert marked == [free.pk]
