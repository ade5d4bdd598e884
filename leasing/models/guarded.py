"""Rows of which saving may not change everything."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from leasing.querysets.ledger import refuse_change, refuse_deletion


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
