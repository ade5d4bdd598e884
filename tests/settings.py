"""The demo site's settings on the database that ``tests.plugin`` chose."""

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # Without a name Django tests in memory, where other processes see nothing.
    DATABASES["default"]["TEST"] = {"NAME": f"{DATABASES['default']['NAME']}.test"}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Handlers that do as a test says, and a user's own rows that can be leased, and guarded.
INSTALLED_APPS += ["tests.jobs", "tests.shop", "tests.press"]
