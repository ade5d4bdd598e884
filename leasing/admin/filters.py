"""Filters of lists in the admin, and the lookups that the address of a list may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from django.contrib.admin import ListFilter, SimpleListFilter, widgets
from django.db.models import Model, QuerySet
from django.http import HttpRequest

#: Lookups by which Django's own filters ask for the column that they filter.
_SAID_OF_COLUMNS: Final = (
    *("", "__exact", "__isnull", "__isempty", "__gte", "__lt"),
    *("__id__exact", "__pk__exact"),
)


class StateFilter(SimpleListFilter):
    """By a state that is no column: ``states`` has what chooses the rows of each."""

    title = parameter_name = "state"
    states: ClassVar[Mapping[str, Callable[[Any], Any]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state.capitalize()) for state in self.states]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any] | None:
        choose = self.states.get(self.value() or "")
        return choose(queryset) if choose else None


def offered_lookups(filters: Iterable[Any]) -> set[str]:
    """The lookups by which ``filters``, as a list has them, narrow it."""
    return {lookup for each in filters for lookup in _lookups_of(each)}


def is_limited_choice(model: type[Model], lookup: str, value: Any) -> bool:
    """Return True if a project's foreign key limits its choices to this lookup and value. The
    window in which they are chosen has both in its address.

    Args:
        model: The model that the foreign key refers to.
        lookup: The name of the filter in the address.
        value: Its value there.
    """
    limits = (each() if callable(each) else each for each in model._meta.related_fkey_lookups)
    return any(
        (lookup, value) in widgets.url_params_from_lookup_dict(each).items() for each in limits
    )


def _lookups_of(offered: Any) -> Iterator[str]:
    if isinstance(offered, type) and issubclass(offered, ListFilter):
        yield getattr(offered, "parameter_name", "")
        return
    column = offered[0] if isinstance(offered, list | tuple) else offered
    yield from (f"{column}{said}" for said in _SAID_OF_COLUMNS)
