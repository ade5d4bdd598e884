"""Errors of unknown options, told by the one that was meant, and what other queues call them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from leasing.runtime.terminal import closest

_MOMENT = "pass scheduled_at=, a datetime with a time zone, or delay=, seconds or a timedelta"
_LIMITS = {
    **dict.fromkeys(("retries", "max_retries"), "pass max_attempts=, which counts the first too"),
    **dict.fromkeys(("time_limit", "soft_time_limit"), "pass timeout=, seconds"),
}

#: Of ``using``; "" is about all other arguments.
ENQUEUE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("eta", "run_after", "run_at", "when"), _MOMENT),
    "countdown": "pass delay=, seconds or a timedelta",
    **_LIMITS,
    "task_id": "pass idempotency_key= to store it once",
    "": "the data of the task goes to enqueue()",
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


def unexpected(
    verb: str, unknown: Iterable[str], known: Iterable[str], hints: Mapping[str, str]
) -> TypeError:
    """Return the error of a call with arguments that ``verb`` does not have.

    Args:
        verb: The name that the caller used.
        unknown: The arguments.
        known: The optional arguments of the verb and its kin.
        hints: Clauses about arguments of other libraries; that about "" is for all others.
    """
    name = min(unknown)
    meant = closest(name, known)
    if name in hints:
        hint = f": {hints[name]}."
    elif meant == name:
        hint = ": other verbs have it."
    elif meant:
        hint = f": did you mean {meant!r}?"
    else:
        hint = f": {hints['']}." if "" in hints else "."
    return TypeError(f"{verb}() got an unexpected keyword argument {name!r}{hint}")


def option_names(of: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that can only be passed by name."""
    parameters = inspect.signature(of).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
