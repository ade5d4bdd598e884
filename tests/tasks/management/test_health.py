"""``run_worker`` with --health-port and --health-file."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from tasks.management.commands import run_worker
from tasks.worker.process import WorkerProcess
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def while_it_runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WorkerProcess]:
    """Run a worker with these options, and call a function with it before it ends."""

    def run(look: Callable[[WorkerProcess], object], *options: str) -> WorkerProcess:
        made: list[WorkerProcess] = []
        serve = WorkerProcess._serve

        def looked(worker: WorkerProcess) -> None:
            made.append(worker)

            def look_and_stop() -> None:
                try:
                    look(worker)
                finally:
                    worker.stop()

            ending = threading.Thread(target=look_and_stop)
            ending.start()
            serve(worker)
            ending.join()

        monkeypatch.setattr(WorkerProcess, "_serve", looked)
        monkeypatch.setattr(run_worker, "on_stop_signal", lambda stop: threading.Lock())
        call_command("run_worker", "--verbosity", "0", *options)
        return made[0]

    return run


def test_a_worker_answers_probes_and_touches_a_file_until_it_has_ended(
    while_it_runs: Callable[..., WorkerProcess],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "health"
    port: list[int] = []

    def look(worker: WorkerProcess) -> None:
        assert len(worker.watched) == 1
        port.extend(record.port for record in caplog.records if hasattr(record, "port"))
        wait_for(lambda: not worker.health.read().reasons)
        for probe in ("livez", "readyz"):
            with urlopen(f"http://127.0.0.1:{port[0]}/{probe}", timeout=20) as answer:
                assert answer.read() == b"ok\n"

    while_it_runs(look, "--health-port", "0", "--health-file", str(path))

    assert path.exists()

    def is_closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port[0])) != 0

    wait_for(is_closed)


def test_without_the_options_nothing_is_served(
    while_it_runs: Callable[..., WorkerProcess],
) -> None:
    worker = while_it_runs(lambda worker: None)

    assert worker.watched == []
    assert not worker.health.is_observed


def test_a_port_that_is_in_use_and_a_file_that_cannot_be_made_are_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"probes at 127.0.0.1 port {port}: Address already"):
            call_command("run_worker", "--health-port", str(port))
    path = tmp_path / "none" / "health"
    with pytest.raises(CommandError, match=f"Cannot touch the health file {path}: No such file"):
        call_command("run_worker", "--health-file", str(path))
