"""Rows as Django saves them, but for the columns that verbs alone write."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.exceptions import FieldError

from leasing.db.routing import RoutedQuerySet

if TYPE_CHECKING:
    from leasing.models import Leasable

#: Columns that only the verbs write.
LEASE_FIELDS = frozenset(
    {
        "holder",
        "grant_id",
        "fencing_token",
        "grants",
        "ttl",
        "acquired_at",
        "renewed_at",
        "renewals",
        "released_at",
        "expires_at",
    }
)

#: Of these, what stays as it was granted while the grant lasts.
GRANTED_FIELDS = frozenset({"holder", "grant_id", "fencing_token", "grants", "ttl", "acquired_at"})

Row = TypeVar("Row", bound="Leasable")


class GuardedRows(RoutedQuerySet[Row]):
    """Leasable rows that are saved in bulk."""

    def bulk_update(self, objs: Iterable[Row], fields: Iterable[str], *args: Any, **kw: Any) -> int:
        """As Django's, for every column but those that verbs write."""
        fields = list(fields)
        refuse_verb_columns(self.model, fields)
        return super().bulk_update(objs, fields, *args, **kw)

    def bulk_create(
        self,
        objs: Iterable[Row],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[Row]:
        """As Django's; where it updates, for every column but those that verbs write."""
        refuse_verb_columns(self.model, update_fields or ())
        objs = list(objs)
        for each in objs:
            if each._state.db is not None:
                each.begin_free()
        return super().bulk_create(
            objs, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
        )


def refuse_verb_columns(model: type[Leasable], fields: Iterable[str]) -> None:
    """Raise FieldError where ``fields``, which are to be written to stored rows, name a column
    that verbs alone write."""
    if taken := (model.verb_columns | model.state_columns).intersection(fields):
        raise FieldError(
            f"Only lease methods write {', '.join(sorted(taken))} of a stored "
            f"{model._meta.verbose_name}. A queryset's update() can, but skips their checks."
        )
