"""Protected rows stay, and keep nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError

from leasing.db.deletion import delete_batch, delete_up_to, unprotected
from tests.press.models import Author, Report

pytestmark = pytest.mark.django_db

#: Those who cannot be deleted.
HELD = {"bob", "dora", "eve"}


@pytest.fixture(autouse=True)
def _authors() -> None:
    for name in ("ann", "bob", "carl", "dora", "eve", "fay"):
        author = Author.objects.create(name=name)
        if name in HELD:
            Report.objects.create(author=author)


def everyone() -> Any:
    return Author.objects.order_by("pk")


def names() -> list[str]:
    return [author.name for author in everyone()]


def delete(keys: list[Any]) -> int:
    return Author.objects.filter(pk__in=keys).delete()[0]


def test_what_a_row_protects_is_left_out() -> None:
    assert [author.name for author in unprotected(everyone())] == ["ann", "carl", "fay"]


def test_rows_that_nothing_can_protect_are_asked_for_as_they_are() -> None:
    assert str(unprotected(Report.objects.all()).query) == str(Report.objects.all().query)


def test_in_a_batch_all_are_deleted_but_those_that_are_refused() -> None:
    deleted, found = delete_batch(everyone(), 5, delete)

    assert (deleted, [author.name for author in found]) == (
        2,
        ["ann", "bob", "carl", "dora", "eve"],
    )
    assert names() == ["bob", "dora", "eve", "fay"]


@pytest.mark.parametrize(("limit", "gone"), [(1, 1), (2, 2), (3, 3), (4, 3), (10, 3)])
def test_as_many_are_deleted_as_were_asked_for_past_those_that_are_refused(
    limit: int, gone: int
) -> None:
    assert delete_up_to(everyone(), limit, delete) == gone
    assert len(names()) == 6 - gone


def test_where_nothing_is_refused_there_is_one_deletion() -> None:
    asked = []

    def note(keys: list[Any]) -> int:
        asked.append(len(keys))
        return delete(keys)

    assert delete_up_to(unprotected(everyone()), 2, note) == 2
    assert delete_up_to(unprotected(everyone()), 2, note) == 1
    assert asked == [2, 1]


def test_an_error_of_another_kind_is_raised() -> None:
    def fail(keys: list[Any]) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        delete_batch(everyone(), 5, fail)

    def refuse(keys: list[Any]) -> int:
        raise IntegrityError

    assert delete_batch(everyone(), 5, refuse)[0] == 0
