"""Rows that were taken together."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakValueDictionary

from leasing.db.dialects import after_commit, in_transaction
from leasing.exceptions import LeaseLost
from leasing.hold import Hold
from leasing.hold.held_grant import HeldGrant, abandon_all, keep_all
from leasing.hold.interrupt import Interrupt
from leasing.runtime.aio import in_thread
from leasing.runtime.tracepoints import points
from leasing.stores.rows import RowStore, grant_of

if TYPE_CHECKING:
    from leasing.models import Leasable

Row = TypeVar("Row", bound="Leasable")
Verb = TypeVar("Verb", bound=Callable[..., Any])

#: Holds of the blocks that run, by grant_id.
_in_blocks: WeakValueDictionary[uuid.UUID, HeldGrant] = WeakValueDictionary()


class Claim(list[Row]):
    """A list of rows that are leased to this process, and a block, plain or async, in which
    they stay so.

    In the block each row's lease is renewed; at its end all are released. One that was lost
    raises LeaseLost there, after the others were released, unless the block already failed. What
    the holder ends itself (a task that it completes, fails or gives back, a row that it
    releases) leaves the block.
    """

    def __init__(self, rows: list[Row], store: RowStore) -> None:
        super().__init__(rows)
        self._store = store
        self._entered = False
        self._interrupt: Interrupt | None = None
        #: The holds of the rows, in their order, while the block runs.
        self.holds: list[Hold] = []

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("These rows have been held already. Claim them again.")
        self._entered = True
        self.holds = [Hold(self._store) for _ in self]
        grants = map(grant_of, self)
        kept = [hold._begin_term(grant) for hold, grant in zip(self.holds, grants, strict=True)]
        keep_all(kept)
        for held in kept:
            _in_blocks[held.grant.grant_id] = held
        if points.tracer is not None:
            for held in kept:
                held.follow(inside=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        holds, self.holds = self.holds, []
        terms = [hold._held for hold in holds]
        for held in terms:
            _in_blocks.pop(held.grant.grant_id, None)
        losses = self._release_together([held for held in terms if held.valid])
        for hold, held in zip(holds, terms, strict=True):
            if not (held.is_kept or held.trace):
                continue  # it is given back, and nobody follows it
            try:
                hold.__exit__(kind, error, trace)  # of those that were lost before
            except LeaseLost as loss:
                losses[held.key] = loss
        if losses and error is None:
            raise next(losses[held.key] for held in terms if held.key in losses)

    def _release_together(self, kept: list[HeldGrant]) -> dict[Any, LeaseLost]:
        """Give back what is held. Returns how those were lost that were, by their keys."""
        abandon_all(kept)  # first: a renewal would find the row released
        try:
            losses = self._store.release_many([held.grant for held in kept])
        except Exception as failure:
            for held in kept:
                held.note_unreleased(failure)
            return {}
        for held in kept:
            if held.key in losses:
                held.lose_late(losses[held.key].reason)
        return losses

    async def __aenter__(self) -> Self:
        """As ``with``; in addition the body is cancelled when any of the rows is lost."""
        self.__enter__()
        self._interrupt = interrupt = Interrupt()
        for hold in self.holds:
            hold._held.interrupt = interrupt
        if not all(hold.valid for hold in self.holds):
            interrupt()  # one was lost before it could tell
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupt, self._interrupt = self._interrupt, None
        holds = self.holds
        for hold in holds:
            hold._held.interrupt = None
        ours = interrupt is not None and interrupt.explains(error)
        await in_thread(self.__exit__, kind, error, trace)
        if ours:
            raise next(filter(None, map(_loss_of, holds))) from error

    def give_back(self) -> None:
        """Release rows for which there was never a block."""
        self._store.release_many([grant_of(row) for row in self])

    def ensure(self) -> None:
        """Raise LeaseLost unless every row in the block is surely still held."""
        for hold in self.holds:
            if hold._held.is_kept:
                hold.ensure()


@contextmanager
def ending(using: str, rows: Iterable[Row]) -> Iterator[list[Row]]:
    """A block in which the grants of ``rows`` are ended by their holder: they leave the blocks
    of claims in which they are, before the write, since a renewal may be under way that would
    take their end for a loss. Those that are put into the list that it yields stay, as all do if
    it fails, or is rolled back later."""
    standing: list[Row] = []
    if not _in_blocks:
        yield standing
        return
    left = [
        (held, held.trusted_until)
        for row in rows
        if (held := _in_blocks.get(cast("uuid.UUID", row.grant_id))) is not None and held.is_kept
    ]
    abandon_all([held for held, _ in left])
    try:
        yield standing
    except BaseException:
        _stay(left)
        raise
    kept = {row.grant_id for row in standing}
    _stay([(held, trusted) for held, trusted in left if held.grant_id in kept])
    ended = [(held, trusted) for held, trusted in left if held.grant_id not in kept]
    if ended and in_transaction(using):
        _stay(ended)
        after_commit(using, lambda: abandon_all([held for held, _ in ended]))


def _stay(left: Iterable[tuple[HeldGrant, float]]) -> None:
    for held, trusted_until in left:
        held.resume(trusted_until)


def leaves_block(verb: Verb) -> Verb:
    """Make the row that is the first argument of ``verb`` leave its block, unless the verb
    raises."""

    @wraps(verb)
    def leaving(rows: Any, row: Any, *args: Any, **options: Any) -> Any:
        if not _in_blocks:
            return verb(rows, row, *args, **options)
        with ending(rows.home().db, [row]):
            return verb(rows, row, *args, **options)

    return cast("Verb", leaving)


def _loss_of(hold: Hold) -> LeaseLost | None:
    """Return the loss of ``hold``; None when it was not lost."""
    try:
        hold.ensure()
    except LeaseLost as loss:
        return loss if hold.lost else None
    return None
