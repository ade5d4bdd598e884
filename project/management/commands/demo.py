from __future__ import annotations

import os
import secrets
import socket
import sys
from argparse import ArgumentParser
from importlib.util import find_spec
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from leasing.runtime.shutdown import on_stop_signal
from project.samples import seed
from project.supervisor import Supervisor
from tasks.conf import task_settings

USER = "demo"
#: The name of the parent of two workers.
PARENT = "fleet-1"
#: By which the demo knows its own user: nobody's password is changed because of the name.
EMAIL = "demo@django-leasing.invalid"
#: Short, so that a visitor sees crashed work recovered within the first minute.
TTL = 10
#: Options of its processes: the demo has checked, and introduces all of them itself.
QUIET = ("--skip-checks", "--verbosity", "0")


class Command(BaseCommand):
    help = (
        "Run the demo: web server, two workers with simulated failures, a parent with two more, "
        "two generators."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        port = os.environ.get("PORT") or "8000"
        parser.add_argument(
            "--port",
            type=int,
            default=int(port),
            help="Port of the web server (default: PORT or 8000)",
        )

        parser.add_argument(
            "--engine",
            choices=("leasing", "celery"),
            default=os.environ.get("ENGINE") or "leasing",
            help="Engine that runs the tasks: run_worker, or Celery over files (default: ENGINE or "
            "leasing)",
        )

    def handle(self, **options: Any) -> None:
        over_celery = options["engine"] == "celery"
        if over_celery and find_spec("celery") is None:
            raise CommandError("Celery is not installed: pip install 'django-leasing[celery]'.")
        _check_free(options["port"])
        call_command("migrate", verbosity=0, interactive=False)
        password = self._make_user()
        seed()
        address = f"127.0.0.1:{options['port']}"
        generator = ["run_generator", *QUIET, "--start", "--shortest", "1"]
        generator += ["--longest", "6"]
        demo = Supervisor(
            [
                ("web", ["runserver", "--skip-checks", "--noreload", "--insecure", address]),
                *(_celery() if over_celery else _workers()),
                ("generator-1", [*generator, "--name", "generator-1"]),
                ("generator-2", [*generator, "--name", "generator-2"]),
            ],
            env={
                "DJANGO_RUNSERVER_HIDE_WARNING": "true",
                "LEASING_API_ACCESS": "compatible",
                "LEASING_TTL": os.environ.get("LEASING_TTL") or str(TTL),
                **(_over_celery() if over_celery else {}),
            },
            out=sys.stdout,
        )
        self._greet(address, password, over_celery=over_celery)
        with on_stop_signal(demo.stop):
            demo.run()
        self.stdout.write("The demo has stopped.")

    def _make_user(self) -> str:
        """The demo's own superuser, with a password for this start alone."""
        password = os.environ.get("DEMO_PASSWORD") or secrets.token_urlsafe(6)
        user, _ = get_user_model()._default_manager.get_or_create(
            username=USER, defaults={"email": EMAIL, "is_staff": True, "is_superuser": True}
        )
        if user.email != EMAIL:
            raise CommandError(f"The user {USER} of this database was not created by the demo.")
        user.set_password(password)
        user.save()
        return password

    def _greet(self, address: str, password: str, *, over_celery: bool) -> None:
        crew = "Two workers share the tasks"
        if not over_celery:
            crew = "Two workers, and two under a parent, share the tasks"
        self.stdout.write(
            f"""
  Pages   http://{address}/ops/
  Admin   http://{address}/admin/
  API     http://{address}/api/leases/active   (this machine only)
  Sign in as {USER} with the password {password}

  {crew}; 5 % of tasks crash their worker, 10 % stall.
  Ctrl-C ends it.
"""
        )


def _workers() -> list[tuple[str, list[str]]]:
    worker = ["run_worker", *QUIET, "--chaos", "--stop-timeout", "5"]
    bare = [(name, [*worker, "--name", name]) for name in ("worker-1", "worker-2")]
    return [*bare, (PARENT, [*worker, "--name", PARENT, "--workers", "2"])]


def _over_celery() -> dict[str, str]:
    return {"TASK_CELERY_QUEUES": ",".join(task_settings.QUEUES), "TASK_CHAOS": "1"}


def _celery() -> list[tuple[str, list[str]]]:
    """Two Celery workers, and two relays of which one publishes."""
    worker = ["-m", "celery", "-A", "project.celery", "--quiet", "worker", "--loglevel", "WARNING"]
    worker += ["--queues", _over_celery()["TASK_CELERY_QUEUES"]]
    worker += ["--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle"]
    return [
        *((name, [*worker, "--hostname", f"{name}@demo"]) for name in ("worker-1", "worker-2")),
        *((name, ["run_relay", *QUIET, "--name", name]) for name in ("relay-1", "relay-2")),
    ]


def _check_free(port: int) -> None:
    """Raise CommandError when something else answers on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandError(
                f"Port {port} cannot be used ({error}). Set PORT to another one."
            ) from error
