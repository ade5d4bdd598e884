"""Unique keys: how long a task keeps its key, and what a second enqueue with it does.

    waiting    until the claim
    running    until the first attempt ends: a retry waits without it
    finished   until the task ends, retries included
    window     until a moment, ended or not; the next enqueue after that takes over the key

The columns here free a key in the update that ends its lifetime. No update happens at the end of a
window, so the next enqueue with the key frees it.

A task that an operator retries needs its key again. It is not retried while another task has it.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Case, F, Q, Value, When

from leasing.functions import DbNow
from tasks.bounds import check_limit


class UniqueFor(models.TextChoices):
    """The time for which a task keeps its unique key."""

    #: Until it is claimed.
    WAITING = "waiting"
    #: Until its first attempt ends: a retry waits without it.
    RUNNING = "running"
    #: Until it ends, retries included.
    FINISHED = "finished"
    #: Until a moment, whether it has ended by then or not.
    WINDOW = "window"


class OnDuplicate(models.TextChoices):
    """The effect of an enqueue on the waiting task that has its unique key."""

    #: Nothing.
    SKIP = "skip"
    #: Make it what was asked for now.
    REPLACE = "replace"
    #: The same, but for the time it is scheduled at.
    KEEP_TIME = "keep_time"


def lifetime(unique_for: str | float | timedelta) -> tuple[str, timedelta | None]:
    """Return the UniqueFor of a key that lasts for "waiting", "running", "finished", or a window in
    seconds or as a timedelta, and that window. Raises ValueError."""
    if not isinstance(unique_for, str):
        window = check_limit(unique_for, "The window of a unique key")
        return UniqueFor.WINDOW.value, window
    if unique_for not in (UniqueFor.WAITING, UniqueFor.RUNNING, UniqueFor.FINISHED):
        raise ValueError(
            'unique_for must be "waiting", "running", "finished", or a window in seconds.'
        )
    return UniqueFor(unique_for).value, None


def key_once_claimed() -> Case:
    return _key_unless(When(unique_for=UniqueFor.WAITING, then=_NO_KEY))


def key_in_retry() -> Case:
    return _key_unless(When(unique_for=UniqueFor.RUNNING, then=_NO_KEY))


def key_once_ended() -> Case:
    ahead = When(unique_until__gt=DbNow(), then=F("unique_key"))
    return Case(ahead, default=_NO_KEY)


#: Of a task that has ended, no window: set ready again, it is within the time of its key.
IS_TO_HAVE_ITS_KEY = (
    Q(unique_for=UniqueFor.FINISHED)
    | Q(unique_for=UniqueFor.RUNNING, attempts=0)
    | Q(unique_for=UniqueFor.WAITING, grants=0)
)


def key_once_retried() -> Case:
    return _key_unless(When(IS_TO_HAVE_ITS_KEY, then=F("enqueued_key")))


_NO_KEY = Value(None, output_field=models.CharField())


def _key_unless(other: When) -> Case:
    return Case(other, default=F("unique_key"))
