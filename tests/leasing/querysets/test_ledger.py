"""Ledgers are only ever added to: what happened is neither changed nor forgotten by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core import serializers
from django.db import IntegrityError, transaction

from leasing import audit
from leasing.models import LeaseEvent
from tasks.models import Task, TaskAttempt
from tests.factories import make_lease, make_task

pytestmark = pytest.mark.django_db


def event() -> Any:
    make_lease()
    return LeaseEvent.objects.get()


def entry() -> Any:
    return audit.record("olga", "retry", Task, changed=0, reason="mended")


def attempt() -> Any:
    return make_task(state="retrying").attempt_set.get()


#: A column of each that says something of what happened.
LEDGERS: list[Any] = [
    pytest.param(event, "holder", id="events"),
    pytest.param(entry, "by", id="audit"),
    pytest.param(attempt, "error", id="attempts"),
]
ledgers = pytest.mark.parametrize(("make", "column"), LEDGERS)


def rows(row: Any) -> Any:
    return type(row).objects.filter(pk=row.pk)


def save(row: Any, column: str) -> None:
    setattr(row, column, "eve")
    row.save()


def save_some(row: Any, column: str) -> None:
    setattr(row, column, "eve")
    row.save(update_fields=[column])


def save_as_new_with_the_same_key(row: Any, column: str) -> None:
    values = rows(row).values().get() | {column: "eve"}
    type(row)(**values).save()


def bulk_update(row: Any, column: str) -> None:
    setattr(row, column, "eve")
    type(row).objects.bulk_update([row], [column])


def upsert(row: Any, column: str) -> None:
    setattr(row, column, "eve")
    type(row).objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["id"], update_fields=[column]
    )


WRITES: dict[str, Callable[[Any, str], object]] = {
    "save": save,
    "save some": save_some,
    "save as new with the same key": save_as_new_with_the_same_key,
    "update": lambda row, column: rows(row).update(**{column: "eve"}),
    "update all": lambda row, column: type(row).objects.update(**{column: "eve"}),
    "bulk_update": bulk_update,
    "bulk_create": upsert,
    "update_or_create": lambda row, column: type(row).objects.update_or_create(
        pk=row.pk, defaults={column: "eve"}
    ),
    "delete": lambda row, column: rows(row).delete(),
    "delete all": lambda row, column: type(row).objects.all().delete(),
    "delete one": lambda row, column: row.delete(),
}


@ledgers
@pytest.mark.parametrize("write", WRITES)
def test_what_a_ledger_says_is_neither_changed_nor_deleted(
    make: Callable[[], Any], column: str, write: str
) -> None:
    row = make()
    before = rows(row).values().get()

    with pytest.raises(TypeError, match=r"cannot be changed|deleted by age"), transaction.atomic():
        WRITES[write](row, column)

    assert rows(row).values().get() == before


@ledgers
def test_an_argument_that_bulk_create_does_not_have_is_named(
    make: Callable[[], Any], column: str
) -> None:
    row = make()
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        type(row).objects.bulk_create([], batchsize=500)


def test_no_attempt_is_changed_through_its_task() -> None:
    row = attempt()

    with pytest.raises(TypeError, match="cannot be changed"):
        row.task.attempt_set.update(error="eve")
    with pytest.raises(TypeError, match="deleted by age"):
        row.task.attempt_set.all().delete()


@ledgers
def test_a_fixture_is_loaded_over_what_is_there(make: Callable[[], Any], column: str) -> None:
    row = make()
    (reported,) = serializers.deserialize("python", serializers.serialize("python", [row]))
    setattr(reported.object, column, "ann")

    reported.save()

    assert getattr(rows(row).get(), column) == "ann"


def test_a_row_cannot_be_inserted_twice() -> None:
    row = event()
    row._state.adding = True

    with pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


def test_attempts_go_with_their_task() -> None:
    row = attempt()

    row.task.delete()

    assert not TaskAttempt.objects.exists()
