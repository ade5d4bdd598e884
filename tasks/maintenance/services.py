"""The services of every process that recovers, and how they share threads.

    recovery       sweeps, and other services that must never wait
    scheduler      schedules and samples: both are quick
    housekeeping   examining and pruning, whose statements may read whole tables

Recovery and services that are passed as urgent never wait behind the others.
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
    samples: bool = True,
) -> None:
    """Start them on ``threads``.

    Args:
        urgent: services that tick on the thread of recovery.
        found: called when a task became ready.
        look_ahead: see ``recovery.service``.
        samples: whether to take part in sampling.
    """
    sampling = [Sampler().service()] if samples else []
    keeping = [scheduler.housekeeping(), *housekeeping.services(threads.ended)]
    threads.start("recovery", *urgent, recovery.service(found, look_ahead))
    threads.start("scheduler", scheduler.service(found), *sampling)
    threads.start("housekeeping", *keeping, limited_by=HANDLERS_LIMIT)
