"""The events that ``leasing`` logs: level, line and fields of each, one row an event.

The flow writes one with ``log.lease_lost(lease, reason=reason)``: its name is ``lease.lost``, the
row's own fields come first, and the keywords are the other fields.
"""

from __future__ import annotations

from functools import partial
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from leasing.runtime.event_logger import Event


def lease_fields(lease: Any) -> dict[str, Any]:
    """Return the fields of a record about ``lease``."""
    return {
        "resource": lease.lease_resource,
        "holder": lease.holder,
        "fencing_token": lease.fencing_token,
        "grants": getattr(lease, "grants", None),
    }


_lease = partial(Event, "leasing", about=lease_fields)
_leasing = partial(Event, "leasing")
_keeper = partial(Event, "leasing.keeper")
_threads = partial(Event, "leasing.threads")
_celery = partial(Event, "leasing.celery")


class Log:
    """One attribute an event."""

    # Signals
    lease_acquired = _lease(INFO, "%(holder)s acquired %(resource)s, token %(fencing_token)s")
    lease_taken_over = _lease(
        WARNING, "%(holder)s took over expired %(resource)s, token %(fencing_token)s"
    )
    lease_renewed = _lease(DEBUG, "%(holder)s renewed %(resource)s")
    lease_released = _lease(INFO, "%(holder)s released %(resource)s")
    lease_revoked = _lease(WARNING, "%(actor)s revoked %(resource)s from %(holder)s: %(reason)s")
    lease_preempted = _lease(
        INFO, "%(actor)s, with a higher priority, asked %(holder)s to yield %(resource)s"
    )
    lease_lost = _lease(WARNING, "%(holder)s lost %(resource)s: %(reason)s")
    lease_refused = _lease(
        WARNING,
        "Refused %(verb)s of %(resource)s by %(holder)s with token %(fencing_token)s: %(reason)s",
    )
    log_failed = _leasing(ERROR, "Event could not be logged")
    metrics_failed = _leasing(ERROR, "Metric could not be recorded")

    # Holds
    lease_unreleased = _leasing(
        WARNING, "Release of %(resource)s failed; its lease expires by itself: %(error)s"
    )
    service_away = _leasing(
        WARNING, "%(error)s. The request is sent again for up to %(seconds).0f s"
    )
    token_unencrypted = _leasing(
        WARNING, "The token for %(url)s is sent unencrypted: use an address with https"
    )
    lease_outlived = _leasing(
        ERROR, "A transaction was committed after its lease had ended: %(error)s"
    )

    # The keeper
    keeper_renewal_failed = _keeper(
        WARNING, "Renewal failed; will retry in about %(pause_seconds).1f s: %(error)s"
    )
    keeper_renewal_slow = _keeper(WARNING, "Renewal took %(seconds).1f s, close to its limit")
    keeper_renewals_resumed = _keeper(INFO, "Renewals succeed again")
    keeper_note_waits = _keeper(WARNING, "Lease event not recorded; will retry: %(error)s")
    keeper_cut_off = _keeper(WARNING, "No answer from the database; connection closed")
    keeper_failed = _keeper(ERROR, "Keeper thread failed; continuing")
    keeper_proof_failed = _keeper(
        ERROR, "Liveness check of the work under %(key)s failed; its lease is given up"
    )
    callbacks_dropped = _keeper(
        ERROR, "Callbacks hang; new ones are dropped (%(waiting)s are waiting)"
    )
    hold_callback_failed = _keeper(ERROR, "Callback failed")

    # Leaders
    leader_unseen = _leasing(WARNING, "Leader of %(resource)s could not be read: %(error)s")
    leader_term_lost = _leasing(INFO, "%(holder)s lost the leadership of %(resource)s: %(reason)s")
    leader_campaign_failed = _leasing(
        WARNING,
        "Campaign for %(resource)s failed; will retry in %(pause_seconds).1f s: %(error)s",
    )
    leader_command_asked_to_end = _leasing(WARNING, "Stopping %(command)s: %(reason)s")
    leader_command_ended = _leasing(INFO, "%(command)s ended with exit code %(exit_code)s")

    # Threads and connections
    thread_replaced = _threads(ERROR, "Thread %(thread_name)s ended unexpectedly; restarted")
    thread_not_started = _threads(
        ERROR, "Thread %(thread_name)s cannot be started; will retry: %(error)s"
    )
    outage_ended = _leasing(INFO, "The database answers again, after %(seconds).1f s")
    connection_cut_off = _leasing(
        WARNING,
        "No answer from the database within %(seconds).1f s (%(setting)s); connection closed",
    )
    connection_answer_lost = _leasing(
        WARNING,
        "No answer from the database for %(seconds).1f s, and its session is idle: the network has "
        "lost the statement or the answer; connection closed",
    )
    connection_unlimited = _leasing(
        ERROR, "%(setting)s cannot be read; answers of the database are not timed out"
    )
    notifications_failed = _leasing(
        WARNING, "LISTEN connection failed; falling back to polling: %(error)s"
    )
    notifications_swallowed = _leasing(
        WARNING,
        "Notifications of PostgreSQL do not arrive; falling back to polling. Behind a pooler in "
        "transaction mode set LEASING['LISTEN_URL']",
    )
    notifications_arrive = _leasing(INFO, "Notifications of PostgreSQL arrive again")

    # Metrics and traces
    metrics_unread = _leasing(ERROR, "Metrics of %(figure)s could not be read")
    metrics_served = _leasing(INFO, "Serving metrics at http://%(address)s:%(port)s/metrics")
    tracing_failed = Event(
        "leasing.tracing", ERROR, "Tracing failed; further failures are not logged"
    )

    # Celery
    beat_leads = _celery(INFO, "Beat leads %(resource)s")
    beat_lost = _celery(WARNING, "Beat stopped sending: %(reason)s")
    beat_failed = _celery(WARNING, "Beat failed; will retry in %(pause_seconds).1f s: %(error)s")
    beat_left = _celery(WARNING, "%(entry)s is left to the beat that leads now")
    beat_sent_again = _celery(INFO, "Sending %(entry)s again: unknown if it was sent")
    beat_unnoted = _celery(WARNING, "%(entry)s was sent, but not recorded: %(error)s")
    celery_skipped = _celery(INFO, "Skipped %(task_name)s[%(celery_id)s]: %(reason)s")


log = Log()
