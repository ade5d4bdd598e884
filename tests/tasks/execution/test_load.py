"""The columns of a handler's task that its claim did not return."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasing.exceptions import LeaseLost
from tasks.execution.context import Context
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask
from tests.factories import make_task
from tests.tasks.support import ContextOf, row_of, take_over

pytestmark = pytest.mark.django_db


@pytest.fixture
def ctx(context: ContextOf) -> Context:
    """The context of a task that an earlier attempt has left a checkpoint."""
    task = make_task(state="running", holder="ann", priority=3)
    Task.objects.checkpoint(task, {"row": 7})
    made = context(task)
    made.claimed = ClaimedTask.taken(task)
    return made


def test_a_thread_reads_a_column_on_first_use(ctx: Context) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert (ctx.task.priority, ctx.task.attempts) == (3, 1)
        assert len(queries) == 0
        assert [ctx.state, ctx.state] == [{"row": 7}] * 2

    assert len(queries) == 1


def test_a_coroutine_is_told_to_load_first(ctx: Context) -> None:
    async def handler() -> None:
        assert ctx.task.priority == 3
        assert ctx.state

    with pytest.raises(SynchronousOnlyOperation, match=r"without checkpoint\. .*await ctx\.load"):
        async_to_sync(handler)()


def test_a_coroutine_loads_all_columns_by_one_query(ctx: Context) -> None:
    before = ctx.task

    async def handler() -> dict[str, object]:
        assert await ctx.load() is ctx.task is before
        assert ctx.state == {"row": 7}
        assert await ctx.load() is before
        return row_as_read(before)

    with CaptureQueriesContext(connection) as queries:
        read = async_to_sync(handler)()

    assert len(queries) == 1
    assert read == row_of(before)


def row_as_read(task: Task) -> dict[str, object]:
    """Every column of ``task``, without a query."""
    return {each.attname: task.__dict__[each.attname] for each in task._meta.concrete_fields}


def test_loading_a_task_that_somebody_else_has_reads_nothing_of_theirs(ctx: Context) -> None:
    take_over(ctx.task)

    with pytest.raises(LeaseLost, match="thief"):
        async_to_sync(ctx.load)()

    assert "checkpoint" in ctx.task.get_deferred_fields()
    with pytest.raises(LeaseLost):
        ctx.ensure()
