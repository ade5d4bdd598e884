"""The database that rows are in: one place decides.

An explicit ``using`` counts first. Otherwise our own models are where the setting DATABASE says,
for reads too: a replica may be seconds behind, and leases are judged by what was written last. The
rows of users' models are leased where the project's routers have them written.

A verb on a row goes where Django's ``save()`` would write it: where one of ours was read, and where
the routers' ``db_for_write`` says of another. A router is believed, as ``save()`` believes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Self, TypeVar

from django.db import models, router

from leasing.conf import leasing_settings

#: The labels of the apps of this distribution.
OWN_APPS = ("leasing", "leasing_tasks")

NOTHING: Mapping[str, Any] = {}

Row = TypeVar("Row", bound=models.Model)


class RoutedQuerySet(models.QuerySet[Row]):
    """Rows of one of our models, or of a model that can be leased."""

    @property
    def db(self) -> str:
        chosen: str | None = self._db  # type: ignore[attr-defined]
        if chosen is not None:
            return chosen
        return written_to(self.model, None, self._hints) if is_ours(self.model) else super().db  # type: ignore[attr-defined]

    def home(self, row: Row | None = None) -> Self:
        """Return these rows in the database that they, or ``row`` of them, are written to."""
        using = self._db or written_to(self.model, row, self._hints)  # type: ignore[attr-defined]
        return self if self._db == using else self.using(using)  # type: ignore[attr-defined]


def is_plain(query: Any) -> bool:
    """Return True if ``query`` is of all rows of a model, in no order of its own."""
    return not (
        query.where
        or query.order_by
        or query.extra_order_by
        or query.annotations
        or query.extra
        or query.distinct
        or query.combinator
        or query.is_sliced
    )


class RoutedManager(models.Manager[Row]):
    """For our models that have no queryset of their own."""

    def get_queryset(self) -> RoutedQuerySet[Row]:
        return RoutedQuerySet(self.model, using=self._db, hints=self._hints)  # type: ignore[attr-defined]


@cache
def is_ours(model: Any) -> bool:
    """Return True if ``model`` is of this distribution."""
    concrete: Any = model._meta.concrete_model
    return concrete._meta.app_label in OWN_APPS


def database_of(row: models.Model) -> str:
    """Return the database that ``row`` is written to."""
    return written_to(type(row), row)


def written_to(
    model: type[models.Model], row: models.Model | None, hints: Mapping[str, Any] = NOTHING
) -> str:
    """Return the database that ``row`` of ``model`` is written to, or without one its rows.

    Rows of ours that belong to another, which is among ``hints``, are next to it, wherever it was
    read, if it is ours too.
    """
    if not is_ours(model):
        about = hints if row is None else {"instance": row}
        return router.db_for_write(model, **about)
    near = hints.get("instance") if row is None else row
    if near is not None and near._state.db and is_ours(type(near)):  # type: ignore[arg-type]
        return str(near._state.db)
    return leasing_settings.DATABASE
