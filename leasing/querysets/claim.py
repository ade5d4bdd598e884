"""Rows that were taken together."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import ref

from leasing.db.dialects import after_commit, in_transaction
from leasing.exceptions import LeaseLost
from leasing.holding import Hold
from leasing.holding.held_grant import HeldGrant, abandon_all, keep_all, valid_of
from leasing.holding.interrupt import Interrupt
from leasing.querysets.row_hold import RowHold
from leasing.runtime.aio import in_thread
from leasing.runtime.events import happened
from leasing.stores.rows import RowStore

if TYPE_CHECKING:
    from leasing.models import Leasable

Row = TypeVar("Row", bound="Leasable")
Verb = TypeVar("Verb", bound=Callable[..., Any])

#: The claims whose blocks run, by ``id()``.
_blocks: dict[int, ref[Claim[Any]]] = {}


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
        self._held: list[RowHold] = []
        self._by_grant: dict[uuid.UUID, RowHold] = {}
        self._holds: list[Hold] = []

    @property
    def holds(self) -> list[Hold]:
        """The holds of the rows, in their order, while the block runs."""
        if len(self._holds) < len(self._held):
            self._holds = [Hold._of_term(self._store, held) for held in self._held]
        return self._holds

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("These rows have been held already. Claim them again.")
        self._entered = True
        store = self._store
        self._held = kept = [RowHold(store, row) for row in self]
        keep_all(kept)
        number = id(self)
        _blocks[number] = ref(self, lambda _: _blocks.pop(number, None))
        happened("hold.begun", kept, inside=False)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _blocks.pop(id(self), None)
        terms = self._held
        self._held, self._holds, self._by_grant = [], [], {}
        losses = self._release_together(valid_of(terms))
        for held in terms:
            if not held.is_kept:
                continue  # it is given back
            try:
                held.end(error)  # of those that were lost before
            except LeaseLost as loss:
                losses[held.key] = loss
        happened("hold.ended", terms)
        if losses and error is None:
            raise next(losses[held.key] for held in terms if held.key in losses)

    def _release_together(self, kept: list[RowHold]) -> dict[Any, LeaseLost]:
        """Give back what is held. Returns how those were lost that were, by their keys."""
        abandon_all(kept)  # first: a renewal would find the row released
        try:
            losses = self._store.release_rows([held.held_row for held in kept])
        except Exception as failure:
            for held in kept:
                held.note_unreleased(failure)
            return {}
        for held in kept if losses else ():
            if held.key in losses:
                held.lose_late(losses[held.key].reason)
        return losses

    def _held_under(self, grant_id: uuid.UUID | None) -> RowHold | None:
        """Return the hold of the row with this grant, if the block has it."""
        if not self._by_grant:
            self._by_grant = {held.grant_id: held for held in self._held}
        return self._by_grant.get(cast("uuid.UUID", grant_id))

    async def __aenter__(self) -> Self:
        """As ``with``; in addition the body is cancelled when any of the rows is lost."""
        self.__enter__()
        self._interrupt = interrupt = Interrupt()
        for held in self._held:
            held.interrupt = interrupt
        if not all(held.valid for held in self._held):
            interrupt()  # one was lost before it could tell
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        interrupt, self._interrupt = self._interrupt, None
        terms = self._held
        for held in terms:
            held.interrupt = None
        ours = interrupt is not None and interrupt.explains(error)
        await in_thread(self.__exit__, kind, error, trace)
        if ours:
            raise next(filter(None, map(_loss_of, terms))) from error

    def give_back(self) -> None:
        """Release rows for which there was never a block."""
        self._store.release_rows(self)

    def ensure(self) -> None:
        """Raise LeaseLost unless every row in the block is surely still held."""
        for held in self._held:
            if held.is_kept:
                held.ensure()


@contextmanager
def ending(using: str, rows: Iterable[Row]) -> Iterator[list[Row]]:
    """A block in which the grants of ``rows`` are ended by their holder: they leave the blocks
    of claims in which they are, before the write, since a renewal may be under way that would
    take their end for a loss. Those that are put into the list that it yields stay, as all do if
    it fails, or is rolled back later."""
    standing: list[Row] = []
    claims = [claim for block in list(_blocks.values()) if (claim := block()) is not None]
    if not claims:
        yield standing
        return
    left = [
        (held, held.trusted_until)
        for row in rows
        for claim in claims
        if (held := claim._held_under(row.grant_id)) is not None and held.is_kept
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
        if not _blocks:
            return verb(rows, row, *args, **options)
        with ending(rows.home().db, [row]):
            return verb(rows, row, *args, **options)

    return cast("Verb", leaving)


def _loss_of(held: HeldGrant) -> LeaseLost | None:
    """Return the loss of ``held``; None when it was not lost."""
    try:
        held.ensure()
    except LeaseLost as loss:
        return loss if held.is_lost else None
    return None
