"""Compute how often a grant is renewed, and how long before its expiry trust in it ends."""

from __future__ import annotations

from leasing.conf import leasing_settings


def interval(ttl: float) -> float:
    """Seconds between renewals, for a ttl in seconds."""
    every = leasing_settings.RENEW_EVERY
    return ttl / 3 if every is None else min(every, ttl / 2)


def longest_pause(ttl: float) -> float:
    """Return the longest planned pause between two renewals."""
    return interval(ttl) * (1 + leasing_settings.JITTER)


def margin(ttl: float) -> float:
    """Seconds before the database's expiry at which trust ends, for a ttl in seconds."""
    configured = leasing_settings.MARGIN
    wanted = max(0.2, 0.02 * ttl) if configured is None else configured
    # A margin that leaves nothing would lose every hold as it is taken.
    return min(wanted, ttl / 3)
