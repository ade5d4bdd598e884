"""``python -m tests.benchmarks.peers.measuring SIZE COMMAND...``: have a peer's adapter work.

The last line printed is a JSON object of figures, under the names of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.benchmarks import cpu
from tests.benchmarks.bench import Puppet, percentile
from tests.benchmarks.sizes import SIZES, Size

EVERY = 0.05
WARM_UP = 10
#: Seconds within which everything has to end.
PATIENCE = 120.0
#: Seconds between two looks at what is left: they are not to disturb before all has begun.
LOOK = 0.02
#: Seconds without a new task after which it is looked all the same.
QUIET = 0.5


@dataclass
class Crew:
    """Workers of a peer, and the folder in which they report."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def began(self) -> float | None:
        """The moment at which the first handler began."""
        moments = [each.read_text() for each in self.folder.glob("began-*")]
        return min((float(moment) for moment in moments if moment), default=None)

    def count(self) -> int:
        """The number of tasks that have run, about."""
        counts = (each.read_bytes() for each in self.folder.glob("count-*"))
        return sum(int.from_bytes(each, "little") for each in counts)

    def cpu(self) -> float:
        """Seconds that they have run, with all that they have started."""
        return sum(cpu.of_session(process.pid) for process in self.processes)


class Peer:
    """A peer's adapter, and what is asked of it."""

    def __init__(self, command: list[str], url: str) -> None:
        self.command = command
        self.url = url
        self.is_on_redis = "REDIS_URL" in os.environ
        self.adapter = Puppet(command, dict(os.environ))
        #: As many tasks as are sensible for its speed.
        self.most = int(self.adapter.greeting)

    def measure(self, size: Size) -> dict[str, float]:
        """The same names of figures as for ours."""
        took = self.adapter.ask(f"enqueue {size.enqueued}")
        figures = {"enqueue one by one (tasks/s)": size.enqueued / took}
        self.drain(1, 0)
        bulk = min(size.bulk, self.most)
        if (took := self.adapter.ask(f"enqueue_many {bulk}")) is not None:
            figures["bulk enqueue (tasks/s)"] = bulk / took
            self.drain(1, 0)
        count = min(size.drained, self.most)
        rate, worker_us, server_us = self.drain(1, count)
        figures["drain, 1 worker (tasks/s)"] = rate
        figures["CPU of the worker while draining (us a task)"] = worker_us
        if server_us is not None:
            figures["CPU of the server while draining (us a task)"] = server_us
        figures["drain, 2 workers (tasks/s)"] = self.drain(2, count)[0]
        waits = self.waits(WARM_UP + max(1, int(size.latency_seconds / EVERY)))
        figures["enqueue to start, p50 (ms)"] = percentile(waits, 50)
        figures["enqueue to start, p95 (ms)"] = percentile(waits, 95)
        return figures

    def drain(self, workers: int, count: int) -> tuple[float, float, float | None]:
        """Tasks a second, from the first that begins to the last that has ended, and microseconds
        of workers and of the server for each. Without a ``count`` what is there, for nothing."""
        if count and self.adapter.ask(f"enqueue_many {count}") is None:
            self.adapter.ask(f"enqueue {count}")
        self._settle()
        with self.running(workers) as crew:
            if not count:
                self._wait_until_done(crew)
                return 0.0, 0.0, None
            self._wait(crew, lambda: crew.began() is not None)
            used, served = crew.cpu(), self._server()
            self._wait_until_done(crew, count)
            ended, began = time.monotonic(), crew.began()
            used, still = crew.cpu() - used, self._server()
        assert began is not None
        server_us = None if still is None or served is None else (still - served) / count * 1e6
        return count / (ended - began), used / count * 1e6, server_us

    def waits(self, count: int) -> list[float]:
        """Milliseconds from the call of enqueue to the first line of the handler."""
        with self.running(1) as crew:
            self.adapter.ask("enqueue 1")
            self._wait_until_done(crew)
            sent = self.adapter.ask(f"clock {count} {EVERY}")
            self._wait_until_done(crew)
            lines = (crew.folder / "clock").read_text().split("\n")[:-1]
        began = {int(key): float(moment) for key, moment in map(str.split, lines)}
        return [(began[key] - sent[key]) * 1000 for key in range(WARM_UP, count)]

    def _settle(self) -> None:
        # What autovacuum does within a minute, as for ours.
        if not self.is_on_redis:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")

    def _server(self) -> float | None:
        return None if self.is_on_redis else cpu.of_server(self.url)

    def _wait_until_done(self, crew: Crew, count: int = 0) -> None:
        """Until nothing is left; first, without a look at the queue, until ``count`` have run."""
        seen, since = -1, time.monotonic()

        def have_run() -> bool:
            nonlocal seen, since
            done = crew.count()
            if done != seen:
                seen, since = done, time.monotonic()
            return done >= count or time.monotonic() > since + QUIET

        self._wait(crew, have_run)
        self._wait(crew, lambda: not self.adapter.ask("left"))

    def _wait(self, crew: Crew, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline or any(
                each.poll() is not None for each in crew.processes
            ):
                sys.exit(f"{self.adapter.ask('left')} tasks are left, and no worker does them")
            time.sleep(LOOK)

    @contextlib.contextmanager
    def running(self, workers: int) -> Iterator[Crew]:
        """Workers, with a folder of their own."""
        with tempfile.TemporaryDirectory(prefix="leasing-bench-") as path:
            env = {**os.environ, "BENCH_FOLDER": path}
            crew = Crew(Path(path))
            crew.processes += [
                subprocess.Popen(
                    [*self.command, "work"], env=env, stdout=sys.stderr, start_new_session=True
                )
                for _ in range(workers)
            ]
            try:
                yield crew
            finally:
                for process in crew.processes:
                    process.terminate()
                for process in crew.processes:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(5)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def main() -> None:
    size, *command = sys.argv[1:]
    peer = Peer(command, os.environ["DATABASE_URL"])
    try:
        print(json.dumps(peer.measure(SIZES[size])))
    finally:
        peer.adapter.end()


if __name__ == "__main__":
    main()
