"""Redis servers of a workload, run and broken by an actor of their own; and who contends for leases
that they keep."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import redis
from django.test import override_settings

from leasing.exceptions import LeaseError
from leasing.stores.base import BaseStore
from tests.brokers import Broker, serve_redis
from tests.chaos.checks import beliefs_are_disjoint, tokens_rise, works_again
from tests.chaos.faults import TTL
from tests.chaos.history import Operation
from tests.chaos.holding import held_for
from tests.chaos.workload import NOBODY, Actor, Part, Run, Violation, calls
from tests.proxy import TcpProxy

DATABASES = ("postgresql",)
FAULTS = ("kill-holding", "stop", "kill")
FIRST = ("kill-holding", "stop")
#: Seconds after which a server that may have forgotten leases grants again.
MAX_TTL = 2 * TTL
limited = override_settings(LEASING={"MAX_TTL": MAX_TTL})
#: The share of holds that are renewed, and not released at once.
LONG = 0.005
#: Names of servers' addresses in the folder of a run.
ADDRESSES = "redis.json"
#: Minutes by which a clock is off.
OFF = 10

#: A fault of a server: it does harm, and undoes it.
Fault = Callable[[Part, Broker, TcpProxy], object]


def actors(run: Run, keep: Callable[[Part], None], contend: Callable[[Part], None]) -> list[Actor]:
    """Return the actors of a workload: one that keeps the servers, and eight that contend."""
    env = {"CHAOS_SECONDS": str(run.seconds)}
    return [
        calls(keep, kind=NOBODY, lasts=True, env=env),
        *(calls(contend, number) for number in range(8)),
    ]


def contend(part: Part, made: Callable[[list[str]], BaseStore], names: Sequence[str]) -> None:
    """Hold the leases ``names`` in the store that ``made`` makes of the addresses of servers: every
    other process over a network that fails."""
    file = part.folder / ADDRESSES
    while not file.exists() and not part.stop.wait(0.05):
        pass
    with limited:
        store = made([each[part.number % 2] for each in json.loads(file.read_text())])
        while not part.stop.is_set():
            name = part.random.choice(names)
            hold = store.hold(name, ttl=TTL, wait=2 * TTL, stopping=part.stop)
            is_long = part.random.random() < LONG
            held_for(part, name, hold, part.random.uniform(0, 1.5 * TTL) if is_long else 0)
        store.disconnect()


def keep(part: Part, number: int, faults: Mapping[str, Fault], admit: Callable[..., Any]) -> None:
    """Run so many servers, and break one after the other in these ways until the faults of the run
    are over.

    Args:
        part: The part of the actor.
        number: The number of servers.
        faults: The faults by name.
        admit: Called with the addresses of the servers, first to admit them when they are new, and
            then at times after a fault, with what nobody confirms.
    """
    with ExitStack() as stack, limited:
        servers = [stack.enter_context(serve_redis(appendfsync="always")) for _ in range(number)]
        networks = [stack.enter_context(closing(TcpProxy(each.port))) for each in servers]
        direct = [each.url for each in servers]
        admit(direct, True)
        addresses = [
            (url, f"redis://{network.address}/0")
            for url, network in zip(direct, networks, strict=True)
        ]
        file = part.folder / f"{ADDRESSES}.new"
        file.write_text(json.dumps(addresses))
        file.rename(part.folder / ADDRESSES)
        turns = itertools.cycle(range(number))
        ends_at = time.monotonic() + float(os.environ["CHAOS_SECONDS"])
        waiting = list[str]()
        while not part.stop.wait(part.random.uniform(0.5, 2.0)):
            if time.monotonic() > ends_at:
                continue
            waiting = waiting or part.random.sample([*faults], len(faults))
            name, turn = waiting.pop(), next(turns)
            with part.recorder.call("fault", name, passes=(redis.RedisError,)) as call:
                faults[name](part, servers[turn], networks[turn])
                call.ok(hits=1)
            if part.random.random() < 0.5:
                with part.recorder.call("admit", passes=(LeaseError,)) as call:
                    call.ok(admitted=admit(direct, False))
            part.stop.wait(MAX_TTL + 0.5 if number > 1 else 0.5)  # one is wrong at a time


def killed(part: Part, server: Broker, network: TcpProxy) -> None:
    """kill -9, and a start from the file."""
    server.kill()
    part.stop.wait(part.random.choice([0.0, 0.5, 1.5 * TTL]))
    server.start()


def frozen(part: Part, server: Broker, network: TcpProxy) -> None:
    """SIGSTOP, for less and for more than a ttl."""
    server.pause()
    part.stop.wait(part.random.choice([0.3, 0.5 * TTL, 1.5 * TTL]))
    server.resume()


def emptied(part: Part, server: Broker, network: TcpProxy) -> None:
    """FLUSHALL."""
    with redis.Redis(port=server.port) as connection:
        connection.flushall()


def replies_dropped(part: Part, server: Broker, network: TcpProxy) -> None:
    """Requests arrive over the present connections, and their answers do not."""
    network.swallow_replies(part.random.randrange(3))
    part.stop.wait(part.random.choice([0.5, TTL]))
    network.cut()


def clock_off(part: Part, server: Broker, network: TcpProxy) -> None:
    """A clock that jumps by minutes, and back: see ``SkewedMember``."""
    with redis.Redis(port=server.port) as connection:
        connection.set("skew", part.random.choice([-1, 1]) * OFF * 60_000_000)
        part.stop.wait(MAX_TTL + 1)
        connection.set("skew", 0)


#: What breaks servers of both workloads, by name.
BROKEN: Mapping[str, Fault] = {
    "killed": killed,
    "frozen": frozen,
    "emptied": emptied,
    "replies dropped": replies_dropped,
}


def check(operations: Sequence[Operation], facts: None) -> list[Violation]:
    return [
        *beliefs_are_disjoint(operations),
        *tokens_rise(operations),
        *works_again(operations),
    ]


def must_happen(operations: Sequence[Operation], facts: None) -> dict[str, int]:
    """Return what a short run has, too. In a longer one each fault comes before any comes again."""
    return {
        "grants": sum(each.name == "acquire" and each.is_ok for each in operations),
        "renewals": sum(each.name == "believe" for each in operations),
        "faults of servers": sum(
            each.name == "fault" and each.is_ok and each.process.startswith("keep")
            for each in operations
        ),
    }
