"""Draining tasks of one system call over HTTP: a remote worker with its defaults, and one gunicorn
worker, over loopback.

All tasks are stored before, in a paused queue, and both processes are up: then it is resumed.
The time is the database's, from the first claim to the last completion. The processor time is the
kernel's: of the remote worker, of the HTTP worker, and of the whole server of the database.
"""

from __future__ import annotations

from pathlib import Path

from django.db.models import Max, Min

from leasing.models import ApiToken
from tasks.models import Queue, Task
from tests.benchmarks import cpu, filling
from tests.benchmarks.bench import Bench, Figures, soon
from tests.benchmarks.workloads.api import SCOPES, Server
from tests.benchmarks.workloads.drain import fill_paused, wait_until_drained
from tests.processes import Process

HANDLERS = Path(__file__).parent.parent / "remote_handlers.py"


def run(bench: Bench) -> Figures:
    """Tasks a second, and microseconds of each process."""
    import project.urls  # noqa: F401 - knows the scopes

    _, secret = ApiToken.objects.issue("bench", scopes=SCOPES)
    server = Server(bench, secret)
    server.call("POST", "/api/tasks/next", {"processor": "warm"})  # which imports all addresses
    count = bench.size.batched
    fill_paused(count)
    worker = _start_worker(bench, server, secret)
    used, served = cpu.of_process(worker.pid), server.cpu()
    stored = cpu.of_server(bench.url)
    Queue.objects.resume("default")
    wait_until_drained()
    used, served = cpu.of_process(worker.pid) - used, server.cpu() - served
    now_stored = cpu.of_server(bench.url)
    worker.terminate()
    worker.end()
    ended = Task.objects.succeeded().filter(attempts=1, task_output={"ok": True}).count()
    if ended != count:
        raise RuntimeError(f"{ended} of {count} tasks have a result after one attempt")
    times = Task.objects.aggregate(first=Min("acquired_at"), last=Max("processed_at"))
    filling.forget_tasks()
    figures: Figures = {
        "remote drain, 1 gunicorn worker (tasks/s)": {
            "ours": count / (times["last"] - times["first"]).total_seconds()
        },
        "CPU of the remote worker while draining (us a task)": {"ours": used / count * 1e6},
        "CPU of the HTTP worker of a remote drain (us a task)": {"ours": served / count * 1e6},
    }
    total = used + served
    if stored is not None and now_stored is not None:
        total += now_stored - stored
        figures["CPU of the database of a remote drain (us a task)"] = {
            "ours": (now_stored - stored) / count * 1e6
        }
    figures["CPU of a remote drain, of all three (us a task)"] = {"ours": total / count * 1e6}
    return figures


def _start_worker(bench: Bench, server: Server, secret: str) -> Process:
    """Start a remote worker that is up: past all imports."""
    token = bench.file("token", secret)
    address = ["--url", f"{server.url}/api", "--token-file", str(token)]
    worker = bench.process("-m", "tasks.client", *address, str(HANDLERS))
    soon(lambda: "runs tasks of" in worker.output, "the remote worker is up")
    return worker
