"""The demo site's settings, as a site in production would have them.

``server_side_binding`` and ``prepare_threshold`` let PostgreSQL plan a statement once instead of
every time. BENCH_OPTIONS, a JSON object, replaces these options: to try others. The log is that of
warnings; with BENCH_LOGGING=django it is Django's default, which has ``django`` at INFO. Our own
loggers stay at WARNING there: the drain of handlers that it is compared with has no lines of ours.
"""

import json
import os

from leasing.management.console import LOGGERS
from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS, LOGGING
from tests.benchmarks.sizes import CALM_QUEUE, KILL_QUEUES

DEBUG = False
DATABASES["default"]["CONN_MAX_AGE"] = None
if DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
    tried = json.loads(os.environ.get("BENCH_OPTIONS") or "null")
    best = {"server_side_binding": True, "prepare_threshold": 5}
    # What the address says stands there too.
    DATABASES["default"].setdefault("OPTIONS", {}).update(best if tried is None else tried)

INSTALLED_APPS += ["tests.benchmarks"]
ROOT_URLCONF = os.environ.get("BENCH_URLS") or "project.urls"
TASK_QUEUE = {"QUEUES": ("default", CALM_QUEUE, *KILL_QUEUES)}
TASKS = {"default": {"BACKEND": "tasks.backend.DatabaseBackend", "QUEUES": []}}
LEASING = {"TTL": 30.0}

LOGGING["loggers"] = {"django": {"level": "WARNING"}}
if os.environ.get("BENCH_LOGGING") == "django":
    LOGGING = {"version": 1, "loggers": {name: {"level": "WARNING"} for name in LOGGERS}}
