"""django-tasks-db: Django's task API on a table, with its own worker."""

import os
import sys
from urllib.parse import parse_qs, urlsplit

import common
import django
from django.conf import settings

MOST = 2_000
url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    SECRET_KEY="known to everybody, for the benchmark only",
    USE_TZ=True,
    INSTALLED_APPS=["django_tasks", "django_tasks_db"],
    TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": url.username,
            "HOST": parse_qs(url.query).get("host", [url.hostname or ""])[0],
            "PORT": url.port or "",
            "CONN_MAX_AGE": None,
        }
    },
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django_tasks import task  # noqa: E402
from django_tasks_db.models import DBTaskResult  # noqa: E402

enqueue_many = None


@task
def nothing(n):
    return common.ran()


@task
def clock(key):
    return common.noted(key)


def prepare():
    call_command("migrate", verbosity=0)


def enqueue(name, **data):
    {"nothing": nothing, "clock": clock}[name].enqueue(**data)


def left():
    return DBTaskResult.objects.filter(status__in=["READY", "RUNNING"]).count()


def work():
    call_command("db_worker", interval=0.05, startup_delay=False, reload=False, verbosity=0)


common.main(sys.modules[__name__])
