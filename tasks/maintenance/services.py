"""The services of every process that recovers, and how they share threads.

services       recovery and other services that must never wait long; schedules and samples,
               each until it turns out to be slow: then it has a thread of its own
housekeeping   examining and pruning, whose statements may read whole tables; it has a
               connection only while it is at work
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from leasing.runtime.services import Service
from tasks.maintenance import housekeeping, recovery, scheduler
from tasks.maintenance.sampling import Sampler
from tasks.runtime.connection import HANDLERS_LIMIT
from tasks.runtime.service_threads import ServiceThreads


def start(
    threads: ServiceThreads,
    *urgent: Service,
    found: Callable[[], object] = lambda: None,
    ttl: float | timedelta | None = None,
) -> None:
    """Start them on ``threads``, with ``urgent`` ones that never wait long, as recovery. ``found``
    is called when a task became ready. ``ttl`` is that of the tasks of this process."""
    quick = {"scheduler": scheduler.service(found), "sampling": Sampler().service()}
    threads.start("services", *urgent, recovery.service(found, ttl), quick=quick)
    keeping = [scheduler.housekeeping(), *housekeeping.services(threads.ended)]
    threads.start("housekeeping", *keeping, limited_by=HANDLERS_LIMIT)
