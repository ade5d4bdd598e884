"""The demo of two services: their databases, users and tokens, and the processes around them.

This process has no database. What one of a service is to hold is made by a command in a process of
its own, with the environment of that service.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from django.core.management.base import CommandError

from project.services import LEASES, TASKS
from project.supervisor import MANAGE, SiteProcess

#: The scopes of the tokens with which the generators and the remote worker call the services.
GENERATOR_SCOPES = ("leasing.change_lease",)
WORKER_SCOPES = (
    "leasing_tasks.view_task",
    "leasing_tasks.view_payload",
    "leasing_tasks.change_task",
)
#: Of the names of the leases that the generators may take.
PREFIX = "demo."
REMOTE = "remote-1"


@dataclass(frozen=True)
class Service:
    """One of the two, as a web process serves it on this machine."""

    name: str
    port: int
    database: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        return f"http://{self.address}/api"

    @property
    def env(self) -> dict[str, str]:
        """Return what makes a process one of this service."""
        return {"SERVICES": self.name, "DATABASE_URL": self.database}

    def command(self, *arguments: str, **env: str) -> str:
        """Run a command in a process of this service, and return what it printed. Raises
        CommandError with what it complained of."""
        ended = subprocess.run(
            [sys.executable, str(MANAGE), *arguments],
            env={**os.environ, **self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise CommandError(f"The {self.name} service: {ended.stderr.strip()}")
        return ended.stdout


def two_services(port: int) -> tuple[Service, Service]:
    """Return the lease service, at ``port``, and the task service, at the next. Each has the
    database that its variable names, or a file of its own. Raises CommandError."""
    made = [
        Service(name, port + number, _database_of(name))
        for number, name in enumerate((LEASES, TASKS))
    ]
    if made[0].database == made[1].database:
        raise CommandError("Each service needs a database of its own.")
    return made[0], made[1]


def _database_of(name: str) -> str:
    variable = f"{name.upper()}_DATABASE_URL"
    given = os.environ.get(variable)
    if not given and os.environ.get("DATABASE_URL"):
        raise CommandError(
            "Each service needs a database of its own: set LEASES_DATABASE_URL and "
            "TASKS_DATABASE_URL, and not DATABASE_URL."
        )
    return given or f"sqlite:///{MANAGE.parent / f'{name}.sqlite3'}"


@contextmanager
def token(service: Service, what: str, scopes: Sequence[str], *options: str) -> Iterator[str]:
    """A block with a token of ``service``, which is revoked at its end, or else ends in a day.

    Args:
        service: The service.
        what: What it is for; its name begins with that.
        scopes: Its scopes.
        options: Further options of ``api_tokens create``.
    """
    name = f"{what} {secrets.token_hex(3)}"
    given = [argument for scope in scopes for argument in ("--scope", scope)]
    say = ["--by", "demo", "--reason", "made by the demo"]
    made = service.command(
        "api_tokens", "create", name, *given, *options, "--days", "1", *say, "--json"
    )
    try:
        yield json.loads(made)["secret"]
    finally:
        with suppress(CommandError):
            service.command("api_tokens", "revoke", name, *say)


@contextmanager
def processes(
    leases: Service, tasks: Service, generators: Mapping[str, Sequence[str]], quiet: Sequence[str]
) -> Iterator[list[SiteProcess]]:
    """A block with the processes of both services, and tokens for those who call them.

    Args:
        leases: The lease service.
        tasks: The task service.
        generators: The arguments of each generator, by its name.
        quiet: Options of every command that serves.
    """
    with ExitStack() as stack:
        enter = stack.enter_context
        prefix = ("--prefix", PREFIX)
        generating = enter(token(leases, "demo generators", GENERATOR_SCOPES, *prefix))
        working = enter(token(tasks, "demo remote worker", WORKER_SCOPES))
        file = Path(enter(TemporaryDirectory(prefix="leasing-demo-"))) / "token"
        file.touch(mode=0o600)
        file.write_text(working)
        generator_env = {
            **tasks.env,
            "LEASE_SERVICE_URL": leases.api,
            "LEASE_SERVICE_TOKEN": generating,
        }
        # Without a token: it asks the lease service nothing.
        web_env = {**tasks.env, "LEASE_SERVICE_URL": leases.api}
        handlers = str(MANAGE.parent / "project" / "remote_handlers.py")
        remote = ["-m", "tasks.client", "--url", tasks.api, "--token-file", str(file)]
        remote += ["--name", REMOTE, "--ttl", "10", "--wait", "2", handlers]
        serve = ["runserver", "--skip-checks", "--noreload", "--insecure"]
        yield [
            SiteProcess(LEASES, [*serve, leases.address], leases.env),
            SiteProcess(TASKS, [*serve, tasks.address], web_env),
            SiteProcess("recovery", ["run_recovery", *quiet], web_env),
            # It sees no database, and has no settings.
            SiteProcess(
                REMOTE,
                remote,
                {"DATABASE_URL": "", "DJANGO_SETTINGS_MODULE": ""},
                needs=[tasks.port],
            ),
            *(
                SiteProcess(name, arguments, generator_env, needs=[leases.port])
                for name, arguments in generators.items()
            ),
        ]
