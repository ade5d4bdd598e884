"""Celery as the engine, on RabbitMQ: as ``celery_redis``."""

from __future__ import annotations

from contextlib import ExitStack

from tests.brokers import free_ports, serve_rabbitmq
from tests.chaos.workload import NOBODY, Actor, Part, Run, calls
from tests.chaos.workloads.celery_redis import (
    FAULTS,
    SETTINGS,
    SETTLE,
    actors_of,
    check,
    facts,
    is_settled,
    keep,
    must_happen,
    prepare,
)

__all__ = [
    "FAULTS",
    "SETTINGS",
    "SETTLE",
    "actors",
    "check",
    "facts",
    "is_settled",
    "must_happen",
    "prepare",
]


def servers(stack: ExitStack) -> dict[str, str]:
    return {"broker": f"amqp://guest:guest@127.0.0.1:{free_ports(1)[0]}//"}


def actors(run: Run) -> list[Actor]:
    return actors_of(run, calls(keep_rabbitmq, kind=NOBODY, network="direct", lasts=True))


def keep_rabbitmq(part: Part) -> None:
    """Run RabbitMQ, and break it for the time of the run."""
    keep(part, serve_rabbitmq)
