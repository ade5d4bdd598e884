"""For your own tests: leases that expire when you say so, and rivals that are not there.

    from leasing.testing import assert_held, expire, hold_elsewhere, manual_keeper

No test needs to sleep, and all of it works inside the transaction that Django's ``TestCase``
and pytest-django wrap around a test. Where a function takes ``what``, give it a hold, a row of
any ``Leasable`` model, or the name of a resource. Twins that begin with ``a`` are for async tests.
"""

from __future__ import annotations

from leasing.testing.helpers import (
    LeasingTestCase,
    LeasingTestMixin,
    aassert_free,
    aassert_held,
    aevents_of,
    aexpire,
    arevoke,
    assert_free,
    assert_held,
    assert_lost,
    events_of,
    expire,
    hold_elsewhere,
    in_memory,
    revoke,
)
from leasing.testing.keeper import ManualKeeper, manual_keeper

__all__ = [
    "LeasingTestCase",
    "LeasingTestMixin",
    "ManualKeeper",
    "aassert_free",
    "aassert_held",
    "aevents_of",
    "aexpire",
    "arevoke",
    "assert_free",
    "assert_held",
    "assert_lost",
    "events_of",
    "expire",
    "hold_elsewhere",
    "in_memory",
    "manual_keeper",
    "revoke",
]
