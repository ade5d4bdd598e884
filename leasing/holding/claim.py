"""Rows that were taken together."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakValueDictionary

from leasing.db.dialects import after_commit, in_transaction
from leasing.exceptions import LeaseLost
from leasing.holding.interrupt import Interrupt
from leasing.holding.term import RELEASE, Term, confirm_all, detach_all, keep_all, leave_all
from leasing.runtime.aio import in_thread
from leasing.runtime.events import happened

if TYPE_CHECKING:
    from leasing.models import Leasable
    from leasing.stores.rows import RowStore

Row = TypeVar("Row", bound="Leasable")

#: The claims whose blocks run, by ``id()``.
blocks: WeakValueDictionary[int, Claim[Any]] = WeakValueDictionary()


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
        self._terms: list[Term] = []
        self._by_grant: dict[uuid.UUID, Term] = {}

    @property
    def holds(self) -> list[Term]:
        """The terms of the rows, in their order, while the block runs."""
        return list(self._terms)

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("These rows have been held already. Claim them again.")
        self._entered = True
        self._terms = terms = [self._store.term(row) for row in self]
        keep_all(terms)
        blocks[id(self)] = self
        happened("hold.begun", terms, inside=False)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        blocks.pop(id(self), None)
        terms = self._terms
        self._terms, self._by_grant = [], {}
        losses = self._release_together([term for term in terms if term.valid])
        for term in terms:
            try:
                term.end(error)  # of those that were lost before
            except LeaseLost as loss:
                losses[term.key] = loss
        happened("hold.ended", terms)
        if losses and error is None:
            raise next(losses[term.key] for term in terms if term.key in losses)

    def _release_together(self, terms: list[Term]) -> dict[Any, LeaseLost]:
        """Release what is held. Returns how those were lost that were, by their keys."""
        leave_all(terms, RELEASE)  # first: a renewal would find the row released
        try:
            losses = self._store.release_rows([term.held_row for term in terms])
        except Exception as failure:
            for term in terms:
                term.note_unreleased(failure)
            return {}
        confirm_all([term for term in terms if term.key not in losses])
        for term in terms:
            if term.key in losses:
                term.refuse(losses[term.key].reason)
        return losses

    def _term_under(self, grant_id: uuid.UUID | None) -> Term | None:
        """Return the term of the row with this grant, if the block has it."""
        if not self._by_grant:
            self._by_grant = {term.grant_id: term for term in self._terms}
        return self._by_grant.get(cast("uuid.UUID", grant_id))

    async def __aenter__(self) -> Self:
        """As ``with``; in addition the body is cancelled when any of the rows is lost."""
        self.__enter__()
        self._interrupt = interrupt = Interrupt()
        for term in self._terms:
            term.interrupt_by(interrupt)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        interrupt, self._interrupt = self._interrupt, None
        terms = self._terms
        for term in terms:
            term.interrupt = None
        ours = interrupt is not None and interrupt.explains(error)
        await in_thread(self.__exit__, kind, error, trace)
        if ours:
            lost = next(term for term in terms if term.is_lost)
            raise LeaseLost(lost.resource, lost.reason) from error

    def give_back(self) -> None:
        """Release rows for which there was never a block."""
        self._store.release_rows(self)

    def ensure(self) -> None:
        """Raise LeaseLost unless every row in the block is surely still held."""
        for term in self._terms:
            if term.is_kept:
                term.ensure()


@contextmanager
def ending(using: str, rows: Iterable[Row]) -> Iterator[list[Row]]:
    """A block in which the grants of ``rows`` are ended by their holder: they leave the blocks
    of claims in which they are, before the write, since a renewal may be under way that would
    take their end for a loss. Those that are put into the list that it yields stay, as all do if
    it fails, or is rolled back later."""
    standing: list[Row] = []
    claims = list(blocks.values())
    trusted = {
        term: term.trusted_until
        for row in (rows if claims else ())
        for claim in claims
        if (term := claim._term_under(row.grant_id)) is not None and term.is_kept
    }
    detach_all([*trusted])
    staying: Collection[Term] = trusted
    try:
        yield standing
        kept = {row.grant_id for row in standing}
        ended = [term for term in trusted if term.grant_id not in kept]
        if ended and in_transaction(using):
            after_commit(using, partial(detach_all, ended))
        else:
            staying = [term for term in trusted if term.grant_id in kept]
    finally:
        for term in staying:
            term.resume(trusted[term])
