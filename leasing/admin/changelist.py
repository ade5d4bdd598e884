"""Lists of the admin that are bounded.

Django's lists page by OFFSET and find by any column. Here no list pages or counts further than
COUNT_CAP rows, and what no index finds is looked for among the newest REACH rows alone. The
operator's lists, which page by key, go on where these end; each says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from leasing.web.counts import COUNT_CAP, Capped, capped_count

if TYPE_CHECKING:
    from leasing.admin.base import ReadOnlyAdmin

#: Among how many of the newest rows a list looks for what no index finds.
REACH = 50_000


def floor_of(rows: QuerySet[Any]) -> int:
    """The id above which the newest REACH of ``rows`` lie; 0 when they are all, or their keys
    are no numbers."""
    newest = rows.order_by("-pk").values_list("pk", flat=True).first()
    return max(0, newest - REACH) if isinstance(newest, int) else 0


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """A paginator that never counts a whole table, and skips no further than it counts."""

    @cached_property
    def counted(self) -> Capped:
        rows = self.object_list
        return capped_count(rows) if isinstance(rows, QuerySet) else Capped(len(rows))

    @cached_property
    def count(self) -> int:
        return min(self.counted.value, COUNT_CAP)

    @property
    def is_capped(self) -> bool:
        """Return True if there are more rows than it counted."""
        return self.counted.value > COUNT_CAP


class BoundedChangeList(ChangeList):
    """A list that looks no further than REACH for what no index finds."""

    model_admin: ReadOnlyAdmin
    #: The id below which nothing was looked at.
    floor = 0

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        rows = super().get_queryset(request, exclude_parameters)
        site = self.model_admin
        given = self.get_filters_params()
        is_scan = bool(given) and not any(self._is_served(*param) for param in given.items())
        if is_scan or self.query and site.recent_search:
            self.floor = floor_of(site.rows())
        return rows.filter(pk__gt=self.floor) if is_scan and self.floor else rows

    def get_ordering_field(self, field_name: Any) -> Any:
        """The column behind one of the list, if the list may be sorted by it: Django asks
        ``sortable_by`` for what it offers, not for what an address wants."""
        return (
            super().get_ordering_field(field_name)
            if field_name in (self.sortable_by or ())
            else None
        )

    def _is_served(self, name: str, value: Any) -> bool:
        """Return True if an index finds the rows that match this filter; the other filters narrow
        them."""
        values = value if isinstance(value, list) else [value]
        served = self.model_admin.indexed_filters
        return name in served or all(f"{name}={each}" in served for each in values)
