"""Actions of an operator on a task, with their consequences."""

from __future__ import annotations

from typing import Final

from leasing.diagnosis.base import Action

REVOKE: Final = Action(
    "revoke",
    "Revoke lease",
    "Another worker may start the task while this one is still running it. The result of this one "
    "will be refused; its side effects are not undone.",
    "leasing.revoke_lease",
)
RETRY: Final = Action(
    "retry",
    "Retry",
    "The task becomes ready now, with one extra attempt if all were used.",
    "leasing_tasks.retry_task",
)
CANCEL: Final = Action(
    "cancel",
    "Cancel",
    "A waiting task ends immediately. A running task is asked to stop; a handler that never checks "
    "may still complete it. It is not retried either way. Its children are cancelled with it.",
    "leasing_tasks.cancel_task",
)
DISCARD: Final = Action(
    "discard",
    "Discard",
    "The task is deleted with its payload, result and attempts. This cannot be undone.",
    "leasing_tasks.discard_task",
)
RESCHEDULE: Final = Action(
    "reschedule",
    "Reschedule",
    "The task moves to the chosen queue and starts no earlier than the chosen time. With a higher "
    "priority it overtakes others.",
    "leasing_tasks.reschedule_task",
)
RESUME: Final = Action(
    "resume",
    "Resume queue",
    "Workers claim its waiting tasks again, in order: this one and all others.",
    "leasing_tasks.pause_queue",
)
