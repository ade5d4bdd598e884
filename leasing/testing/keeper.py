"""The clocks of leases, controlled by a test. See ``leasing.testing``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from django.db.models import Field
from django.db.models.expressions import DatabaseDefault

from leasing.conf import leasing_settings
from leasing.db.dialects import in_transaction
from leasing.functions import DbNow
from leasing.holding.keeper import Keeper, keeper
from leasing.runtime import aio
from leasing.runtime import clock as clocks
from leasing.runtime.aio import in_thread
from leasing.stores.memory import clear_all

#: The least number of seconds between two steps.
STEP = 0.01


class ManualKeeper:
    """The keeper and the clocks of leases, moved by a test. Yielded by ``manual_keeper()``."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._started = clocks.system_clock(), datetime.now(UTC)
        self._stopped_after: float | None = None
        #: Seconds by which the test has advanced the clocks.
        self.passed = 0.0
        #: True blocks all renewals, as if the process were suspended or the network cut.
        self.frozen = False

    def stop(self) -> None:
        """Stop the clocks; only ``advance`` and ``suspend`` move them."""
        if self._stopped_after is None:
            self._stopped_after = clocks.system_clock() - self._started[0]

    def advance(self, seconds: float) -> None:
        """Advance the clocks by ``seconds``. Each hold is renewed when it is due, unless
        ``frozen``. Losses are reported at their moment, before this returns."""
        end = self.passed + seconds
        while (moment := max(self._next_moment(), self.passed + STEP)) < end:
            self.passed = moment
            self.step()
        self.passed = end
        self.step()

    def suspend(self, seconds: float) -> None:
        """Advance the clocks by ``seconds`` in which nothing of this process runs, as if it were
        suspended: losses are found afterwards."""
        self.passed += seconds

    def step(self) -> None:
        """Do what the keeper would do now: report losses, and renew what is due."""
        self._keeper.declare_lost()
        if not self.frozen:
            self._keeper.renew_due()
        self.write_notes()

    def renew(self) -> None:
        """Renew every hold now, due or not: those that were revoked or taken are lost."""
        for hold in self._keeper.holds:
            hold.due_at = self.seconds
        self._keeper.renew_due()
        self.write_notes()

    async def aadvance(self, seconds: float) -> None:
        """``advance``, for async tests."""
        await in_thread(self.advance, seconds)

    async def astep(self) -> None:
        """``step``, for async tests."""
        await in_thread(self.step)

    async def arenew(self) -> None:
        """``renew``, for async tests."""
        await in_thread(self.renew)

    def write_notes(self) -> None:
        """Write what waits for the ledger; inside a transaction it goes on waiting, as a
        rollback must not erase it."""
        notes = self._keeper.take_notes()
        if notes and in_transaction(leasing_settings.DATABASE):
            for note in notes:
                self._keeper.soon(note)
            return
        for note in notes:
            note()

    def _next_moment(self) -> float:
        """Return the moment of the keeper's next work, in seconds that have ``passed`` then."""
        moments = [hold.trusted_until for hold in self._keeper.holds]
        if not self.frozen:
            moments += [hold.due_at for hold in self._keeper.holds]
        return self.passed + min(moments, default=float("inf")) - self.seconds

    # In place of the clocks

    @property
    def seconds(self) -> float:
        """The holder's clock."""
        return self._started[0] + self._elapsed

    @property
    def now(self) -> datetime:
        """The database's clock; while that goes on, as this machine knows it."""
        return self._started[1] + timedelta(seconds=self._elapsed)

    @property
    def stopped_at(self) -> datetime | None:
        return None if self._stopped_after is None else self.now

    @property
    def _elapsed(self) -> float:
        if self._stopped_after is not None:
            return self._stopped_after + self.passed
        return clocks.system_clock() - self._started[0] + self.passed

    def pause(self, resource: str, seconds: float) -> float:
        """Advance the clocks by ``seconds`` in place of a wait. Return 0 or, if this process holds
        ``resource`` and may release it, the seconds to wait really."""
        self.advance(seconds)
        ours = resource in (term.resource for term in self._keeper.holds)
        return seconds if ours else 0.0


@contextmanager
def manual_keeper(*, stopped: bool = True) -> Iterator[ManualKeeper]:
    """Take the time of leases into your hands while the block runs: no thread renews or
    watches, and the clocks stand still, or with ``stopped=False`` go on by themselves until
    ``stop()``. Inside another such block it gives that one's.

    What is still held at the end is forgotten.
    """
    if isinstance(clocks.stand_in, ManualKeeper):
        if stopped:
            clocks.stand_in.stop()
        yield clocks.stand_in
        return
    with keeper.by_hand(), _defaults_by_these_clocks():
        manual = ManualKeeper(keeper)
        if stopped:
            manual.stop()
        clocks.stand_in, aio.on_callers_thread = manual, True
        try:
            yield manual
        finally:
            clocks.stand_in, aio.on_callers_thread = None, False
            clear_all()


@contextmanager
def _defaults_by_these_clocks() -> Iterator[None]:
    """Send the expression where a column's default is the database's clock: the database would fill
    in its real time."""
    plain: Any = Field.pre_save

    def pre_save(field: Any, instance: Any, add: bool) -> Any:
        value = plain(field, instance, add)
        if isinstance(value, DatabaseDefault):
            (default,) = value.get_source_expressions()
            return default if isinstance(default, DbNow) else value
        return value

    with patch.object(Field, "pre_save", pre_save):
        yield
