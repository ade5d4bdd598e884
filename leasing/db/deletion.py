"""Deleting old rows, which rows of other apps may refer to.

What somebody protects stays, and keeps nothing else: neither the other rows of its batch, nor
those behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.db import IntegrityError, models, transaction
from django.db.models import Case, Exists, OuterRef, Value, When
from django.db.models.deletion import get_candidate_relations_to_delete

from leasing.db.dialects import lock

Rows = TypeVar("Rows", bound="models.QuerySet[Any, Any]")


def unprotected(rows: Rows) -> Rows:
    """Return the part of ``rows`` that no row refers to under PROTECT or RESTRICT."""
    for protector in _protectors(rows.model):
        rows = rows.exclude(protector)
    return rows


def is_protected(model: type[models.Model]) -> Case:
    """True of a row that another refers to under PROTECT or RESTRICT."""
    protected = [When(protector, then=Value(True)) for protector in _protectors(model)]
    return Case(*protected, default=Value(False))


def _protectors(model: type[models.Model]) -> Iterator[Exists]:
    relations: Any = get_candidate_relations_to_delete(model._meta)
    for relation in relations:
        field = relation.field
        if field.remote_field.on_delete in (models.PROTECT, models.RESTRICT):
            key = OuterRef(field.target_field.attname)
            yield Exists(relation.related_model._base_manager.filter(**{field.name: key}))


def delete_batch(
    rows: models.QuerySet[Any],
    limit: int,
    delete: Callable[[list[Any]], int],
    *,
    skip_locked: bool = True,
) -> tuple[int, list[Any]]:
    """Lock the first of ``rows``, and delete them by their keys, in a transaction. Returns how many
    that were, and the rows.

    When the database refuses, for what ``unprotected`` does not see (a row that refers to one that
    would go too, a constraint of somebody's own), all are deleted but those it refuses.

    Args:
        rows: The rows, in the order in which they are deleted.
        limit: The number of rows, at most.
        delete: Deletes the rows with these keys, and returns how many.
        skip_locked: True to leave out rows that others have locked, rather than wait for them.
    """
    found: list[Any] = []
    try:
        with transaction.atomic(using=rows.db):
            found += lock(rows, skip_locked=skip_locked)[:limit]
            return delete([row.pk for row in found]), found
    except IntegrityError:
        if len(found) == 1:
            return 0, found
    keys = [row.pk for row in found]
    half = len(keys) // 2
    deleted = 0
    for part in (keys[:half], keys[half:]):
        mine = rows.filter(pk__in=part)
        deleted += delete_batch(mine, len(part), delete, skip_locked=skip_locked)[0]
    return deleted, found


def delete_all(rows: models.QuerySet[Any], batch: int, delete: Callable[[list[Any]], int]) -> int:
    """``delete_batch``, over again past what cannot be deleted, in the order of the keys: all that
    nobody protects. Other arguments are those of ``delete_batch``. Returns how many were deleted.

    Args:
        batch: The number of rows in one transaction.
    """
    rows = unprotected(rows).only("pk").order_by("pk")
    deleted, last = 0, 0
    while True:
        gone, found = delete_batch(rows.filter(pk__gt=last), batch, delete)
        deleted += gone
        if len(found) < batch:
            return deleted
        last = found[-1].pk


def delete_up_to(rows: models.QuerySet[Any], limit: int, delete: Callable[[list[Any]], int]) -> int:
    """``delete_batch``, over again past what cannot be deleted. Arguments are those of
    ``delete_batch``. Returns how many were: ``limit``, or as many as can be."""
    deleted, seen = 0, set[Any]()
    while True:
        asked = limit - deleted
        gone, found = delete_batch(rows.exclude(pk__in=seen), asked, delete)
        deleted += gone
        if gone == asked or len(found) < asked:
            return deleted
        seen |= {row.pk for row in found}
