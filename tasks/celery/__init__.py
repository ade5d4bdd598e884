"""Celery as the engine: its workers run the tasks that a relay publishes.

    app = Celery("project")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    connect(app)

A task's row is the truth, and a message a hint that carries its key. A Celery worker that gets one
claims that row, under the conditions of any claim, keeps its lease, runs the handler and stores the
result, as ``run_worker`` does; the message is acknowledged after that.

What happens when
    a message comes twice,      the row cannot be claimed: it is dropped
    or its task has ended
    a worker dies               nobody renews; recovery sets the row ready, and the relay publishes
                                it again. The message that the broker sends again is dropped, or
                                claims the row that is ready
    a message is lost           the row is still ready: see ``tasks.outbox.relay``
    the database is away        the worker tries to claim for some seconds, then drops the message,
                                which is then as one that was lost
"""

from __future__ import annotations

from typing import Any

#: The name of the Celery task that claims and runs a row.
RUN = "leasing_tasks.run"


def connect(
    app: Any,
    *,
    attend: bool = True,
    chaos: bool = False,
    metrics_port: int | None = None,
    metrics_address: str = "127.0.0.1",
) -> None:
    """Connect workers of ``app``, a Celery application, to run tasks of
    TASK_QUEUE["CELERY_QUEUES"].

    Call it where the application is made; Django need not be set up yet.

    Args:
        app: The Celery application.
        attend: True to recover tasks, serve schedules and be shown among the workers, as
            ``run_worker`` does.
        chaos: True to make some tasks crash their process and others stall, for demonstrations.
        metrics_port: The port that shows the worker's counts; None: no port. A pool of processes
            needs PROMETHEUS_MULTIPROC_DIR for that.
        metrics_address: The address of that port.
    """

    from tasks.celery import attendant

    def run(self: Any, key: int, queue: str) -> None:
        from tasks.celery.consuming import consume

        consume(key, queue, attendant.name_of(self.request.hostname), chaos=chaos)

    options = {"acks_late": True, "ignore_result": True, "max_retries": 0}
    app.task(name=RUN, bind=True, shared=False, lazy=False, **options)(run)
    at = None if metrics_port is None else (metrics_address, metrics_port)
    attendant.attend(is_served=attend, metrics_at=at)
