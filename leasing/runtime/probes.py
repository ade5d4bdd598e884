"""Probes: measurements for metrics and tests. (Signals report events; the counters of each are
called by a probe, its ``counts``.)

A probe is false while nothing is connected to it, and then nothing is measured for it:

    acquiring    model, outcome, seconds: the outcome and the duration of an acquire
    renewing     a ``Round``: a request of the keeper, or of a hold that renews itself
    comparing    seconds by which the wall clock of this host is ahead of the database's
    leading      a change of a leadership in this process: "elected", "lost" or "left"
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, NamedTuple

from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log

Receiver = Callable[..., object]


class Probe:
    """Calls the connected functions with a measurement. One that raises is logged; the others are
    called."""

    __slots__ = ("_receivers",)

    def __init__(self) -> None:
        self._receivers: tuple[Receiver, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._receivers)

    def connect(self, receiver: Receiver) -> None:
        """Call ``receiver`` from now on."""
        if receiver not in self._receivers:
            self._receivers = (*self._receivers, receiver)

    def disconnect(self, receiver: Receiver) -> None:
        """Stop calling ``receiver``."""
        self._receivers = tuple(each for each in self._receivers if each != receiver)

    def __call__(self, *measured: Any) -> None:
        for receiver in self._receivers:
            try:
                receiver(*measured)
            except Exception:
                log.metrics_failed(exc_info=True)


class Round(NamedTuple):
    """One request that renews leases."""

    #: The ``leasing.store.Store`` of the leases.
    store: Any
    #: Seconds that it took.
    took: float
    renewed: int
    lost: int
    #: Neither: somebody else had them locked.
    skipped: int
    #: All of them, where there was no answer.
    failed: int
    #: Of those that were renewed: the part of its ttl for which each would have been believed
    #: still, as the answer came.
    slack: list[float]


acquiring = Probe()
renewing = Probe()
comparing = Probe()
leading = Probe()


def measure_renewal(
    store: Any, holds: Collection[Any], answer: Any | None, took: float, now: float
) -> None:
    """Measure a request that renewed holds, before its answer is applied to them.

    Args:
        store: The store that was asked.
        holds: The holds whose renewal was asked for.
        answer: A ``leasing.store.Renewals``; None: there was none.
        took: Seconds that the request took.
        now: The moment of the answer on the holder's clock.
    """
    if answer is None:
        renewing(Round(store, took, 0, 0, 0, len(holds), []))
        return
    renewed = [hold for hold in holds if hold.key in answer.renewed]
    lost = sum(hold.key in answer.lost for hold in holds)
    slack = [max(0.0, hold.trusted_until - now) / hold.ttl for hold in renewed if hold.is_kept]
    skipped = len(holds) - len(renewed) - lost
    renewing(Round(store, took, len(renewed), lost, skipped, 0, slack))
    for renewal in answer.renewed.values():
        there = renewal.expires_at.timestamp() - renewal.remaining
        compare(there, took)
        break


def compare(there: float, took: float) -> None:
    """Measure how far this host's clock is ahead of the database's, which read ``there`` seconds
    since 1970: within half of the time that the request ``took``, which has just been answered."""
    if comparing:
        comparing(time.time() - took / 2 - there)


def compare_answer(now: datetime, sent_at: float) -> None:
    """``compare``, for the answer ``now`` to a request that was sent at ``sent_at`` on the
    holder's clock."""
    compare(now.timestamp(), clock() - sent_at)
