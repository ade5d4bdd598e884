"""``--health-port`` and ``--health-file``: a worker tells its health."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from leasing.metrics.port import Page
from tasks.log import log
from tasks.runtime.health_server import page
from tasks.worker.health_thread import HealthThread
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
        help="Address to answer probes at (default 127.0.0.1; 0.0.0.0: all)",
    )
    parser.add_argument(
        "--health-file",
        type=Path,
        metavar="PATH",
        help="Touch this file about once a second while claims, renewals and results move",
    )


def check(options: Mapping[str, Any]) -> None:
    """Raise CommandError if a value is not valid."""
    port = options["health_port"]
    if port is not None and not 0 <= port <= 65535:
        raise CommandError("--health-port must be from 0 to 65535.")


def serve(options: Mapping[str, Any], worker: WorkerProcess) -> None:
    """Tell the health of ``worker`` as the ``options`` of the command say, from now until it has
    ended. Raises CommandError."""
    port, address, file = (options[f"health_{each}"] for each in ("port", "address", "file"))
    if port is None and file is None:
        return
    try:
        thread = HealthThread(
            worker.health.read,
            worker.ended,
            address=None if port is None else (address, port),
            file=file,
        )
    except OSError as error:
        what = f"serve probes at {address} port {port}"
        if error.filename is not None:
            what = f"touch the health file {file}"
        raise CommandError(f"Cannot {what}: {error.strerror}.") from error
    if thread.server is not None:
        log.health_served(address=address, port=thread.server.port)
    worker.health.is_observed = True
    worker.watched.append(thread)
    thread.tend()


def page_of(worker: WorkerProcess) -> Page:
    """Return the probes of ``worker`` as pages of the port of its metrics."""
    worker.health.is_observed = True
    return lambda path: page(path, worker.health.read)
