"""For your own tests: run tasks at once, one by one, or all that are due; and look what there is.

    from tasks.testing import assert_enqueued, drain, inline, run, run_handler

No worker runs in a test, so what is enqueued waits until the test runs it, on its own thread
and by the worker's own runner: ``run`` one, ``drain`` all that are due, or let each be run as it
is enqueued while ``inline()`` lasts. No test needs to sleep, and all of it works inside the
transaction that Django's ``TestCase`` and pytest-django wrap around a test. Twins that begin with
``a`` are for async tests.
"""

from __future__ import annotations

from tasks.testing.context import FakeContext
from tasks.testing.helpers import (
    aassert_enqueued,
    aassert_not_enqueued,
    adrain,
    aenqueued,
    arun,
    arun_handler,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    enqueued,
    inline,
    manual,
    run_handler,
)
from tasks.testing.runs import run

__all__ = [
    "FakeContext",
    "aassert_enqueued",
    "aassert_not_enqueued",
    "adrain",
    "aenqueued",
    "arun",
    "arun_handler",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "inline",
    "manual",
    "run",
    "run_handler",
]
