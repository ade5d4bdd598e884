"""Rows that were taken together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from leasing.aio import in_thread
from leasing.exceptions import LeaseLost
from leasing.hold import Hold
from leasing.rowstore import RowStore, grant_of

if TYPE_CHECKING:
    from leasing.models import Leasable

Row = TypeVar("Row", bound="Leasable")


class Claim(list[Row]):
    """A list of rows that are leased to this process, and a block in which they stay so.

    In the block each row's lease is renewed; at its end all are released. One that was lost
    raises LeaseLost there, after the others were released, unless the block already failed.
    """

    def __init__(self, rows: list[Row], store: RowStore) -> None:
        super().__init__(rows)
        self._store = store
        self._entered = False
        #: The holds of the rows, in their order, while the block runs.
        self.holds: list[Hold] = []

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("These rows were held already: their terms are used up.")
        self._entered = True
        for row in self:
            hold = Hold(self._store)
            hold.adopt(grant_of(row))
            self.holds.append(hold)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        losses: list[LeaseLost] = []
        holds, self.holds = self.holds, []
        for hold in holds:
            try:
                hold.__exit__(kind, error, trace)
            except LeaseLost as loss:
                losses.append(loss)
        if losses:
            raise losses[0]

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await in_thread(self.__exit__, kind, error, trace)

    def ensure(self) -> None:
        """Raise LeaseLost unless every row is surely still held."""
        for hold in self.holds:
            hold.ensure()
