"""The world of a run: its processes, its faults, and the harness's own part of the history."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.faked import LIBRARIES, wall_clock
from tests.chaos.faults import FAULTS, Found, Planned
from tests.chaos.history import FOLDER, INVOKE, Recorder, now
from tests.chaos.servers import Postgres
from tests.chaos.workload import Actor, Run, Violation
from tests.plugin import ENVIRONMENT
from tests.processes import Process
from tests.proxy import TcpProxy

#: Seconds between two looks of the harness; a gap longer than STALL means that the machine did not
#: let it run, and so perhaps nobody.
BEAT, STALL = 0.02, 0.25
#: Seconds after which an ended process is started again.
RESTART_AFTER = 0.3
#: A worker that no result leaves, or whose slots are all blocked, gives up, and is started again:
#: what it says then, and the seconds after a fault within which that is no violation.
GAVE_UP, GIVES_UP_WITHIN = "The worker gave up because it was stuck", 12.0


@dataclass
class Running:
    """A process of an actor."""

    actor: Actor
    process: Process
    folder: Path
    clock_file: Path | None = None
    #: True once the harness has killed it, or a part of it.
    is_hit: bool = False
    #: The moment at which it is started again.
    again_at: float = 0.0
    has_stopped: bool = False
    _history: Path | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def process_name(self) -> str:
        """Its name in histories."""
        return f"{self.actor.name}-{self.pid}"

    @property
    def runs(self) -> bool:
        return not self.has_stopped and self.process.poll() is None

    @property
    def children(self) -> list[int]:
        """All that descend from it."""
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            with suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    todo += [int(each) for each in (thread / "children").read_text().split()]
            found.append(pid)
        return found[1:]

    @property
    def last(self) -> dict[str, Any]:
        """The last line of its history."""
        file = self.folder / f"{self.process_name}.jsonl"
        with suppress(OSError, ValueError, IndexError), file.open("rb") as history:
            history.seek(max(0, file.stat().st_size - 1000))
            return dict(json.loads(history.read().splitlines()[-1]))
        return {"kind": "", "name": "", "resource": ""}

    def inside(self, name: str) -> str | None:
        """Return the resource of the call that it has begun last, if it is such a one and has not
        ended."""
        last = self.last
        return str(last["resource"]) if (last["kind"], last["name"]) == (INVOKE, name) else None


class World:
    """What faults act on. Made for one run of one workload."""

    def __init__(
        self,
        run: Run,
        database: str,
        postgres: Postgres | None,
        web: TcpProxy,
        settings: Mapping[str, str],
    ) -> None:
        self.run = run
        self.database = database
        self._postgres = postgres
        self._web = web
        #: Seconds that processes have to stop.
        self.stop_timeout = 20.0
        #: Variables of the environment of all processes.
        self.settings = settings
        self.crew: list[Running] = []
        self.recorder = Recorder(run.folder, "chaos")
        self.violations: list[Violation] = []
        #: When the latest fault ended, on the monotonic clock.
        self.hit_at = -math.inf
        #: How often processes were stopped inside a write, by kinds of resources.
        self.inside: Counter[str] = Counter()

    @property
    def postgres(self) -> Postgres:
        assert self._postgres is not None, "a fault of PostgreSQL on another database"
        return self._postgres

    @property
    def proxies(self) -> list[TcpProxy]:
        return [*self.postgres.proxies, self._web]

    # Processes

    def start(self, actor: Actor) -> None:
        """Start a process of ``actor``."""
        url = self.run.url
        if self._postgres is not None:
            url = self._postgres.url(self.database, actor.network)
        env = {
            **os.environ,
            **ENVIRONMENT,
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "PYTHONUNBUFFERED": "1",
            "DATABASE_URL": url,
            FOLDER: str(self.run.folder),
            "CHAOS_NAME": actor.name,
            "CHAOS_SEED": str(self.run.seed),
            "CHAOS_SERVERS": json.dumps(dict(self.run.servers)),
            **self.settings,
            **actor.env,
        }
        args, clock_file = actor.args, None
        if actor.has_clock and LIBRARIES and self._postgres is not None:
            clock_file = self.run.folder / f"{actor.name}.clock"
            if not clock_file.exists():
                clock_file.write_text("+0h")
            env |= wall_clock(clock_file)
            args = ["-m", "tests.chaos.faked", *args]
        log = self.run.folder / f"{actor.name}.{sum(each.actor == actor for each in self.crew)}.log"
        process = Process(args, env, log, folder=Path.cwd())
        self.crew.append(Running(actor, process, self.run.folder, clock_file))

    def choose(
        self,
        chance: random.Random,
        condition: Callable[[Running], bool] = lambda each: True,
        *,
        kind: str | None = None,
    ) -> list[Running]:
        """Return one process that faults may hit, in a list; an empty one if there is none."""
        if kind is None:
            found = [each for each in self.crew if each.actor.kind]
        else:
            found = [each for each in self.crew if each.actor.kind == kind]
        found = [each for each in found if each.runs and condition(each)]
        # By name: the same chance chooses the same one though they were started in another order.
        found.sort(key=lambda each: each.actor.name)
        return [chance.choice(found)] if found else []

    def kill(self, victim: Running, pids: list[int]) -> int:
        """Kill these. Return how many there were."""
        hits = 0
        victim.is_hit = True
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hits += 1
        return hits

    def signal(self, victim: Running, number: int) -> None:
        """Send a signal to a process and its children."""
        for pid in (victim.pid, *victim.children):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def look(self) -> None:
        """Start again what has ended."""
        for each in self.crew:
            if each.has_stopped or each.process.poll() is None:
                continue
            if not each.again_at:
                end = each.process.output[-1500:]
                gave_up = GAVE_UP in end and time.monotonic() - self.hit_at < GIVES_UP_WITHIN
                if not (each.is_hit or each.actor.is_foreign or gave_up):
                    words = f"{each.actor.name} ended with {each.process.returncode}:\n{end}"
                    self.violations.append(Violation("a process ended by itself", words))
                each.again_at = time.monotonic() + RESTART_AFTER
            elif time.monotonic() > each.again_at:
                each.has_stopped = True
                self.start(each.actor)

    def stop(self, *, lasting: bool) -> None:
        """Stop the actors that last, or the others: one that does not end is a violation."""
        present = [
            each for each in self.crew if not each.has_stopped and each.actor.lasts == lasting
        ]
        for each in present:
            self.signal(each, signal.SIGCONT)
            with suppress(ProcessLookupError):
                each.process.terminate()
        deadline = time.monotonic() + self.stop_timeout
        for each in present:
            each.has_stopped = True
            try:
                each.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                if each.actor.is_foreign:
                    continue
                end = each.process.output[-1500:]
                words = f"{each.actor.name} did not stop within {self.stop_timeout:g} s:\n{end}"
                self.violations.append(Violation("a process hangs at the end", words))
            finally:
                _end(each)

    def close(self) -> None:
        """Kill all that still runs."""
        for each in self.crew:
            _end(each)

    # Faults

    def go(self, plan: Sequence[Planned], seconds: float) -> None:
        """Let the processes work for ``seconds``, with these faults."""
        began = time.monotonic()
        todo = list(plan)
        under_way: list[tuple[float, Planned, Iterator[Found], Found, int]] = []
        while (passed := time.monotonic() - began) < seconds or under_way or todo:
            self.look()
            while todo and todo[0].begins <= passed:
                fault = todo.pop(0)
                at, steps = now(), FAULTS[fault.name].fault(self, random.Random(fault.salt))
                try:
                    found = next(steps)
                except psycopg.OperationalError:  # another one is under way
                    found = {"hits": 0}
                ends = time.monotonic() - began + fault.lasts
                under_way.append((ends, fault, steps, found, at))
            for each in [each for each in under_way if each[0] <= passed]:
                under_way.remove(each)
                _, fault, steps, found, at = each
                next(steps, None)
                self.hit_at = time.monotonic()
                self.recorder.note("fault", fault.name, began=at, **found)
            time.sleep(BEAT)

    @contextmanager
    def heart(self) -> Iterator[None]:
        """Record when the machine does not let the harness run."""
        ended = threading.Event()

        def beat() -> None:
            before = now()
            while not ended.wait(BEAT):
                at = now()
                if at - before > STALL * 1e9:
                    self.recorder.note("stall", began=before)
                before = at
            self.recorder.note("load", share=os.getloadavg()[0] / (os.cpu_count() or 1))

        # The database's clock is the host's wall clock.
        self.recorder.note("clocks", offset=time.time() - now() / 1e9)
        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _end(each: Running) -> None:
    pids: list[Any] = each.children
    with suppress(ProcessLookupError):
        os.killpg(each.pid, signal.SIGKILL)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    each.process.wait()
