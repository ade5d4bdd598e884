"""Show the counts of a Celery worker at a port of its main process."""

from __future__ import annotations

from typing import Any

from celery import signals
from django.core.exceptions import ImproperlyConfigured

_port, _address = 0, ""


def show(port: int, address: str) -> None:
    """Count in workers of this process, and show the counts at this ``address`` and ``port``."""
    global _port, _address
    _port, _address = port, address
    # Before the pool is forked, whose processes count on with what they inherit; and after, or
    # they would inherit the port.
    signals.worker_init.connect(_count, dispatch_uid="tasks.measuring")
    signals.worker_ready.connect(_serve, dispatch_uid="tasks.measuring")


def _count(**kwargs: Any) -> None:
    from leasing.metrics import registry

    try:
        registry.connect()
    except ImproperlyConfigured as error:
        raise SystemExit(str(error)) from error


def _serve(sender: Any, **kwargs: Any) -> None:
    from leasing.metrics.port import serve_at
    from leasing.metrics.registry import SHARED, is_shared

    forks = type(sender.controller.pool).__module__ == "celery.concurrency.prefork"
    if forks and not is_shared():
        raise SystemExit(f"Metrics of a pool of processes need {SHARED}: see docs/celery.md.")
    try:
        serve_at(_address, _port)
    except OSError as error:
        raise SystemExit(
            f"Cannot serve metrics at {_address} port {_port}: {error.strerror}."
        ) from error
