"""The database that rows are in: one place decides.

An explicit ``using`` counts first. Otherwise our own models are where the setting DATABASE says,
for reads too: a replica may be seconds behind, and leases are judged by what was written last. The
rows of users' models are leased where the project's routers have them written.

A verb on a row goes where Django's ``save()`` would write it: where one of ours was read, and where
the routers' ``db_for_write`` says of another. A router is believed, as ``save()`` believes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from typing import Any, Self, TypeVar

from django.db import models, router

from leasing.conf import leasing_settings

#: The labels of the apps of this distribution.
OWN_APPS = ("leasing", "leasing_tasks")

NOTHING: Mapping[str, Any] = {}

Row = TypeVar("Row", bound=models.Model)


class RoutedQuerySet(models.QuerySet[Row]):
    """Rows of one of our models, or of a model that can be leased."""

    #: The verbs of this class that a manager calls on rows that it keeps: they narrow copies, and
    #: read nothing of the queryset itself.
    kept_for: frozenset[str] = frozenset()
    #: True of rows that are kept.
    is_kept = False

    @property
    def db(self) -> str:
        chosen: str | None = self._db  # type: ignore[attr-defined]
        if chosen is not None:
            return chosen
        return where_ours_are(self._hints) if is_ours(self.model) else super().db  # type: ignore[attr-defined]

    def home(self, row: Row | None = None) -> Self:
        """Return these rows in the database that they, or ``row`` of them, are written to."""
        using = self._db or _written_to(self.model, row, self._hints)  # type: ignore[attr-defined]
        if self._db == using:  # type: ignore[attr-defined]
            return self
        if self.is_kept:
            rows: Self = kept_rows(type(self), self.model, using)
            return rows
        if _is_fresh(self):
            # Whatever narrows rows narrows a copy of their query, so two may share it.
            return type(self)(self.model, self.query, using, self._hints)  # type: ignore[attr-defined]
        return self.using(using)


@cache
def kept_rows(kind: type[Any], model: type[models.Model], using: str | None) -> Any:
    """Return all rows of ``model``, in the database ``using``: one queryset for all calls of the
    verbs in ``kept_for``. To make another for each takes as long as a quarter of a verb."""
    rows = kind(model, using=using)
    rows.is_kept = True
    return rows


def _as_manager(kind: Any) -> Any:
    """``as_manager`` of Django's, which calls the verbs in ``kept_for`` on rows that are kept."""
    base: Any = models.Manager
    made = base.from_queryset(kind)
    for name in _kept_verbs(kind):
        setattr(made, name, _on_kept_rows(name, getattr(kind, name)))
    manager = made()
    manager._built_with_asmanager = True
    return manager


# Type checkers know the manager by Django's own method, and take it from there.
RoutedQuerySet.as_manager = classmethod(_as_manager)  # type: ignore[method-assign, assignment]


def _kept_verbs(kind: Any) -> Iterator[str]:
    """The verbs in ``kept_for``, but for those that a subclass has replaced: they may read rows of
    the queryset, which would remember them."""
    for name in kind.kept_for:
        found = next(each for each in kind.__mro__ if {name, "kept_for"} & vars(each).keys())
        if "kept_for" in vars(found):
            yield name


def _on_kept_rows(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a manager that calls the verb called ``name``."""

    @wraps(method)
    def verb(manager: Any, *args: Any, **options: Any) -> Any:
        if manager._hints or type(manager).get_queryset is not models.Manager.get_queryset:
            rows = manager.get_queryset()  # of a relation, or as somebody has narrowed them
        else:
            rows = kept_rows(manager._queryset_class, manager.model, manager._db)
        return getattr(rows, name)(*args, **options)

    return verb


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


def _is_fresh(rows: Any) -> bool:
    """Return True if ``rows`` are as a manager makes them."""
    query = rows.query
    return is_plain(query) and not (
        query.select_related
        or query.deferred_loading[0]
        or rows._fields is not None
        or rows._prefetch_related_lookups
    )


class RoutedManager(models.Manager[Row]):
    """For our models that have no queryset of their own."""

    def get_queryset(self) -> RoutedQuerySet[Row]:
        return RoutedQuerySet(self.model, using=self._db, hints=self._hints)  # type: ignore[attr-defined]


def is_ours(model: type[models.Model]) -> bool:
    """Return True if ``model`` is of this distribution."""
    concrete: Any = model._meta.concrete_model
    return concrete._meta.app_label in OWN_APPS


def database_of(row: models.Model) -> str:
    """Return the database that ``row`` is written to."""
    return _written_to(type(row), row)


def _written_to(
    model: type[models.Model], row: models.Model | None, hints: Mapping[str, Any] = NOTHING
) -> str:
    if row is None:
        return where_ours_are(hints) if is_ours(model) else router.db_for_write(model, **hints)
    if is_ours(model):
        return row._state.db or leasing_settings.DATABASE
    return router.db_for_write(model, instance=row)


def where_ours_are(hints: Mapping[str, Any]) -> str:
    """The database of rows that belong to another, which is among ``hints``: next to it, wherever
    it was read, if it is ours too."""
    near = hints.get("instance")
    if near is not None and near._state.db and is_ours(type(near)):
        return str(near._state.db)
    return leasing_settings.DATABASE
