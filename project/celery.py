"""The Celery application of the demo site: ``celery -A project.celery worker -Q default``."""

import os
from pathlib import Path

from celery import Celery

from tasks.celery import connect

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
for name, value in app.conf.broker_transport_options.items():
    if name.endswith("_folder") or name.startswith("data_folder"):
        Path(value).mkdir(parents=True, exist_ok=True)  # the broker of files makes none
connect(app, chaos=bool(os.environ.get("TASK_CHAOS")))
