"""The events that ``tasks`` logs: level, line and fields of each, one row an event.

The flow writes one with ``log.task_lost(task, reason=reason)``: its name is ``task.lost``, the
task's own fields come first, and the keywords are the other fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, Final

from leasing.runtime.event_logger import Event

#: The columns that are fields, by the names they have there.
COLUMNS: Final = {
    "task_id": "id",
    "task_name": "name",
    "queue": "queue",
    "attempt": "attempts",
    "max_attempts": "max_attempts",
    "holder": "holder",
    "fencing_token": "fencing_token",
    "scheduled_at": "scheduled_at",
}


def task_fields(task: Any) -> dict[str, Any]:
    """Return the fields of a record about ``task``, a row or what a worker carries."""
    # A column that was not read is not worth a query.
    read = getattr(task, "__dict__", None)
    if read is None:
        return {name: getattr(task, column, None) for name, column in COLUMNS.items()}
    return {name: read.get(column) for name, column in COLUMNS.items()}


def queue_fields(queue: str) -> dict[str, Any]:
    """Return the fields of a record about the queue of that name."""
    return {"queue": queue}


class ErrorEvent(Event):
    """An event of attempts that failed: each record has the error and its traceback, if this
    process has it: not where only the text is known, as of a task that was recovered."""

    __slots__ = ()

    def each(self, rows: Sequence[Any], **details: Any) -> None:
        for row in rows:
            super().each([row], exc_info=row.raised, **details)


_task = partial(Event, "tasks", about=task_fields)
_task_error = partial(ErrorEvent, "tasks", about=task_fields)
_queue = partial(Event, "tasks", about=queue_fields)
_attempt = partial(Event, "tasks.runner", about=task_fields)
_chaos = partial(Event, "tasks.chaos")
_worker = partial(Event, "tasks.worker")
_recovery = partial(Event, "tasks.recovery")
_schedules = partial(Event, "tasks.schedules")
_housekeeping = partial(Event, "tasks.housekeeping")
_sampling = partial(Event, "tasks.sampling")
_generator = partial(Event, "tasks.generator")
_relay = partial(Event, "tasks.relay")


class Log:
    """One attribute an event."""

    # Signals of tasks
    task_enqueued = _task(DEBUG, "task:%(task_id)s enqueued: %(task_name)s")
    task_claimed = _task(
        INFO,
        "task:%(task_id)s claimed by %(holder)s: %(task_name)s, "
        "attempt %(attempt)s of %(max_attempts)s",
    )
    task_completed = _task(
        INFO,
        "task:%(task_id)s completed by %(holder)s: %(task_name)s, "
        "attempt %(attempt)s of %(max_attempts)s",
    )
    task_attempt_failed = _task_error(
        WARNING,
        "task:%(task_id)s failed in attempt %(attempt)s of %(max_attempts)s; "
        "next attempt at %(scheduled_at)s: %(error)s",
    )
    task_failed = _task_error(
        ERROR,
        "task:%(task_id)s failed for good after attempt %(attempt)s of %(max_attempts)s: %(error)s",
    )
    task_recovered = _task(WARNING, "task:%(task_id)s recovered from %(holder)s: %(reason)s")
    task_returned = _task(INFO, "task:%(task_id)s given back by %(holder)s: %(reason)s")
    task_snoozed = _task(
        INFO, "task:%(task_id)s postponed by its handler until %(scheduled_at)s: %(reason)s"
    )
    task_cancelled = _task(INFO, "task:%(task_id)s cancelled: %(reason)s")
    task_retried = _task(INFO, "task:%(task_id)s set ready again by %(actor)s")
    task_duplicate = _task(INFO, "Duplicate enqueue of task:%(task_id)s ignored (unique key)")
    task_rescheduled = _task(INFO, "task:%(task_id)s rescheduled by %(actor)s to %(scheduled_at)s")
    task_discarded = _task(INFO, "task:%(task_id)s deleted by %(actor)s: %(task_name)s")
    task_repaired = _task(WARNING, "task:%(task_id)s repaired (%(kind)s): %(remedy)s")
    task_replaced = _task(INFO, "task:%(task_id)s updated by a later enqueue (unique key)")

    # Signals of queues
    queue_paused = _queue(WARNING, "Queue %(queue)s paused by %(actor)s: %(reason)s")
    queue_resumed = _queue(INFO, "Queue %(queue)s resumed by %(actor)s")

    # One attempt
    task_not_begun = _attempt(ERROR, "task:%(task_id)s could not start: %(error)s")
    task_no_handler = _attempt(ERROR, "task:%(task_id)s: %(reason)s")
    task_lost = _attempt(WARNING, "Stopped task:%(task_id)s: lease lost (%(reason)s)")
    task_timed_out = _attempt(WARNING, "task:%(task_id)s timed out: %(error)s")
    task_failed_after_end = _attempt(
        WARNING, "Handler of task:%(task_id)s failed after completing the task: %(error)s"
    )
    task_progress_dropped = Event(
        "tasks.progress",
        WARNING,
        "Discarded the last progress of task:%(task_id)s: %(error)s",
        about=task_fields,
    )
    task_result_dropped = _attempt(WARNING, "Discarded the result of task:%(task_id)s: %(reason)s")
    task_note_failed = _attempt(
        WARNING, "Could not record the refused result of task:%(task_id)s in its history: %(error)s"
    )
    task_result_delayed = _attempt(
        WARNING,
        "Storing results failed (%(waiting)s waiting, task:%(task_id)s first); "
        "will retry: %(error)s",
    )
    task_result_not_stored = _attempt(
        ERROR,
        "Result of task:%(task_id)s could not be stored; recovery will retry the task: %(error)s",
    )
    task_result_failed = _attempt(ERROR, "Storing results failed unexpectedly")
    task_abandoned = _attempt(
        ERROR, "Gave back task:%(task_id)s: the thread or process that ran it ended"
    )
    task_return_failed = _attempt(WARNING, "task:%(task_id)s could not be given back: %(error)s")
    task_return_needless = _attempt(INFO, "task:%(task_id)s not given back: %(reason)s")
    task_not_logged = _task(ERROR, "Logging task:%(task_id)s for django.tasks failed")
    task_end_not_told = _task(ERROR, "on_end of task:%(task_id)s failed")
    task_policy_failed = Event(
        "tasks.retry", ERROR, "Retry policy %(policy)s failed; using the default policy"
    )
    chaos_stall = _chaos(WARNING, "Chaos: stalling the renewals of %(resource)s")
    chaos_crash = _chaos(
        WARNING, "Chaos: this process crashes in %(seconds).1f s, during %(resource)s"
    )

    # Workers
    worker_started = _worker(INFO, "%(worker)s started; queues: %(queues)s; handlers: %(handlers)s")
    worker_tasks_ended = _worker(
        INFO, "Counted %(ended)s tasks that ended in %(seconds).1f s: %(handlers)s"
    )
    worker_without_handlers = _worker(WARNING, "%(reason)s")
    worker_claim_failed = _worker(WARNING, "Claim failed; will retry: %(error)s")
    worker_stuck = _worker(ERROR, "Stopping %(worker)s: %(reason)s")
    worker_tending_failed = _worker(ERROR, "Check of threads failed; will retry: %(error)s")
    worker_stopping = _worker(INFO, "%(worker)s stopping; tasks still running: %(running)s")
    worker_stopped = _worker(INFO, "%(worker)s stopped")
    worker_threads_left = _worker(
        WARNING, "Exiting although threads that handlers left still run: %(threads)s"
    )
    worker_unseen = _worker(WARNING, "Heartbeat of %(worker)s failed; will retry: %(error)s")
    migrations_unread = _worker(WARNING, "Migrations could not be read; will retry: %(error)s")
    worker_too_large = _worker(
        WARNING,
        "%(worker)s finishes its tasks and exits: memory of %(mib)s MiB exceeds %(limit)s MiB",
    )
    health_served = _worker(
        INFO, "Serving health probes at http://%(address)s:%(port)s/livez and /readyz"
    )
    health_file_failed = _worker(ERROR, "Health file %(path)s could not be touched: %(error)s")
    worker_sign_off_failed = _worker(
        WARNING, "%(worker)s stopped, but could not record it: %(error)s"
    )
    fleet_starts_by_exec = _worker(
        INFO, "%(worker)s cannot fork its workers and starts them by exec: %(reason)s"
    )
    loop_callback_failed = _worker(ERROR, "Callback of an event loop failed; continuing")
    fleet_no_process = _worker(
        ERROR, "Process for %(worker)s could not be started; will retry: %(error)s"
    )
    fleet_report_failed = _worker(ERROR, "%(worker)s could not report its health to its parent")
    fleet_child_started = _worker(INFO, "%(worker)s started as pid %(pid)s")
    fleet_child_ended = _worker(INFO, "%(worker)s (pid %(pid)s) exited cleanly")
    fleet_child_died = _worker(ERROR, "%(worker)s (pid %(pid)s) exited unexpectedly: %(how)s")
    fleet_child_killed = _worker(
        WARNING, "Killed %(worker)s (pid %(pid)s): it did not exit before the stop timeout"
    )
    fleet_child_hung = _worker(
        ERROR,
        "%(worker)s (pid %(pid)s) has sent no report for %(seconds)s s; killing it (to halt a "
        "worker in a debugger, start it with --workers 0)",
    )
    fleet_gives_up = _worker(
        ERROR,
        "Stopping %(worker)s: a worker exited %(times)s times in a row before it was ready: "
        "%(how)s",
    )
    fleet_stopping = _worker(INFO, "%(worker)s stopping; workers still running: %(running)s")
    fleet_parent_gone = _worker(WARNING, "Stopping %(worker)s: its parent has exited")
    fleet_group_left = _worker(ERROR, "Process groups still running after SIGKILL: %(groups)s")
    fleet_handed_back = _worker(
        WARNING, "Recovered tasks of %(worker)s; given back: %(given_back)s; lost: %(lost)s"
    )
    fleet_hand_back_failed = _worker(
        WARNING, "Tasks of %(worker)s could not be handed back; will retry: %(error)s"
    )
    fleet_hand_back_left = _worker(
        ERROR, "Tasks of %(worker)s left to recovery: no answer from the database in time"
    )
    fleet_writer_failed = _worker(ERROR, "Handing back tasks failed unexpectedly; will retry")
    notifications_unsent = _worker(
        WARNING,
        "Workers could not be notified (%(notification)s) and find out by polling: %(error)s",
    )
    notifications_failed = _worker(
        WARNING, "LISTEN connection failed; falling back to polling: %(error)s"
    )
    notifications_swallowed = _worker(
        WARNING,
        "Notifications of PostgreSQL do not arrive; falling back to polling. Behind a pooler in "
        "transaction mode set LEASING['LISTEN_URL']",
    )
    notifications_arrive = _worker(INFO, "Notifications of PostgreSQL arrive again")

    # Services
    recovery_failed = _recovery(WARNING, "Recovery sweep failed; will retry: %(error)s")
    recovery_suspected = _recovery(WARNING, "Invalid state found (%(kind)s), %(what)s: %(rows)s")
    schedules_failed = _schedules(WARNING, "Check for due schedules failed; will retry: %(error)s")
    schedule_failed = _schedules(ERROR, "Schedule %(schedule)s could not run: %(error)s")
    schedule_left = _schedules(
        INFO, "Schedule %(schedule)s is left to processes of another release: %(error)s"
    )
    schedule_fired = _schedules(INFO, "Schedule %(schedule)s %(outcome)s for %(slot)s")
    schedule_declared = _schedules(INFO, "Schedule %(schedule)s updated from code")
    tasks_pruned = _housekeeping(INFO, "Pruned: %(pruned)s")
    housekeeping_left_to_another = _housekeeping(
        DEBUG, "%(duty)s is done by another process: %(reason)s"
    )
    housekeeping_failed = _housekeeping(WARNING, "%(duty)s failed; will retry: %(error)s")
    sampling_left_to_another = _sampling(DEBUG, "Sampling is done by another process: %(reason)s")
    sampling_left_to_its_end = _sampling(
        DEBUG, "Release of the sampling lease failed; it expires by itself: %(reason)s"
    )
    sampling_failed = _sampling(WARNING, "Sampling failed; will retry: %(error)s")
    generator_leads = _generator(INFO, "%(holder)s generates tasks")
    generator_stands_by = _generator(DEBUG, "Generator on standby: %(reason)s")
    generator_failed = _generator(WARNING, "Generator failed; will retry: %(error)s")

    # The outbox and brokers
    relay_lost = _relay(WARNING, "Relay stopped publishing: %(reason)s")
    relay_failed = _relay(
        WARNING, "Publishing failed; will retry in %(pause_seconds).1f s: %(error)s"
    )
    message_failed = _relay(
        ERROR, "Message %(message_id)s could not be sent; will retry: %(error)s"
    )
    broker_silent = _relay(DEBUG, "Length of the broker's queue %(queue)s is unknown: %(error)s")
    broker_lost = _relay(DEBUG, "Connection to the broker lost: %(error)s")
    message_dropped = _worker(ERROR, "Discarded the message of task:%(task_id)s: %(error)s")
    claim_failed = _worker(WARNING, "task:%(task_id)s could not be claimed; will retry: %(error)s")
    task_unclaimed = _worker(INFO, "task:%(task_id)s not claimed; it stays ready: %(reason)s")

    # Pages
    page_failed = Event("tasks.pages", ERROR, "Overview could not read its %(part)s")


log = Log()
