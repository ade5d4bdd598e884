"""The hold on one of many rows that were claimed together. Most are given back soon: the grant that
a renewal needs is made for those that last."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from leasing.holding.held_grant import HeldGrant
from leasing.holding.keeper import Keeper, keeper
from leasing.store import Grant
from leasing.stores.rows import RowStore, grant_of


class RowHold(HeldGrant):
    """Holds ``row``, which was just granted, from ``keep`` to its end."""

    _keeper: Keeper = keeper
    _made: Grant | None = None

    def __init__(self, store: RowStore, row: Any) -> None:
        self._store = store
        self.row = row
        # Whoever reads the row again may read the term of somebody else.
        self._grant_id = row.grant_id
        self._told = row.fencing_token, row.holder, row.expires_at
        self._granted_until: float = row.sent_at + (row.expires_at - row.now).total_seconds()

    @property
    def grant(self) -> Grant:
        if self._made is None:
            row = self.row
            token, holder, expires_at = self._told
            self._made = replace(
                grant_of(row),
                grant_id=self._grant_id,
                fencing_token=token,
                holder=holder,
                expires_at=expires_at,
                remaining=self._granted_until - row.sent_at,
            )
        return self._made

    @property
    def held_row(self) -> Any:
        """Return the row as ``Grant.held_row`` does."""
        row, granted = self.row, self._grant_id
        # Most often the same object, which takes less time to see than that two are equal.
        is_same = row.grant_id is granted or row.grant_id == granted
        if is_same and row.fencing_token == self._told[0]:
            return row
        return self.grant.held_row

    @property
    def granted_until(self) -> float:
        return self._granted_until

    @property
    def key(self) -> Any:
        return self.row.pk

    @property
    def grant_id(self) -> uuid.UUID:
        granted: uuid.UUID = self._grant_id
        return granted
