"""The term of a claimed task. Most tasks end long before it is renewed: what a renewal needs is
filled in for those that last."""

from __future__ import annotations

from typing import Any, Protocol

from leasing.holding.term import Term
from leasing.stores.rows import row_store
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask, resource_of


class Owner(Protocol):
    """The attempt that the task is held for. Its methods end at once."""

    def goes_on(self) -> bool:
        """Return True unless what carried it has ended."""

    def lose(self) -> object:
        """The task is lost."""

    def cancel(self, by: str) -> object:
        """``by`` asked for the task to be cancelled."""


class ClaimedHold(Term):
    """Holds ``claimed`` for its ``owner``, from ``keep`` to its end."""

    is_prompt = True

    def __init__(self, claimed: ClaimedTask, owner: Owner) -> None:
        self._claimed = claimed
        self._owner: Owner | None = owner

    def __getattr__(self, name: str) -> Any:
        """Fill in what the store answered, at the first look at any of it."""
        if name.startswith("_") or "store" in self.__dict__:
            raise AttributeError(name, name=name, obj=self)
        claimed, term = self._claimed, self._claimed.term
        super().__init__(
            claimed.id,
            claimed.grant_id,
            claimed.fencing_token,
            term.holder,
            resource_of(claimed.id),
            term.seconds,
            term.granted_until - term.sent_at,
            term.expires_at,
            term.sent_at,
            store=row_store(Task, term.using),
        )
        return getattr(self, name)

    @property
    def granted_until(self) -> float:
        return self._claimed.term.granted_until

    @property
    def held_row(self) -> Task:
        return self._claimed.task

    def goes_on(self) -> bool:
        owner = self._owner  # read once, as below: ``drop_all`` may drop it meanwhile
        return owner is None or owner.goes_on()

    def drop_callbacks(self) -> None:
        self._owner = None

    def _tell_lost(self) -> None:
        owner = self._owner
        if owner is not None:
            owner.lose()

    def _tell_asked(self) -> None:
        owner = self._owner
        if owner is not None:
            owner.cancel(self.yield_to)
