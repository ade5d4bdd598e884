"""Tools of workloads: a database, a size, processes, and turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.databases import ROOT, environment
from tests.benchmarks.sizes import Size
from tests.processes import BOUND, Process

#: What the processes complain of: a worker warns of every task that it recovers.
LOG = ROOT / "build" / "bench.log"

#: What was measured, by its name and who did it ("limit", "ours", a peer).
Figures = dict[str, dict[str, float]]


class Puppet(subprocess.Popen[str]):
    """A process that does what it is told, a line at a time, and answers each in JSON."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self.name = " ".join(command)
        super().__init__(
            [*BOUND, *command],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        #: The line that it prints when it is ready.
        self.greeting = self.answer()

    def tell(self, line: str = "go") -> None:
        """Have it do something."""
        assert self.stdin is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def answer(self) -> Any:
        """Wait for what it says. Raises RuntimeError when it has ended instead."""
        assert self.stdout is not None
        line = self.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.wait()}")
        return json.loads(line)

    def ask(self, line: str = "go") -> Any:
        """Have it do something, and wait for what it says."""
        self.tell(line)
        return self.answer()

    def close(self) -> None:
        """End its input, so that it ends."""
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def end(self) -> None:
        """End its input, and then it."""
        self.close()
        try:
            self.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()


def play(orders: Mapping[str, Callable[[], Any]]) -> None:
    """Be a puppet: say so, and do as each line of the input says."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(orders[line.strip()]()), flush=True)


@dataclass
class Bench:
    """One turn's means."""

    url: str
    size: Size
    #: For logs and files of the processes.
    folder: str
    _processes: list[Process] = field(default_factory=list)
    _puppets: list[Puppet] = field(default_factory=list)

    def worker(self, *args: str, queue: str = "default", **env: str) -> Process:
        """Start ``manage.py run_worker``, with ``env`` in its environment."""
        return self.process("manage.py", "run_worker", "--queue", queue, *args, **env)

    def process(self, *args: str, **env: str) -> Process:
        """Start ``python *args``, with ``env`` in its environment."""
        log = Path(self.folder, f"process-{len(self._processes)}.log")
        self._processes.append(Process(args, {**environment(self.url), **env}, log))
        return self._processes[-1]

    def file(self, name: str, text: str) -> Path:
        """Write a file for the processes."""
        path = Path(self.folder, name)
        path.write_text(text)
        return path

    def puppet(self, module: str, *args: str, url: str | None = None) -> Puppet:
        """Start ``python -m tests.benchmarks.<module>``, and wait until it is ready."""
        command = [sys.executable, "-m", f"tests.benchmarks.{module}", *args]
        self._puppets.append(Puppet(command, environment(url or self.url)))
        return self._puppets[-1]

    @contextmanager
    def processes(self) -> Iterator[None]:
        """End what was started in this block, and show what workers had to say."""
        try:
            yield
        finally:
            for process in self._processes:
                if process.poll() is None:
                    process.terminate()
            for process in self._processes:
                process.end()
                sys.stderr.write(process.output)
            for puppet in self._puppets:
                puppet.close()
            for puppet in self._puppets:
                puppet.end()
            self._processes, self._puppets = [], []


def until(condition: Callable[[], Any], what: str, *, timeout: float = 600.0) -> Any:
    """Look four times a second until ``condition`` gives something true, and return that."""
    return _look(condition, what, timeout, 0.25)


def soon(condition: Callable[[], Any], what: str, *, timeout: float = 60.0) -> Any:
    """``until``, for what takes little time and disturbs nobody who measures."""
    return _look(condition, what, timeout, 0.01)


def _look(condition: Callable[[], Any], what: str, timeout: float, pause: float) -> Any:
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s: {what}")
        time.sleep(pause)
    return value


def rate(work: Callable[[], object], seconds: float) -> float:
    """Return how often ``work`` is done in a second."""
    done = 0
    start = now = time.perf_counter()
    while now - start < seconds:
        work()
        done += 1
        now = time.perf_counter()
    return done / (now - start)


def in_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each of ``contenders`` answers in turns with the others."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, measure in contenders.items():
            found[name].append(measure())
    return {name: statistics.median(figures) for name, figures in found.items()}


def measured(command: list[str], url: str, **env: str) -> Any:
    """Return the JSON of a process's last line. Its complaints are in LOG. Raises
    CalledProcessError, ValueError."""
    env = {**environment(url), **env}
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        done = subprocess.run(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, check=True
        )
    lines = done.stdout.decode().strip().splitlines() or [""]
    return json.loads(lines[-1])


def percentile(figures: list[float], percent: float) -> float:
    """The smallest of ``figures`` that at least ``percent`` of them do not exceed."""
    place = -(-len(figures) * percent // 100)
    return sorted(figures)[max(0, int(place) - 1)]
