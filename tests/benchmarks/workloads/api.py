"""The HTTP API under gunicorn, over loopback: batches of tasks, cycles of a lease next to three
bare Django views that run the same statements, the processor time of an acquire, and lists of many
rows next to lists of few.

The clients have a token. Batches and cycles are sent by two clients at a time to one worker, which
has something to do whenever it is ready.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from django.test import Client

from leasing.models import ApiToken, Lease
from tasks.models import Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, in_turns, soon
from tests.benchmarks.plain import leases
from tests.benchmarks.workloads.pages import duration, fill
from tests.processes import Process

CLIENTS = 2
BATCH = 100
#: Rows of the short lists.
FEW = 1_000
TICKS = os.sysconf("SC_CLK_TCK")
SCOPES = [
    *("leasing.view_lease", "leasing.change_lease"),
    *("leasing_tasks.view_task", "leasing_tasks.change_task"),
]
LISTS = (
    *("tasks", "tasks?status=succeeded", "tasks/started", "tasks/processed", "tasks/stuck"),
    *("tasks?queue=default", "leases", "leases/active"),
    # No task is there, and no index says so: it looks through 2,000 rows, of however many.
    "tasks?queue=nobodys",
)

#: Sends a request, and returns the answer.
Call = Callable[[str, str, dict[str, Any]], Any]


def run(bench: Bench) -> Figures:
    """Tasks and cycles a second, and milliseconds of lists."""
    import project.urls  # noqa: F401 - knows the scopes

    _, secret = ApiToken.objects.issue("bench", scopes=SCOPES)
    server = Server(bench, secret)
    figures = _batches(bench, server) | _cycles(bench, server) | _acquires(bench, server)
    filling.forget_tasks()
    return figures | _lists(bench, secret)


class Server:
    """One worker of gunicorn with the demo site, for clients with the token ``secret``."""

    def __init__(self, bench: Bench, secret: str) -> None:
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        command = ["-m", "gunicorn", "--workers", "1", "--bind", "127.0.0.1:0", "project.wsgi"]
        process = bench.process(*command, BENCH_URLS="tests.benchmarks.bare_urls")
        self._port = int(soon(partial(_heard, r"http://127\.0\.0\.1:(\d+)", process), "a server"))
        self.url = f"http://localhost:{self._port}"
        self._worker = int(soon(partial(_heard, r"worker with pid: (\d+)", process), "a worker"))

    def call(self, method: str, path: str, body: dict[str, Any], *, keyed: bool = True) -> Any:
        """Send a request on a connection of its own, as gunicorn's workers want it. A POST has an
        Idempotency-Key, as those of the clients, unless it is not ``keyed``."""
        headers = dict(self._headers)
        if keyed and method == "POST":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        connection = http.client.HTTPConnection("localhost", self._port, timeout=60)
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path} answers {response.status}: {answer}")
        return answer

    def cpu(self) -> float:
        """Seconds of processor time that the worker has used."""
        with open(f"/proc/{self._worker}/stat") as stat:
            user, system = stat.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS


def _heard(pattern: str, process: Process) -> str | None:
    if process.poll() is not None:
        raise RuntimeError(process.output)
    found = re.search(pattern, process.output)
    return found and found[1]


def _batches(bench: Bench, server: Server) -> Figures:
    """Tasks that are claimed and completed, a hundred at a time."""
    count = max(1, bench.size.batched // (BATCH * CLIENTS)) * BATCH * CLIENTS
    Task.objects.enqueue_many("bench.nothing", [{"n": 1}] * (count + BATCH))
    _batch(server.call, "warm")
    before = server.cpu()

    def work(number: int) -> None:
        while _batch(server.call, f"client-{number}"):
            pass

    seconds = _by_clients(work)
    if Task.objects.succeeded().count() != count + BATCH:
        raise RuntimeError("some tasks were not completed")
    return {
        "batches of 100 over HTTP, 1 gunicorn worker (tasks/s)": {"ours": count / seconds},
        "CPU of the HTTP worker in batches (us a task)": {
            "ours": (server.cpu() - before) / count * 1e6
        },
    }


def _batch(call: Call, processor: str) -> bool:
    """Claim and complete a batch. Returns False if there is no task."""
    claimed = call("POST", "/api/tasks/next", {"processor": processor, "limit": BATCH})
    tasks = claimed.get("tasks", [])
    if tasks:
        ended = [
            {"id": task["id"], "lease_key": task["lease_key"], "task_output": {"ok": True}}
            for task in tasks
        ]
        results = call("PUT", "/api/tasks/complete", {"tasks": ended})["results"]
        if any(each["status"] != 202 for each in results):
            raise RuntimeError(f"not all were completed: {results}")
    return bool(tasks)


def _cycles(bench: Bench, server: Server) -> Figures:
    """Leases that are acquired, renewed and released."""
    plain = leases.connect(bench.url)
    leases.create(plain, [f"client-{number}" for number in range(CLIENTS)])
    plain.close()

    def ours(resource: str) -> None:
        term = {"resource": resource, "holder": "bench"}
        term["lease_key"] = server.call("POST", "/api/leases", term)["lease_key"]
        server.call("PUT", "/api/leases/renew", term)
        server.call("DELETE", "/api/leases/release", term)

    def bare(resource: str) -> None:
        for verb in ("acquire", "renew", "release"):
            server.call("POST", f"/bare/{verb}", {"resource": resource})

    def measured(cycle: Callable[[str], None]) -> float:
        done = [0] * CLIENTS
        until = time.perf_counter() + bench.size.lease_seconds

        def work(number: int) -> None:
            while time.perf_counter() < until:
                cycle(f"client-{number}")
                done[number] += 1

        seconds = _by_clients(work)
        return sum(done) / seconds

    found = in_turns(
        {"limit": partial(measured, bare), "ours": partial(measured, ours)}, bench.size.rounds
    )
    return {"acquire, renew, release over HTTP (cycles/s)": found}


def _acquires(bench: Bench, server: Server) -> Figures:
    """Processor time of leases that are acquired, each as a client sends it and without its key."""

    def measured(*, keyed: bool) -> float:
        terms = [
            {"resource": f"acquired-{number}", "holder": "bench"}
            for number in range(bench.size.acquired)
        ]
        used = server.cpu()
        for term in terms:
            answer = server.call("POST", "/api/leases", term, keyed=keyed)
            term["lease_key"] = answer["lease_key"]
        used = server.cpu() - used
        for term in terms:
            server.call("DELETE", "/api/leases/release", term)
        return used / len(terms) * 1e6

    measured(keyed=True)  # which creates the rows
    contenders = {"ours": partial(measured, keyed=True), "no key": partial(measured, keyed=False)}
    found = in_turns(contenders, bench.size.rounds)
    return {"CPU of the HTTP worker for an acquire (us)": found}


def _by_clients(work: Callable[[int], None]) -> float:
    """Have clients do ``work`` at the same time. Returns the seconds that took."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(CLIENTS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - start


def _lists(bench: Bench, secret: str) -> Figures:
    """The first pages of lists, in the server."""
    client = Client(SERVER_NAME="localhost", headers={"Authorization": f"Bearer {secret}"})

    def times() -> dict[str, float]:
        return {name: _shortest(client, f"/api/{name}") for name in LISTS}

    fill(FEW)
    short = times()
    filling.forget_tasks()
    Lease.objects.all().delete()
    fill(bench.size.listed)
    long = times()
    rows = f"{bench.size.listed:,} rows"
    figures: Figures = {
        f"API at {rows}: {name} (ms)": {"ours": took} for name, took in long.items()
    }
    ratios = [long[name] / short[name] for name in LISTS]
    return figures | {"lists of the API, long to short, the slowest (ratio)": {"ours": max(ratios)}}


def _shortest(client: Client, page: str) -> float:
    """Milliseconds of a request that nobody disturbs."""
    return min(duration(client, page) for _ in range(3))
