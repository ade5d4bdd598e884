"""The demo site's settings, for calls by the thousand."""

from project.settings import *  # noqa: F403
from project.settings import DATABASES, LEASING, LOGGING

# A wait that is asked for is waited: a second of it shows what a minute would.
LEASING["API_MAX_WAIT"] = 1
# The document has one cookie, so that a program that reads it sends one: the other token of the two
# that are compared is in the session.
CSRF_USE_SESSIONS = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Faults alone.
LOGGING = {
    **LOGGING,
    "loggers": {name: {"level": "ERROR"} for name in ("django", "leasing", "tasks")},
}

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    options = DATABASES["default"]["OPTIONS"]
    options["init_command"] = options["init_command"].replace("=NORMAL", "=OFF")
