"""Run tasks of a service on a machine without its database: ``python -m tasks.client``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import ssl
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from leasing.client.address import checked_token
from leasing.client.exceptions import ServiceError
from leasing.runtime.shutdown import ExitCode
from tasks.client.client import TaskClient
from tasks.client.handlers import handlers
from tasks.client.worker import Worker


def token_in(path: Path) -> str:
    """Return the token in a file, which may change at any time. Raises OSError, ValueError."""
    try:
        return checked_token(path.read_text().strip())
    except ValueError as error:
        raise ValueError(f"{path} contains no token. {error}") from None


def load(name: str) -> ModuleType:
    """Import the handlers in a file (``handlers.py``) or a module (``project.handlers``)."""
    path = Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, "")
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None or not path.is_file():
        raise ModuleNotFoundError(f"There is no file {path}.")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def trust(ca_file: str | None) -> ssl.SSLContext | bool:
    """Return the ``verify`` of a client that trusts the certificates in ``ca_file``, besides those
    of the system. Raises OSError."""
    if ca_file is None:
        return True
    context = ssl.create_default_context()  # given the file, it would load no others
    context.load_verify_locations(ca_file)
    return context


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(prog="python -m tasks.client", description=__doc__)
    add = options.add_argument
    add("handlers", nargs="+", help="Files or modules with @tasks.client.handler functions.")
    add("--url", required=True, help="Address of the API: https://tasks.example.com/api.")
    add("--token-file", type=Path, help="File with the token. It is read for each request.")
    add(
        "--queue",
        action="append",
        dest="queues",
        help="Queue to serve; may be repeated. Default: all.",
    )
    add("--concurrency", type=int, default=8, help="Handlers that run at a time (8).")
    add("--ttl", type=float, help="Seconds of the leases. Default: as the service is configured.")
    add("--name", help="Name of the holder. Default: host:pid:random.")
    add("--wait", type=float, default=5.0, help="Seconds that a claim waits for a task (5).")
    add("--stop-timeout", type=float, default=30.0, help="Seconds until tasks are given back (30).")
    add("--no-prefetch", action="store_true", help="Claim only for handlers that can start now.")
    add("--ca-file", help="Certificates that sign the service's, besides those of the system.")
    add("--drain", action="store_true", help="Stop when there is no task to run now.")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker, and return its exit code."""
    given = parser().parse_args(arguments)
    logging.basicConfig(
        level=given.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    for name in ("httpx", "httpcore"):  # a line for each request
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        token = None if given.token_file is None else partial(token_in, given.token_file)
        if token is not None:
            token()
        for name in given.handlers:
            load(name)
        if not handlers:
            raise ValueError("No handler is registered: decorate functions with @handler(name).")
        with TaskClient(given.url, token, verify=trust(given.ca_file)) as client:
            worker = Worker(
                client,
                queues=given.queues,
                concurrency=given.concurrency,
                ttl=given.ttl,
                name=given.name,
                wait=given.wait,
                stop_timeout=given.stop_timeout,
                prefetch=not given.no_prefetch,
            )
            if given.drain:
                worker.drain()
            else:
                worker.run()
    except (ServiceError, OSError, ValueError, ImportError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
