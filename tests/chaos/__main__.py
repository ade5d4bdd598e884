"""``make chaos``: prints one line a workload; exits with 1 after a violation, or a run in which
something that must happen did not."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tests.brokers import free_ports
from tests.chaos.faults import FAULTS, plan
from tests.chaos.history import Operation, read_histories
from tests.chaos.servers import TEMPLATE, Postgres, postgres
from tests.chaos.workload import WEB, Run, Violation
from tests.chaos.world import World
from tests.plugin import ENVIRONMENT
from tests.postgres import NoServer
from tests.proxy import TcpProxy

#: Seconds after a run's own time after which everything is killed.
PATIENCE = 180.0
#: Seconds in which nothing is harmed, before a run's processes stop.
CALM = 4.0
#: The times at which a run begins again while something that must happen has not; and the seconds.
ROUNDS, MORE = 6, 8.0
#: Operations printed before and after a violation.
AROUND = 5


class Outcome(NamedTuple):
    """The result of a run."""

    name: str
    run: Run
    operations: list[Operation]
    counts: dict[str, int]
    hits: Counter[str]
    violations: list[Violation]
    figures: str

    @property
    def is_right(self) -> bool:
        return not self.violations and not self.vacuous

    @property
    def vacuous(self) -> list[str]:
        """What had to happen and did not."""
        return [what for what, count in self.counts.items() if not count]

    def __str__(self) -> str:
        verdict = "ok" if self.is_right else "WRONG"
        ends = Counter(each.outcome for each in self.operations)
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.hits.items()) if count)
        counts = ", ".join(f"{count:,} {what}" for what, count in self.counts.items())
        counts += f" ({self.figures})" if self.figures else ""
        return (
            f"{self.name}: {verdict}: seed {self.run.seed}, {self.run.vendor}, "
            f"{self.run.seconds:.0f} s: {len(self.operations):,} operations ({ends['failed']:,} "
            f"refused, {ends['unknown']:,} unknown); {counts}; {sum(self.hits.values())} faults "
            f"({faults or 'none'}); {len(self.violations)} violations"
        )


def workloads() -> list[str]:
    """Return the names of the workloads."""
    folder = Path(__file__).parent / "workloads"
    return sorted(each.stem for each in folder.glob("[a-z]*.py"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240, help="of all workloads together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", nargs="*", choices=[*FAULTS], default=[*FAULTS])
    parser.add_argument("--db", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--only", nargs="*", choices=workloads(), default=workloads())
    parser.add_argument("--summary", type=Path, help="a file that the lines are appended to")
    parser.add_argument("--discard", action="store_true", help="keep no histories of a failure")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    names = options.only or workloads()
    folder = Path(tempfile.mkdtemp(prefix="leasing-chaos-"))
    right = True
    with ExitStack() as stack:
        stack.enter_context(in_time(options.seconds + PATIENCE * len(names)))
        try:
            database = postgres(folder) if options.db == "postgresql" else nullcontext()
            server = stack.enter_context(database)
            _prepare(options.db, server, folder)
            names = [name for name in names if options.db in _databases(name)]
            seconds = max(5.0, options.seconds / len(names))
            for name in names:
                right &= _judge(name, seed, seconds, options, server, folder)
        except NoServer as error:
            print(f"chaos: not run: {error}", file=sys.stderr)
            right = False
        if right or options.discard:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"chaos: the histories are in {folder}")
    return 0 if right else 1


def _databases(name: str) -> tuple[str, ...]:
    return getattr(_module(name), "DATABASES", ("postgresql", "sqlite"))


def _module(name: str) -> ModuleType:
    return import_module(f"tests.chaos.workloads.{name}")


def _judge(
    name: str,
    seed: int,
    seconds: float,
    options: argparse.Namespace,
    server: Postgres | None,
    folder: Path,
) -> bool:
    try:
        outcome = _run(name, seed, seconds, options.faults, options.db, server, folder)
    except Exception as error:
        print(f"{name}: WRONG: seed {seed}, {options.db}: {type(error).__name__}: {error}")
        raise
    print(outcome, flush=True)
    if options.summary:
        with options.summary.open("a") as summary:
            print(outcome, file=summary)
    for what in outcome.vacuous:
        print(f"  had to happen and did not: {what}")
    for violation in outcome.violations[:5]:
        print(f"  {violation.rule}: {violation.message}")
    if outcome.violations:
        for each in _around(outcome.violations[0], outcome.operations):
            print(f"    {each}")
    if not outcome.is_right:
        print(
            f"  again: make chaos ONLY={name} SEED={seed} S={seconds:.0f} DB={options.db}"
            + ("" if options.faults == [*FAULTS] else f' FAULTS="{" ".join(options.faults)}"')
        )
    return outcome.is_right


def _around(violation: Violation, operations: list[Operation]) -> list[Operation]:
    """Return the operations around a violation, of the resource that it is about."""
    if not violation.operations:
        return []
    last = violation.operations[-1]
    near = [each for each in operations if each.resource == last.resource]
    place = near.index(last) if last in near else 0
    return near[max(0, place - AROUND) : place + AROUND]


def _prepare(vendor: str, server: Postgres | None, folder: Path) -> None:
    """Set Django up, and make the tables that databases of workloads are copies of."""
    if server is None:
        url = f"sqlite:///{folder / TEMPLATE}"
    else:
        with server.session() as session:
            session.execute(f"CREATE DATABASE {TEMPLATE}".encode())
        url = server.url(TEMPLATE)
    os.environ.update(ENVIRONMENT, DATABASE_URL=url)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    from tests.chaos.changes import record_changes

    call_command("migrate", run_syncdb=True, verbosity=0)
    record_changes()
    connections.close_all()


def _run(
    name: str,
    seed: int,
    seconds: float,
    faults: list[str],
    vendor: str,
    server: Postgres | None,
    parent: Path,
) -> Outcome:
    from django.db import connections

    module = _module(name)
    folder = parent / name
    folder.mkdir()
    database = f"chaos_{name}"
    if server is None:
        url = f"sqlite:///{folder / database}"
        for file in parent.glob(f"{TEMPLATE}*"):
            shutil.copy(file, folder / file.name.replace(TEMPLATE, database))
    else:
        with server.session() as session:
            session.execute(f"CREATE DATABASE {database} TEMPLATE {TEMPLATE}".encode())
        url = server.url(database)
    connections.close_all()
    connections["default"].settings_dict["NAME"] = database if server else str(folder / database)
    (port,) = free_ports(1)
    with ExitStack() as stack:
        web = TcpProxy(port)
        stack.callback(web.close)
        servers = {"bind": f"127.0.0.1:{port}", "web": f"http://{web.address}"}
        servers |= module.servers(stack) if hasattr(module, "servers") else {}
        run = Run(seed, seconds, vendor, url, folder, servers)
        stack.callback(connections.close_all)
        if hasattr(module, "prepare"):
            module.prepare(run)
            connections.close_all()
        actors = module.actors(run)
        world = World(run, database, server, web, getattr(module, "SETTINGS", {}))
        stack.callback(world.close)
        stack.enter_context(world.heart())
        for actor in actors:
            world.start(actor)
        _wait_for_work(world)
        names = [
            each
            for each in getattr(module, "FAULTS", FAULTS)
            if each in faults and (server or not FAULTS[each].is_of_server)
        ]
        first = [each for each in getattr(module, "FIRST", ()) if each in names]
        # Each workload has a plan of its own.
        planned = plan(seed * 1000 + sum(name.encode()), seconds, names, first)
        world.go(planned, seconds)
        for again in range(1, ROUNDS if planned else 1):
            if all(_counted(module, run, first).values()):
                break
            # What must happen may need more than a short run has: on with its first faults.
            world.go(plan(run.seed + again, MORE, first or names, first), MORE)
        world.go([], CALM)
        world.stop(lasting=False)
        deadline = time.monotonic() + getattr(module, "SETTLE", 60.0)
        while hasattr(module, "is_settled") and not module.is_settled(run):
            if time.monotonic() > deadline:
                words = f"not after {getattr(module, 'SETTLE', 60.0):g} s"
                world.violations.append(Violation("the work comes to an end", words))
                break
            world.look()
            time.sleep(0.1)
        world.stop(lasting=True)
        facts = module.facts(run) if hasattr(module, "facts") else None
    operations = read_histories(folder)
    found = [*world.violations, *module.check(operations, facts)]
    counts = module.must_happen(operations, facts)
    if not planned:  # of a run without faults nothing is expected
        counts = {what: count for what, count in counts.items() if count}
    hits = _hits(operations)
    counts |= {f"faults of {name}": 0 for name in first if planned and not hits[name]}
    figures = module.figures(operations, facts) if hasattr(module, "figures") else ""
    return Outcome(name, run, operations, counts, hits, found, figures)


def _counted(module: ModuleType, run: Run, first: Sequence[str]) -> dict[str, int]:
    """Return what has happened so far of what must."""
    from django.db import connections

    facts = module.facts(run) if hasattr(module, "facts") else None
    connections.close_all()  # the next fault would break it
    operations = read_histories(run.folder)
    hits = _hits(operations)
    counts: dict[str, int] = module.must_happen(operations, facts)
    return counts | {name: hits[name] for name in first}


def _hits(operations: list[Operation]) -> Counter[str]:
    """Return how often each fault did harm."""
    return Counter(each.resource for each in operations if each.name == "fault" and is_hit(each))


def is_hit(fault: Operation) -> bool:
    """Return True if a fault did harm: one of the harness, or of a workload's own."""
    return bool({**fault.value, **fault.result}.get("hits", fault.is_ok))


def _wait_for_work(world: World) -> None:
    """Wait until each process has begun to record; one that ends meanwhile is told of later."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = {each.name for each in world.run.folder.glob("*.jsonl")}
        missing = [
            each.actor.name
            for each in world.crew
            if "tests.chaos.actor" in each.actor.args
            and each.runs
            and f"{each.process_name}.jsonl" not in files
        ]
        if not missing and _answers(world):
            return
        time.sleep(0.05)
    raise TimeoutError(f"did not begin within 60 s: {', '.join(missing)}")


def _answers(world: World) -> bool:
    """Return True if the web server answers, or there is none."""
    if not any(each.actor.kind == WEB for each in world.crew):
        return True
    host, _, port = world.run.servers["bind"].rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """End this process when its time is over, whatever it waits for. Its servers and processes end
    with it: the system kills them."""

    def over() -> None:
        print(f"chaos: not done after {seconds:.0f} s", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


if __name__ == "__main__":
    sys.exit(main())
