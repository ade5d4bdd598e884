"""The demo site's settings on the database that ``tests.plugin`` chose."""

from importlib.util import find_spec

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # Nobody cuts the power: what a killed process has written is in the cache of the system.
    options = DATABASES["default"]["OPTIONS"]
    options["init_command"] = options["init_command"].replace("=NORMAL", "=OFF")
    # Without a name Django tests in memory, where other processes see nothing.
    DATABASES["default"]["TEST"] = {"NAME": f"{DATABASES['default']['NAME']}.test"}

TASK_QUEUE = {}  # a test says what it wants of it

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Handlers that do as a test says, and a user's own rows that can be leased, and guarded.
INSTALLED_APPS += ["tests.jobs", "tests.shop", "tests.press", "tests.typed_app"]

# Django's own tasks, or those of the backport, run on the queue.
TASKS = {
    "default": {"BACKEND": "tasks.backend.DatabaseBackend"},
    "second": {
        "BACKEND": "tasks.backend.DatabaseBackend",
        "QUEUES": [],
        "OPTIONS": {"max_attempts": 1, "timeout": 60, "modules": ["tests.jobs.mails"]},
    },
    "elsewhere": {"BACKEND": "tests.jobs.backends.ForgetfulBackend"},
}
if find_spec("django_tasks") and not find_spec("django.tasks"):
    INSTALLED_APPS += ["django_tasks"]
