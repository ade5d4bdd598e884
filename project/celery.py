"""The Celery application of the demo site: ``celery -A project.celery worker -Q default``."""

import os

from celery import Celery

from tasks.celery import connect

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
connect(app, chaos=bool(os.environ.get("TASK_CHAOS")))
