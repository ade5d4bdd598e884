"""Rows of which saving may not change everything, and ledgers: their rows are added, and neither
changed nor deleted by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from django.db import models

from leasing.db.routing import RoutedQuerySet

Row = TypeVar("Row", bound=models.Model)


class Guarded(models.Model):
    """A row of which saving may not change everything, unless a fixture is loaded."""

    #: True of what is saved as a fixture has it.
    _is_fixture = False

    class Meta:
        abstract = True

    def _save_table(self, raw: bool = False, *args: Any, **options: Any) -> Any:
        self._is_fixture = raw
        return super()._save_table(raw, *args, **options)  # type: ignore[misc]


class Ledger(Guarded):
    """A record of an event: it is added, and never changed or deleted by hand."""

    class Meta:
        abstract = True

    def _do_update(self, *args: Any) -> Any:
        # Every way in which save() may update a row ends here.
        if not self._is_fixture:
            refuse_change(type(self))
        return super()._do_update(*args)

    def delete(self, *args: Any, **options: Any) -> NoReturn:
        refuse_deletion(type(self))


class LedgerQuerySet(RoutedQuerySet[Row]):
    """Rows of a ledger. What the package itself does to them has names of its own."""

    def update(self, **values: Any) -> NoReturn:
        """Raise TypeError: what happened stays as it was told."""
        refuse_change(self.model)

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> NoReturn:
        """Raise TypeError: what happened is forgotten by age alone."""
        refuse_deletion(self.model)

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def bulk_create(
        self,
        objs: Iterable[Row],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        *args: Any,
        **kw: Any,
    ) -> list[Row]:
        """As Django's, but for updates."""
        if update_conflicts:
            refuse_change(self.model)
        return super().bulk_create(objs, batch_size, ignore_conflicts, False, *args, **kw)

    def _note(self, **values: Any) -> int:
        """Write what was not known when these rows were added. Returns how many."""
        return super().update(**values)

    def _forget(self) -> int:
        """Delete these rows, which are old, or told of by others. Returns how many."""
        return super().delete()[0]


def refuse_change(model: type[models.Model]) -> NoReturn:
    raise TypeError(f"{_named(model)} cannot be changed.")


def refuse_deletion(model: type[models.Model]) -> NoReturn:
    raise TypeError(f"{_named(model)} can only be deleted by age.")


def _named(model: type[models.Model]) -> str:
    return str(model._meta.verbose_name_plural).capitalize()
