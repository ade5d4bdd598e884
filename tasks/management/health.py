"""``--health-port`` and ``--health-file``: a worker tells its health."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from leasing.metrics.port import Page
from tasks.fleet.parent import Parent
from tasks.log import log
from tasks.runtime.health import Health, HealthFile, HealthServer, page
from tasks.runtime.loop import Loop, LoopThread
from tasks.worker.process import WorkerProcess


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--health-port",
        type=int,
        metavar="PORT",
        help="Answer /livez and /readyz on this port, for probes (0: any free port)",
    )
    parser.add_argument(
        "--health-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="Address to serve probes at (default 127.0.0.1; 0.0.0.0: all)",
    )
    parser.add_argument(
        "--health-file",
        type=Path,
        metavar="PATH",
        help="Touch this file about once a second while claims, renewals and results succeed",
    )


def check(options: Mapping[str, Any]) -> None:
    """Raise CommandError if a value is not valid."""
    port = options["health_port"]
    if port is not None and not 0 <= port <= 65535:
        raise CommandError("--health-port must be from 0 to 65535.")


def serve(options: Mapping[str, Any], worker: WorkerProcess) -> None:
    """Tell the health of ``worker`` as the ``options`` of the command say, from now until it has
    ended. Raises CommandError. The thread waits for nothing else, so it goes on while others
    hang."""
    if options["health_port"] is None and options["health_file"] is None:
        return
    thread = LoopThread("health", worker.ended)
    _tell(options, worker.health.read, thread.loop)
    worker.health.is_observed = True
    worker.watched.append(thread)
    thread.ensure_running()


def serve_fleet(options: Mapping[str, Any], parent: Parent) -> None:
    """Tell the health of all children of ``parent`` as the ``options`` of the command say. Raises
    CommandError."""
    _tell(options, parent.health, parent.loop)


def _tell(options: Mapping[str, Any], health: Callable[[], Health], loop: Loop) -> None:
    address, port, file = (options[f"health_{each}"] for each in ("address", "port", "file"))
    try:
        if file is not None:
            HealthFile(file, health, loop)
        if port is not None:
            server = HealthServer(address, port, health, loop)
            log.health_served(address=address, port=server.port)
    except OSError as error:
        what = f"touch the health file {file}"
        if error.filename is None:
            what = f"serve probes at {address} port {port}"
        raise CommandError(f"Cannot {what}: {error.strerror}.") from error


def page_of(worker: WorkerProcess) -> Page:
    """Return the probes of ``worker`` as pages of the port of its metrics."""
    worker.health.is_observed = True
    return lambda path: page(path, worker.health.read)
