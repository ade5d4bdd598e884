"""The services of every process that recovers, and how they share threads.

services       recovery and other services that must never wait long; schedules and samples,
               each until it turns out to be slow: then it has a thread of its own
housekeeping   examining and pruning, whose statements may read whole tables; it has a
               connection only while it is at work
"""

from __future__ import annotations

from collections.abc import Callable

from leasing.runtime.services import Service
from tasks.maintenance import housekeeping, recovery, scheduler
from tasks.maintenance.recovery import LookAhead
from tasks.maintenance.sampling import Sampler
from tasks.runtime.connection import HANDLERS_LIMIT
from tasks.runtime.service_threads import ServiceThreads


def start(
    threads: ServiceThreads,
    *urgent: Service,
    found: Callable[[], object] = lambda: None,
    look_ahead: LookAhead | None = None,
    no_schedule_for: Callable[[], float] = float,
) -> None:
    """Start them on ``threads``.

    Args:
        urgent: services that never wait long, as recovery.
        found: called when a task became ready.
        look_ahead: see ``recovery.service``.
        no_schedule_for: the ``quiet_for`` of ``scheduler.service``.
    """
    quick = {
        "scheduler": scheduler.service(found, no_schedule_for),
        "sampling": Sampler().service(),
    }
    keeping = [scheduler.housekeeping(), *housekeeping.services(threads.ended)]
    threads.start("services", *urgent, recovery.service(found, look_ahead), quick=quick)
    threads.start("housekeeping", *keeping, limited_by=HANDLERS_LIMIT)
