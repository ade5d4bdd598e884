"""The tests' settings with a queue that goes over Celery; the environment names the broker."""

import os
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import CELERY_BROKER_TRANSPORT_OPTIONS, CELERY_BROKER_URL, DATABASES, LOGGING

TASK_QUEUE = {
    "CELERY_APP": "project.celery.app",
    "CELERY_QUEUES": ["default"],
    "CELERY_PATIENCE": float(os.environ.get("CELERY_PATIENCE") or 3),
    "SWEEP_EVERY": 0.5,
    "POLL_EVERY": 0.2,
}
DATABASES["default"]["CONN_MAX_AGE"] = 60
_loggers: Any = LOGGING["loggers"]
for said in ("leasing", "tasks"):
    _loggers[said]["level"] = "WARNING"
if CELERY_BROKER_URL.startswith("redis"):
    # What a killed worker had taken comes back while a test runs.
    CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"] = 5
CELERY_BROKER_CONNECTION_RETRY_DELAY = 0.2
