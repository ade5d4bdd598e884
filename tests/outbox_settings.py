"""The tests' settings for a project without Celery, whose messages ``tests.tasks.outbox`` gets."""

import os
import sys
from typing import Any

for absent in ("celery", "kombu", "django_celery_beat"):
    sys.modules[absent] = None  # type: ignore[assignment]

from tests.settings import *  # noqa: E402, F403
from tests.settings import DATABASES, INSTALLED_APPS, LOGGING  # noqa: E402

INSTALLED_APPS = [app for app in INSTALLED_APPS if "celery" not in app]
TASK_QUEUE = {
    "OUTBOX_PUBLISHER": os.environ.get("OUTBOX_PUBLISHER", "tests.tasks.outbox.receiver.receive"),
    "POLL_EVERY": 0.2,
}
DATABASES["default"]["CONN_MAX_AGE"] = 60
_loggers: Any = LOGGING["loggers"]
for name in ("leasing", "tasks"):
    _loggers[name]["level"] = "WARNING"
