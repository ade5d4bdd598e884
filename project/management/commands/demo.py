from __future__ import annotations

import os
import secrets
import socket
import sys
from argparse import SUPPRESS, ArgumentParser
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from leasing.runtime.shutdown import on_stop_signal
from project import two_services
from project.services import BOTH, TASKS
from project.supervisor import SiteProcess, Supervisor

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
        "two generators, and an application that uses leases and tasks. With --services 2: a lease "
        "service and a task service, each with a database of its own, a remote worker and two "
        "generators."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        port = os.environ.get("PORT") or "8000"
        parser.add_argument(
            "--port",
            type=int,
            default=int(port),
            help="Port of the web server (default: PORT or 8000); the second service has the next",
        )

        parser.add_argument(
            "--engine",
            choices=("leasing", "celery"),
            default=os.environ.get("ENGINE") or "leasing",
            help="Engine that runs the tasks: run_worker, or Celery over files (default: ENGINE or "
            "leasing)",
        )
        parser.add_argument(
            "--services",
            type=int,
            choices=(1, 2),
            default=1,
            help="1: leases and tasks in one service; 2: in two (default: 1)",
        )
        parser.add_argument(
            "--scenario",
            choices=("abc",),
            help="Play a story of half a minute instead, in a database of its own: three jobs, of "
            "which one is quick, one outlives its lease, and one is killed with its worker",
        )
        parser.add_argument("--prepare", action="store_true", help=SUPPRESS)

    def handle(self, **options: Any) -> None:
        if options["scenario"]:
            from project import scenario

            scenario.play()
            return
        if options["prepare"]:
            self._prepare(os.environ["DEMO_PASSWORD"])
            return
        if set(settings.SERVICES) != set(BOTH):
            raise CommandError(
                "The demo has both services. For two, unset SERVICES and pass --services 2."
            )
        password = os.environ.get("DEMO_PASSWORD") or secrets.token_urlsafe(6)
        if options["services"] == 2:
            self._run_two(options, password)
        else:
            self._run_one(options, password)
        self.stdout.write("The demo has stopped.")

    def _run_one(self, options: dict[str, Any], password: str) -> None:
        over_celery = options["engine"] == "celery"
        if over_celery and find_spec("celery") is None:
            raise CommandError("Celery is not installed: pip install 'django-leasing[celery]'.")
        _check_free(options["port"])
        self._prepare(password)
        address = f"127.0.0.1:{options['port']}"
        self._supervise(
            [
                SiteProcess(
                    "web", ["runserver", "--skip-checks", "--noreload", "--insecure", address]
                ),
                *(_celery() if over_celery else _workers()),
                *(SiteProcess(name, generator) for name, generator in _generators().items()),
                SiteProcess("bakery", ["run_bakery", "--skip-checks"]),
            ],
            _over_celery() if over_celery else {},
            lambda: self._greet(address, password, over_celery=over_celery),
        )

    def _run_two(self, options: dict[str, Any], password: str) -> None:
        if options["engine"] == "celery":
            raise CommandError("ENGINE=celery works with one service.")
        if find_spec("httpx") is None:
            raise CommandError("httpx is not installed: pip install 'django-leasing[client]'.")
        both = leases, tasks = two_services.two_services(options["port"])
        for service in both:
            _check_free(service.port)
            service.command("demo", "--prepare", "--skip-checks", DEMO_PASSWORD=password)
        with two_services.processes(leases, tasks, _generators(), QUIET) as processes:
            self._supervise(
                processes,
                {},
                lambda: self._greet_two(leases.address, tasks.address, password),
                tells_pids=True,
            )

    def _supervise(
        self,
        processes: list[SiteProcess],
        env: dict[str, str],
        greet: Any,
        **options: bool,
    ) -> None:
        demo = Supervisor(
            processes,
            env={
                "DJANGO_RUNSERVER_HIDE_WARNING": "true",
                "LEASING_API_ACCESS": "compatible",
                "LEASING_TTL": os.environ.get("LEASING_TTL") or str(TTL),
                **env,
            },
            out=sys.stdout,
            **options,
        )
        greet()
        with on_stop_signal(demo.stop):
            demo.run()

    def _prepare(self, password: str) -> None:
        """Make the tables of this process's service, the demo's user, and its samples."""
        call_command("migrate", verbosity=0, interactive=False)
        self._make_user(password)
        if TASKS in settings.SERVICES:
            from project.samples import seed

            seed()

    def _make_user(self, password: str) -> None:
        """Make the demo's own superuser, with a password for this start alone."""
        user, _ = get_user_model()._default_manager.get_or_create(
            username=USER, defaults={"email": EMAIL, "is_staff": True, "is_superuser": True}
        )
        if user.email != EMAIL:
            raise CommandError(f"The user {USER} of this database was not created by the demo.")
        user.set_password(password)
        user.save()

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
  A bakery leases an oven, a printer and a report, and enqueues its orders.
  Ctrl-C ends it.
"""
        )

    def _greet_two(self, leases: str, tasks: str, password: str) -> None:
        self.stdout.write(
            f"""
  Lease service   http://{leases}/ops/   API http://{leases}/api/leases/active
  Task service    http://{tasks}/ops/   API http://{tasks}/api/tasks
  Sign in to each as {USER} with the password {password}

  A worker without a database runs the tasks. One of two generators makes them, under a lease of
  the lease service. Each process starts again a second after you kill it (kill -9 PID).
  Ctrl-C ends it.
"""
        )


def _generators() -> dict[str, list[str]]:
    """Return the arguments of both generators, by their names."""
    generator = ["run_generator", *QUIET, "--start", "--shortest", "1", "--longest", "6"]
    return {name: [*generator, "--name", name] for name in ("generator-1", "generator-2")}


def _workers() -> list[SiteProcess]:
    worker = ["run_worker", *QUIET, "--chaos", "--stop-timeout", "5"]
    # Visitors kill and freeze these two, and see what others do.
    bare = [
        SiteProcess(name, [*worker, "--name", name, "--workers", "0"])
        for name in ("worker-1", "worker-2")
    ]
    return [*bare, SiteProcess(PARENT, [*worker, "--name", PARENT, "--workers", "2"])]


def _over_celery() -> dict[str, str]:
    from tasks.conf import task_settings

    return {"TASK_CELERY_QUEUES": ",".join(task_settings.QUEUES), "TASK_CHAOS": "1"}


def _celery() -> list[SiteProcess]:
    """Two Celery workers, and two relays of which one publishes."""
    worker = ["-m", "celery", "-A", "project.celery", "--quiet", "worker", "--loglevel", "WARNING"]
    worker += ["--queues", _over_celery()["TASK_CELERY_QUEUES"]]
    worker += ["--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle"]
    return [
        *(
            SiteProcess(name, [*worker, "--hostname", f"{name}@demo"])
            for name in ("worker-1", "worker-2")
        ),
        *(
            SiteProcess(name, ["run_relay", *QUIET, "--name", name])
            for name in ("relay-1", "relay-2")
        ),
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
