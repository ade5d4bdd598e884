"""The faults, and the plan of them that a seed makes.

A fault is a generator over the world and its own chance: it does harm, yields what it has found out
about that, and undoes it when it is continued. A ``hits`` of 0 means that it did not happen, for
instance because there was no process to kill: it is not counted.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from tests.chaos.servers import terminate_all
from tests.chaos.workload import WEB, WORKER

if TYPE_CHECKING:
    from tests.chaos.world import Running, World

#: Seconds of the leases of all workloads, which faults are measured by.
TTL = 2.0

Found = dict[str, Any]
Fault = Callable[["World", random.Random], Iterator[Found]]


def _killed(
    world: World, victims: Sequence[Running], pids: Callable[[Running], list[int]]
) -> Found:
    hits = sum(world.kill(victim, pids(victim)) for victim in victims)
    return {"hits": hits, "victims": [victim.process_name for victim in victims if hits]}


def _awaited(
    world: World,
    chance: random.Random,
    condition: Callable[[Running], bool] = lambda each: True,
    *,
    kind: str | None = None,
) -> list[Running]:
    """Wait some seconds for a victim: on a loaded machine the last one may still be starting."""
    victims: list[Running] = []
    deadline = time.monotonic() + 8
    is_there = kind is None or any(each.actor.kind == kind for each in world.crew)
    while is_there and not victims and time.monotonic() < deadline:
        victims = world.choose(chance, condition, kind=kind)
        world.look()
        time.sleep(0.005)
    return victims


def kill(world: World, chance: random.Random) -> Iterator[Found]:
    """kill -9 of a process with its children."""
    yield _killed(world, world.choose(chance), lambda each: [each.pid, *each.children])


def kill_holding(world: World, chance: random.Random) -> Iterator[Found]:
    """kill -9 of a process that believes that it holds a lease, or has published a message and not
    recorded that."""
    victims = _awaited(world, chance, lambda each: each.last["name"] in ("believe", "linger"))
    yield _killed(world, victims, lambda each: [each.pid, *each.children])


def kill_child(world: World, chance: random.Random) -> Iterator[Found]:
    """kill -9 of one of the processes that a worker has started."""
    victims = _awaited(world, chance, lambda each: bool(each.children), kind=WORKER)
    # Those that it has had have perhaps ended since.
    found = [child for victim in victims for child in victim.children]
    yield _killed(world, victims, lambda each: chance.sample(found, min(len(found), 1)))


def kill_parent(world: World, chance: random.Random) -> Iterator[Found]:
    """kill -9 of a worker that has children, which live on."""
    victims = _awaited(world, chance, lambda each: bool(each.children), kind=WORKER)
    yield _killed(world, victims, lambda each: [each.pid])


def kill_web(world: World, chance: random.Random) -> Iterator[Found]:
    """kill -9 of the web server."""
    victims = _awaited(world, chance, kind=WEB)
    yield _killed(world, victims, lambda each: [each.pid, *each.children])


def kill_worker(world: World, chance: random.Random) -> Iterator[Found]:
    """kill -9 of a worker with its children."""
    victims = _awaited(world, chance, kind=WORKER)
    yield _killed(world, victims, lambda each: [each.pid, *each.children])


def stop(world: World, chance: random.Random) -> Iterator[Found]:
    """SIGSTOP of a process with its children; SIGCONT after it."""
    victims = world.choose(chance)
    yield from _stopped(world, victims)


def stop_inside(world: World, chance: random.Random) -> Iterator[Found]:
    """SIGSTOP of a process that is between the reading and the end of a write, of the kind of
    resource that has been hit least."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < 3:
        for victim in world.choose(chance):
            resource = victim.inside("write")
            kind = (resource or "").partition(":")[0]
            if resource is None or world.inside[kind] > waited:
                continue
            world.signal(victim, signal.SIGSTOP)
            if victim.inside("write") == resource:
                world.inside[kind] += 1
                yield from _stopped(world, [victim])
                return
            world.signal(victim, signal.SIGCONT)
        time.sleep(0.005)
    yield {"hits": 0}


def _stopped(world: World, victims: Sequence[Running]) -> Iterator[Found]:
    for victim in victims:
        world.signal(victim, signal.SIGSTOP)
    try:
        yield {"hits": len(victims), "victims": [victim.process_name for victim in victims]}
    finally:
        for victim in victims:
            world.signal(victim, signal.SIGCONT)


def postgres_crash(world: World, chance: random.Random) -> Iterator[Found]:
    """PostgreSQL stopped at once, and started."""
    if not world.postgres.server.crash():
        yield {"hits": 0}
        return
    try:
        yield {"hits": 1}
    finally:
        world.postgres.server.start()


def terminate(world: World, chance: random.Random) -> Iterator[Found]:
    """pg_terminate_backend of every session, and of the next ones."""
    with world.postgres.session() as session:
        hits = 0
        for _ in range(5):
            hits += terminate_all(session, world.database)
            time.sleep(0.1)
    yield {"hits": hits}


def exhaust(world: World, chance: random.Random) -> Iterator[Found]:
    """Every connection of PostgreSQL taken, after the processes have lost theirs."""
    taken: list[psycopg.Connection] = []
    refused = 0
    with world.postgres.session() as session, suppress(psycopg.OperationalError):
        terminate_all(session, world.database)
        while True:
            taken.append(world.postgres.session())
    try:
        world.postgres.session().close()
    except psycopg.OperationalError:
        refused = 1
    try:
        yield {"hits": refused, "connections": len(taken)}
    finally:
        for connection in taken:
            connection.close()


def cut(world: World, chance: random.Random) -> Iterator[Found]:
    """Every connection through the proxies cut; new ones work."""
    yield {"hits": sum(proxy.cut() for proxy in world.proxies)}


def delay(world: World, chance: random.Random) -> Iterator[Found]:
    """Each answer late, by less than a ttl."""
    seconds = chance.uniform(0.1, 0.8)
    for proxy in world.proxies:
        proxy.delay = seconds
    try:
        yield {"hits": len(world.proxies), "seconds": seconds}
    finally:
        for proxy in world.proxies:
            proxy.delay = 0.0


def late_and_black(world: World, chance: random.Random) -> Iterator[Found]:
    """Each answer late, and then none: trust that began with an answer would last too long."""
    timers = [threading.Timer(1.6 * TTL, proxy.swallow) for proxy in world.proxies]
    for proxy, timer in zip(world.proxies, timers, strict=True):
        proxy.delay = 0.4 * TTL
        timer.start()
    try:
        yield from _healed(world)
    finally:
        for proxy, timer in zip(world.proxies, timers, strict=True):
            timer.cancel()
            proxy.delay = 0.0


def black(world: World, chance: random.Random) -> Iterator[Found]:
    """Nothing arrives through the proxies, and nobody is told; what was lost is cut at the end."""
    for proxy in world.proxies:
        proxy.swallow()
    yield from _healed(world)


def drop_replies(world: World, chance: random.Random) -> Iterator[Found]:
    """Over the present connections requests arrive, and their answers do not."""
    for proxy in world.proxies:
        proxy.swallow_replies()
    yield from _healed(world)


def _healed(world: World) -> Iterator[Found]:
    before = sum(proxy.lost for proxy in world.proxies)
    found: Found = {"hits": 1}
    try:
        yield found
    finally:
        found["hits"] = sum(proxy.lost for proxy in world.proxies) - before
        for proxy in world.proxies:
            proxy.cut()


def clock(world: World, chance: random.Random) -> Iterator[Found]:
    """The wall clock of a process set ahead or back by hours."""
    victims = world.choose(chance, lambda each: each.clock_file is not None)
    hours = chance.choice([-30, -5, -1, 1, 5, 30])
    for victim in victims:
        assert victim.clock_file is not None
        victim.clock_file.write_text(f"{hours:+d}h")
    yield {"hits": len(victims), "hours": hours, "victims": [each.process_name for each in victims]}


class Kind(NamedTuple):
    """A fault, and the seconds that it lasts, one of these."""

    fault: Fault
    lasts: tuple[float, ...] = (0.0,)
    #: True if it needs PostgreSQL.
    is_of_server: bool = False


FAULTS: dict[str, Kind] = {
    "kill": Kind(kill),
    "kill-holding": Kind(kill_holding),
    "kill-worker": Kind(kill_worker),
    "kill-child": Kind(kill_child),
    "kill-parent": Kind(kill_parent),
    "kill-web": Kind(kill_web),
    "stop": Kind(stop, (0.5 * TTL, 1.1 * TTL, 3 * TTL)),
    "stop-inside": Kind(stop_inside, (1.1 * TTL, 3 * TTL)),
    "postgres-crash": Kind(postgres_crash, (0.1, 1.0, 2.0), True),
    "terminate": Kind(terminate, is_of_server=True),
    "exhaust": Kind(exhaust, (1.0, 2.0), True),
    "cut": Kind(cut, is_of_server=True),
    "delay": Kind(delay, (1.0, 3.0), True),
    "late-and-black": Kind(late_and_black, (5 * TTL,), True),
    "black": Kind(black, (0.5 * TTL, 1.1 * TTL, 2 * TTL), True),
    "drop-replies": Kind(drop_replies, (0.5 * TTL, 1.1 * TTL, 2 * TTL), True),
    "clock": Kind(clock, is_of_server=True),
}
#: Those that hit single processes; calls of others go on, but for a web server's.
OF_PROCESSES = {*(name for name in FAULTS if name.startswith(("kill", "stop"))), "clock"}


class Planned(NamedTuple):
    """A fault of a plan: seconds from the run's begin, and the seed of its own choices."""

    begins: float
    lasts: float
    name: str
    salt: int


def plan(
    seed: int, seconds: float, names: Sequence[str], first: Sequence[str] = ()
) -> list[Planned]:
    """Return the faults of a run, in their order: first each alone, from the middle on mixed.

    Args:
        seed: The same seed makes the same plan.
        seconds: The time of the run in which faults begin.
        names: Names of the faults.
        first: Those with which it begins: all of them, also if they take longer than ``seconds``.
    """
    chance = random.Random(seed)
    planned: list[Planned] = []
    first = [name for name in first if name in names]
    at, waiting = 0.5, list(first)
    while names and (at < seconds or len(planned) < len(first)):
        if not waiting:
            waiting = chance.sample(names, len(names))
        name = waiting.pop(0)
        is_first = len(planned) < len(first)
        lasts = max(FAULTS[name].lasts) if is_first else chance.choice(FAULTS[name].lasts)
        planned.append(Planned(at, lasts, name, chance.randrange(1 << 30)))
        is_alone = at < seconds / 2 or is_first or chance.random() < 0.3
        at += (lasts if is_alone else 0.0) + chance.uniform(0.5, 2.5)
    return planned
