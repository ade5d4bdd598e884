"""Clauses about what other queues call the options, for the errors that refuse those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_MOMENT = "pass scheduled_at=, a datetime with a time zone, or delay=, seconds or a timedelta"
_LIMITS = {
    **dict.fromkeys(("retries", "max_retries"), "pass max_attempts=, which counts the first too"),
    **dict.fromkeys(("time_limit", "soft_time_limit"), "pass timeout=, seconds"),
}

#: Of the verbs that enqueue; "" is about all other arguments.
ENQUEUE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("eta", "run_after", "run_at", "when"), _MOMENT),
    "countdown": "pass delay=, seconds or a timedelta",
    **_LIMITS,
    "task_id": "pass idempotency_key= to store it once",
    "transaction": "it is an option of enqueue_on_commit",
    "": "the data of the task is the second argument, a dictionary",
}
#: Of ``handler``.
HANDLER: Final[Mapping[str, str]] = {
    **_LIMITS,
    "autoretry_for": "all errors are retried; pass retry=RetryOn(...) to retry some",
    **dict.fromkeys(("default_retry_delay", "retry_delay"), "pass retry=Fixed(seconds)"),
    "retry_backoff": "pass retry=Exponential(base=seconds)",
    "bind": "the first parameter is the context in any case",
    "acks_late": "a task whose worker dies runs again while it has attempts left",
    "rate_limit": "pass concurrency_key=, which limits how many run at the same time",
}
#: Of ``schedule``.
SCHEDULE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("schedule", "run_every"), "pass every=, seconds or a timedelta, or cron="),
    **dict.fromkeys(("args", "kwargs"), "pass data=, a dictionary of named arguments"),
    "crontab": "pass cron=, five fields",
}
