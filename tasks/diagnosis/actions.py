"""What an operator can do to a task, and what follows from it."""

from __future__ import annotations

from typing import Final

from leasing.diagnosis.base import Action

REVOKE: Final = Action(
    "revoke",
    "Take it from its holder",
    "Another worker may start while this one still runs. Its result will be refused, its side "
    "effects will not be undone.",
    "leasing.revoke_lease",
)
RETRY: Final = Action(
    "retry",
    "Retry",
    "It is set ready now, with one attempt more if they were used up.",
    "leasing_tasks.retry_task",
)
CANCEL: Final = Action(
    "cancel",
    "Cancel",
    "While it waits, it ends at once. While it runs, it is asked to: a handler that does not look "
    "may still complete it. It is not tried again either way.",
    "leasing_tasks.cancel_task",
)
DISCARD: Final = Action(
    "discard",
    "Discard",
    "It is deleted with its payload, its result and its attempts. Nothing brings it back.",
    "leasing_tasks.discard_task",
)
RESCHEDULE: Final = Action(
    "reschedule",
    "Reschedule",
    "It is moved to the queue you name, and starts at the time you name or later.",
    "leasing_tasks.reschedule_task",
)
RESUME: Final = Action(
    "resume",
    "Resume the queue",
    "What has waited in the queue is claimed at once, in its order: this task and all others.",
    "leasing_tasks.pause_queue",
)
