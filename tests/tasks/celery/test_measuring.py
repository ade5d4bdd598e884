"""Show the counts of a Celery worker at a port of its main process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.concurrency.prefork import TaskPool as Prefork
from celery.concurrency.thread import TaskPool as Threads

from leasing.metrics import port as metrics_port
from leasing.metrics import registry
from tasks.celery import connect

served: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _shown(monkeypatch: pytest.MonkeyPatch) -> None:
    served.clear()
    monkeypatch.setattr(metrics_port, "serve_at", lambda *at: served.append(at))
    monkeypatch.delenv(registry.SHARED, raising=False)
    monkeypatch.setattr(signals.worker_init, "receivers", [])
    monkeypatch.setattr(signals.worker_ready, "receivers", [])
    connect(Celery("tests", set_as_current=False), attend=False, metrics_port=9104)


class Consumer:
    """The sender of Celery's signal."""

    def __init__(self, pool: Any) -> None:
        self.controller = SimpleNamespace(pool=pool.__new__(pool))


def test_a_worker_of_threads_shows_what_it_counts() -> None:
    signals.worker_ready.send(sender=Consumer(Threads))

    assert served == [("127.0.0.1", 9104)]


def test_a_pool_of_processes_needs_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="PROMETHEUS_MULTIPROC_DIR"):
        signals.worker_ready.send(sender=Consumer(Prefork))
    monkeypatch.setenv(registry.SHARED, "somewhere")

    signals.worker_ready.send(sender=Consumer(Prefork))

    assert served == [("127.0.0.1", 9104)]


def test_a_port_that_is_taken_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(address: str, port: int) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(metrics_port, "serve_at", taken)

    with pytest.raises(SystemExit, match="9104: Address already in use"):
        signals.worker_ready.send(sender=Consumer(Threads))


def test_so_does_a_client_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "can_count", lambda: False)

    with pytest.raises(SystemExit, match="prometheus"):
        signals.worker_init.send(sender=None)
