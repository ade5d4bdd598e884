"""What a workload is, and what its processes are given.

A workload is a module ``tests/chaos/workloads/<name>.py`` with

- ``actors(run) -> list[Actor]``: its processes;
- ``check(operations, facts) -> list[Violation]``: a pure function over the history and ``facts``;
- ``must_happen(operations, facts) -> dict[str, int]``: what was provoked; a zero fails the run;

and, if it needs them,

- ``DATABASES``: names of databases on which it runs (default: both);
- ``FAULTS``: names of the faults that it is given (default: all);
- ``SETTINGS``: variables of the environment of all its processes;
- ``FIRST``: names of faults that come first in its plan, for what must happen;
- ``servers(stack) -> dict[str, str]``: starts servers of its own, which ``stack`` (an ExitStack)
  ends, and returns their addresses, for ``run.servers``;
- ``prepare(run)``: called before its processes start, with Django set up on ``run.url``;
- ``is_settled(run) -> bool``: asked once the faults have ended and the actors that do not last have
  stopped; lasting ones stop when it is true, or after ``SETTLE`` seconds (default: 60);
- ``figures(operations, facts) -> str``: more figures for the line of the run;
- ``facts(run)``: what is in the database at the end (default: None).

The harness records itself in the same history, as the process ``chaos``: each fault as an operation
``fault`` with the fault's name as its resource (``value``: the victims; ``result``: what it did,
for instance ``confirmed``), and each time at which the machine did not let the harness run as an
operation ``stall``, from ``began`` to ``ended``. At the end it records the ``load`` of the machine:
processes that want to run, for each core.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.history import Operation, Recorder

#: Kinds of actors, by which faults choose their victims.
CLIENT, WORKER, WEB, NOBODY = "client", "worker", "web", ""


class Violation(NamedTuple):
    """Something that must not be."""

    rule: str
    message: str
    #: The operations that show it; the report prints those around the first.
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run of one workload."""

    seed: int
    seconds: float
    #: ``postgresql`` or ``sqlite``, and its address without a proxy in between.
    vendor: str
    url: str
    #: Histories and logs, with a folder for files of the workload.
    folder: Path
    #: Addresses of servers by name: ``web`` is that of the site, if the workload has an actor
    #: ``website(run)``.
    servers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Actor:
    """A process; one that ends is started again after a moment."""

    name: str
    #: Arguments of Python: ``["manage.py", "run_worker"]``. See also ``calls``.
    args: list[str]
    kind: str = CLIENT
    #: The way to the database: ``proxy``, ``pooler`` (PgBouncer behind the proxy) or ``direct``.
    network: str = "proxy"
    env: Mapping[str, str] = field(default_factory=dict)
    #: True for one that goes on until the workload is settled.
    lasts: bool = False
    #: True for a program of others, which may end by itself, or hang at its end.
    is_foreign: bool = False
    #: True for one whose wall clock may be set wrong (needs libfaketime; not on SQLite, whose clock
    #: that is).
    has_clock: bool = False


@dataclass(frozen=True)
class Part:
    """What a function of a workload is given in the process that runs it."""

    recorder: Recorder
    random: random.Random
    #: Set by SIGTERM: the function returns soon.
    stop: threading.Event
    number: int
    folder: Path
    #: ``run.servers``.
    servers: Mapping[str, str]


def calls(function: Callable[[Part], None], number: int = 0, **options: object) -> Actor:
    """Return an actor whose process calls ``function``, a public function of the workload's module.

    Args:
        function: It returns when ``part.stop`` is set.
        number: Which of several of its kind.
        options: Other fields of the actor.
    """
    name = f"{function.__name__}-{number}"
    args = ["-m", "tests.chaos.actor", function.__module__, function.__name__, str(number)]
    return Actor(name, args, **options)  # type: ignore[arg-type]


def website(run: Run) -> Actor:
    """Return the web server of the site, which answers at ``run.servers["web"]``."""
    args = ["-m", "gunicorn", "--workers", "1", "--threads", "8", "--bind", run.servers["bind"]]
    args += ["--graceful-timeout", "2", "--log-level", "warning", "project.wsgi"]
    return Actor(WEB, args, WEB, "direct", {"LEASING_API_ACCESS": "compatible"}, lasts=True)
