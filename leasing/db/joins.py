"""Rows that are chosen by other tables, and what of them is locked: the lease's own table alone.

A row of another table that somebody is changing would else keep rows from being claimed, and be
kept from changing; and the side of a join that may be missing can't be locked at all.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import FieldError
from django.db import connections, models
from django.db.models.constants import LOOKUP_SEP
from django.db.models.fields.related import ForeignObjectRel


def is_joined(rows: models.QuerySet[Any]) -> bool:
    """Return True if ``rows`` are not simply rows of their model's table."""
    query: Any = rows.query
    return len(_tables(query)) > 1 or query.distinct or query.group_by is not None


def refuse_repeated(rows: models.QuerySet[Any]) -> None:
    """Raise ValueError if ``rows``, which are to be acquired, may bring a row several times, or are
    told not to: the database locks no such rows."""
    query: Any = rows.query
    order = query.order_by or (query.get_meta().ordering if query.default_ordering else ())
    names = [by for by in order if isinstance(by, str)]
    if (
        query.distinct
        or any(map(_is_to_many, _tables(query)))
        or any(_leads_to_many(query, by) for by in names)
    ):
        raise ValueError(
            "Rows are acquired from one table, each once: choose them by a subquery, as in "
            f"{rows.model.__name__}.objects.filter(pk__in=chosen.values('pk')), and not by a join "
            "that may bring a row several times."
        )


def _tables(query: Any) -> list[Any]:
    # Joins that were found to be needless stay in the map, and are counted no more.
    return [table for alias, table in query.alias_map.items() if query.alias_refcount[alias]]


def _is_to_many(join: Any) -> bool:
    field: Any = getattr(join, "join_field", None)
    if isinstance(field, ForeignObjectRel):  # seen from the other side, as a generic relation is
        return bool(field.one_to_many or field.many_to_many or field.many_to_one)
    return field is not None and bool(field.one_to_many or field.many_to_many)


def _leads_to_many(query: Any, by: str) -> bool:
    try:
        path, *_ = query.names_to_path(by.lstrip("+-").split(LOOKUP_SEP), query.get_meta())
    except FieldError:  # by chance, or by what an extra() has named
        return False
    return any(step.m2m for step in path)


def lock_of(model: Any, using: str) -> tuple[str, ...]:
    """Arguments of ``select_for_update(of=...)`` that lock rows of ``model`` alone. Empty where
    these can't be told: all that is read is locked then."""
    # Django would name a schema there, which is refused.
    is_told = connections[using].features.has_select_for_update_of
    return ("self",) if is_told and '"."' not in model._meta.db_table else ()
