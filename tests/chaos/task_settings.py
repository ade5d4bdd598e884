"""Settings of a run with tasks: as little patience as a fault of seconds calls for."""

from typing import Any

from tests.chaos.settings import *  # noqa: F403
from tests.chaos.settings import LOGGING

TASK_QUEUE = {
    "SWEEP_EVERY": 0.5,
    "POLL_EVERY": 0.2,
    "BACKOFF": {"base": 0.1, "cap": 0.5},
    "PRUNE_EVERY": None,
    "SAMPLES": False,
    # Within the time in which workers are to work again.
    "ANSWER_TIMEOUT": 3.0,
    "HANDLER_ANSWER_TIMEOUT": 3.0,
    "OUTBOX_PUBLISHER": "tests.chaos.workloads.outbox.receive",
}
_loggers: Any = LOGGING["loggers"]
for _name in ("leasing", "tasks"):
    _loggers[_name]["level"] = "WARNING"
