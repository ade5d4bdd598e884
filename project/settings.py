"""Settings of the demo site. The environment, or a file .env, decides; see .env.example.

Without either the site is a private one: SQLite next to manage.py, answering to this machine
only, with a secret key of its own making.
"""

from pathlib import Path
from typing import Any

import django
import environ
from django.core.exceptions import ImproperlyConfigured

from project import services
from project.secret import kept_key

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()
env.read_env(BASE_DIR / ".env")

# What it is: one service, or both. Each has a database of its own, which DATABASE_URL names.

SERVICES = services.checked(env.list("SERVICES", default=services.BOTH))
HAS_TASKS = services.TASKS in SERVICES

# Who may ask

LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=LOOPBACK)
PRIVATE = set(ALLOWED_HOSTS) <= set(LOOPBACK)

SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not PRIVATE:
        raise ImproperlyConfigured(
            "Set SECRET_KEY: ALLOWED_HOSTS makes the site available to others."
        )
    SECRET_KEY = kept_key(BASE_DIR / ".secret_key")

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not (PRIVATE or DEBUG)
X_FRAME_OPTIONS = "DENY"
# HTTPS is the business of the proxy in front, and so are its redirects and its promises to
# browsers.
SILENCED_SYSTEM_CHECKS = ["security.W004", "security.W008"]
SECURE_CSP = {
    "default-src": ["'none'"],
    "script-src": ["'self'"],
    "style-src": ["'self'"],
    "img-src": ["'self'"],
    "connect-src": ["'self'"],
    "form-action": ["'self'"],
    "frame-ancestors": ["'none'"],
    "base-uri": ["'none'"],
}

if len(SERVICES) == 1:
    # Cookies know no ports: beside each other on one host, each would sign out of the other.
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = (
        f"{min(SERVICES)}_{name}" for name in ("sessionid", "csrftoken")
    )

LOGIN_URL = "leasing:login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]

# What it is made of

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_extensions",
    "leasing",  # the task service too: a running task is a leased row
    *(["tasks"] if HAS_TASKS else []),
    "project",  # the demo's own command
    # The demo's application, whose tasks a remote worker has no code for.
    *(["project.bakery"] if len(SERVICES) > 1 else []),
]
MIDDLEWARE = [
    # A list of 50 rows becomes a tenth. Tokens against forgery are masked again in each answer, and
    # the middleware adds random bytes: the length tells nothing of them.
    "django.middleware.gzip.GZipMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware"
    if django.VERSION >= (6, 0)
    else "project.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "project.services.service",
                *(["project.views.demo"] if HAS_TASKS else []),
            ]
        },
    }
]
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

# What it keeps

DATABASES: dict[str, dict[str, Any]] = {
    "default": env.db_url("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}")
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # Several processes write: each takes the write lock at its first statement and waits for
    # it, where SQLite's defaults answer "database is locked".
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;",
    }
elif DATABASES["default"].get("HOST"):
    # A network that swallows packets would hold a worker up for minutes.
    DATABASES["default"]["OPTIONS"] = {
        "connect_timeout": 5,
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        **DATABASES["default"].get("OPTIONS", {}),
    }
# manage.py shell_plus imports these too.
SHELL_PLUS_IMPORTS = ["from leasing.functions import DbNow, database_now"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LEASING: dict[str, Any] = {"API_ACCESS": env.str("LEASING_API_ACCESS", default="closed")}
for name in ("API_COMPATIBLE_HOSTS", "API_TRUSTED_PROXIES"):
    if networks := env.list(f"LEASING_{name}", default=[]):
        LEASING[name] = tuple(networks)
if ttl := env.str("LEASING_TTL", default=""):
    LEASING["TTL"] = float(ttl)

TASK_QUEUE: dict[str, Any] = {
    "QUEUES": env.list("TASK_QUEUES", default=["default", "reports"]),
    # Whose tasks a relay publishes, for Celery workers.
    "CELERY_QUEUES": env.list("TASK_CELERY_QUEUES", default=[]),
    "CELERY_APP": "project.celery.app",
}

# The lease service, or the Redis, that keeps the lease of the generator; none: the database of the
# tasks does.
if lease_redis := env.str("LEASE_REDIS_URL", default=""):
    LEASING["STORES"] = {
        "central": {"BACKEND": "leasing.stores.redis.RedisStore", "URL": lease_redis}
    }
if lease_service := env.str("LEASE_SERVICE_URL", default=""):
    LEASING["STORES"] = {
        "central": {
            "BACKEND": "leasing.stores.http.HttpStore",
            "URL": lease_service,
            "TOKEN": env.str("LEASE_SERVICE_TOKEN", default="") or None,
            # Not longer than a platform waits for a process that it stops.
            "PATIENCE": 5,
        }
    }
if "STORES" in LEASING:
    TASK_QUEUE["GENERATOR_STORE"] = "central"
    TASK_QUEUE["GENERATOR_LEASE"] = env.str("GENERATOR_LEASE", default="demo.generator")

# Celery, where it is installed: a broker of files, unless another is named.
CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default="filesystem://localhost")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = {}
if CELERY_BROKER_URL.startswith("filesystem"):
    messages = Path(env.str("CELERY_FOLDER", default=str(BASE_DIR / ".celery")))
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(messages / "messages"),
        "data_folder_out": str(messages / "messages"),
        "control_folder": str(messages / "control"),
        "polling_interval": 0.2,
    }

# What it says

#: A lease service answers 409 to each who waits for a lease: that is no warning.
REQUESTS = "WARNING" if HAS_TASKS else "ERROR"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "leasing.logs.LineFormatter",
            "format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s",
            "datefmt": "%H:%M:%S",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {
        "django": {"level": "INFO"},
        "django.request": {"level": REQUESTS},
        "django.server": {"level": REQUESTS},  # each open page asks every two seconds
        "leasing": {"level": "INFO"},
        "tasks": {"level": "INFO"},
    },
}
