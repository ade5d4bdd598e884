"""The hold on a claimed task. Most tasks end long before it is renewed: the grant that a renewal
needs is made for those that last."""

from __future__ import annotations

from typing import Protocol

from leasing.holding.held_grant import HeldGrant
from leasing.holding.keeper import Keeper
from leasing.store import Grant
from tasks.execution.claimed_store import ClaimedStore, grant_of, store_in
from tasks.querysets.claimed import ClaimedTask


class Owner(Protocol):
    """The attempt that the task is held for. Its methods end at once."""

    def goes_on(self) -> bool:
        """Return True unless what carried it has ended."""

    def lose(self) -> object:
        """The task is lost."""

    def cancel(self, by: str) -> object:
        """``by`` asked for the task to be cancelled."""


class ClaimedHold(HeldGrant):
    """Holds ``claimed`` for its ``owner``, from ``keep`` to its end."""

    _are_prompt = True
    _made: Grant | None = None

    def __init__(self, claimed: ClaimedTask, owner: Owner, keeper: Keeper) -> None:
        self._claimed = claimed
        self._owner: Owner | None = owner
        self._keeper = keeper

    @property
    def store(self) -> ClaimedStore:
        return store_in(self._claimed.term.using)

    @property
    def grant(self) -> Grant:
        if self._made is None:
            self._made = grant_of(self._claimed)
        return self._made

    @property
    def granted_until(self) -> float:
        return self._claimed.term.granted_until

    @property
    def ttl(self) -> float:
        return self._claimed.term.seconds

    def goes_on(self) -> bool:
        owner = self._owner  # read once, as below: ``detach`` may drop it meanwhile
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
