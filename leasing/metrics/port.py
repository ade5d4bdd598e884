"""``--metrics-port``: serve the metrics of a process on a separate port."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
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


#: Returns the status and the text of a page by its path; None: it has no such page.
Page = Callable[[str], tuple[HTTPStatus, str] | None]


def serve(
    options: Mapping[str, Any], page: Page = lambda path: None, *, index: int | None = None
) -> None:
    """Count in this process and show it as the ``options`` of the command say; nothing without a
    port. Raises CommandError.

    Args:
        options: The options of the command.
        page: Pages that are served beside the metrics.
        index: The number, from 1 on, of this process among several of one command. The first has
            the port of the options, each of the others the next one; where they share their
            counts, the first alone has a port, and shows those of all.
    """
    port, address = options["metrics_port"], options["metrics_address"]
    if port is None:
        return
    if (port := port_of(port, index)) is None:
        registry.connect()
        return
    if not 0 <= port <= 65535:
        raise CommandError("--metrics-port must be from 0 to 65535.")
    try:
        serve_at(address, port, page)
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(
            f"Cannot serve metrics at {address} port {port}: {error.strerror}."
        ) from error


def port_of(port: int, index: int | None) -> int | None:
    """Return the port of the process with that number; None: the first shows what it counts."""
    if index is None or port == 0 and not registry.is_shared():
        return port
    if registry.is_shared():
        return port if index == 1 else None
    return port + index - 1


def serve_at(address: str, port: int, page: Page = lambda path: None) -> int:
    """Count in this process, and show it at this ``address`` and ``port`` until it ends. Returns
    the port. Raises ImproperlyConfigured without the client library, OSError.

    Args:
        address: The address to listen at.
        port: The port; 0 is any free one.
        page: Pages that are served beside the metrics.
    """
    registry.connect()
    from prometheus_client import start_http_server

    from leasing.metrics.exposition import registry_of_process

    server, _ = start_http_server(port, address, registry_of_process())
    server.set_app(_with_pages(server.get_app(), page))
    at: int = server.server_port
    log.metrics_served(address=address, port=at)
    return at


def _with_pages(metrics: Any, page: Page) -> Any:
    """Return a WSGI application that serves what ``page`` has, and ``metrics`` otherwise."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        found = page(environ["PATH_INFO"])
        if found is None or environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        status, text = found
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]
        start_response(f"{status.value} {status.phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [text.encode()]

    return app
