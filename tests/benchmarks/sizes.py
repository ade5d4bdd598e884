"""Sizes: the amount of work of each form of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: For what runs side by side.
#: Of tasks that have workers to themselves, but for what others do to them.
CALM_QUEUE = "calm"
KILL_QUEUES = tuple(f"kills-{number}" for number in range(4))


@dataclass(frozen=True)
class Size:
    """Numbers of tasks, rows and kills; times are in seconds."""

    name: str = "default"
    turns: int = 3
    #: The factor by which bars are loosened, for machines that others use too: 1 is as they stand.
    slack: float = 1.0
    enqueued: int = 2_000
    bulk: int = 50_000
    drained: int = 30_000
    #: Claimed and completed over HTTP.
    batched: int = 20_000
    #: Leases that are acquired over HTTP, each with a resource of its own.
    acquired: int = 500
    latency_seconds: float = 10.0
    lease_seconds: float = 1.0
    #: The number of times that short work alternates with its limit.
    rounds: int = 4
    holds: int = 10_000
    keeper_seconds: float = 25.0
    hold_points: tuple[int, ...] = (1_000, 10_000, 50_000)
    #: Running, when their worker is killed.
    mass: int = 10_000
    depths: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    claims: int = 25
    before_snapshot: int = 50_000
    after_snapshot: int = 10_000
    expired: int = 10_000
    listed: int = 1_000_000
    idle_seconds: float = 120.0
    kills: int = 40
    drained_on_sqlite: int = 3_000
    naps: int = 40_000
    #: Of the kind that has tasks, where another has none.
    ready: int = 500_000
    look_seconds: float = 8.0
    backlog: int = 50_000
    #: Of a higher priority, one after the other.
    urgent: int = 40
    single_attempts: int = 900
    single_kills: int = 5
    #: Of children of one parent.
    fleet_kills: int = 100
    #: By workers with a parent, and by as many without.
    fleet_drains: int = 8


DEFAULT = Size()

FULL = replace(DEFAULT, name="full", depths=(10_000, 100_000, 1_000_000, 5_000_000), kills=200)

SHORT = replace(
    DEFAULT,
    name="short",
    turns=1,
    slack=2.0,
    enqueued=500,
    bulk=10_000,
    drained=5_000,
    batched=2_000,
    acquired=200,
    latency_seconds=3.0,
    lease_seconds=0.4,
    rounds=2,
    holds=500,
    keeper_seconds=12.0,
    hold_points=(1_000,),
    mass=1_000,
    depths=(10_000, 100_000),
    claims=10,
    before_snapshot=5_000,
    after_snapshot=2_000,
    expired=1_000,
    listed=20_000,
    idle_seconds=6.0,
    kills=8,
    drained_on_sqlite=500,
    naps=4_000,
    ready=20_000,
    look_seconds=3.0,
    backlog=10_000,
    urgent=6,
    single_attempts=300,
    single_kills=2,
    fleet_kills=20,
    fleet_drains=2,
)

#: For the test that the benchmark still runs: what it measures means nothing.
MINI = replace(
    SHORT,
    name="mini",
    enqueued=10,
    bulk=200,
    drained=100,
    batched=200,
    acquired=10,
    latency_seconds=0.25,
    lease_seconds=0.02,
    rounds=1,
    holds=20,
    keeper_seconds=0.5,
    hold_points=(20,),
    mass=50,
    depths=(100, 300),
    claims=2,
    before_snapshot=100,
    after_snapshot=50,
    expired=50,
    listed=200,
    idle_seconds=0.5,
    kills=1,
    drained_on_sqlite=50,
    naps=200,
    ready=500,
    look_seconds=0.2,
    backlog=2_000,
    urgent=1,
    single_attempts=60,
    single_kills=1,
    fleet_kills=2,
    fleet_drains=1,
)

SIZES = {size.name: size for size in (DEFAULT, FULL, SHORT, MINI)}
