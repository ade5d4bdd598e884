"""``--metrics-port``: a process shows at a port of its own what it counts."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from leasing.metrics import registry
from leasing.runtime.event_lines import log


def add_arguments(parser: ArgumentParser) -> None:
    """The options of a command that can show its metrics."""
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="Serve the metrics of this process on this port, for Prometheus (0: any free port)",
    )
    parser.add_argument(
        "--metrics-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="Address to serve the metrics at (default 127.0.0.1)",
    )


def serve(options: Mapping[str, Any]) -> None:
    """Count in this process and show it as the ``options`` of the command say; nothing without a
    port. Raises CommandError."""
    port, address = options["metrics_port"], options["metrics_address"]
    if port is None:
        return
    if not 0 <= port <= 65535:
        raise CommandError("--metrics-port must be from 0 to 65535.")
    try:
        serve_at(address, port)
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(
            f"Cannot serve metrics at {address} port {port}: {error.strerror}."
        ) from error


def serve_at(address: str, port: int) -> int:
    """Count in this process, and show it at this ``address`` and ``port`` until it ends. Returns
    the port. Raises ImproperlyConfigured without the client library, OSError."""
    registry.connect()
    from prometheus_client import start_http_server

    from leasing.metrics.exposition import registry_of_process

    server, _ = start_http_server(port, address, registry_of_process())
    at: int = server.server_port
    log.metrics_served(address=address, port=at)
    return at
