"""Eight processes that do the same to the same rows at the same moment.

``python -m tests.races.crowd VERB WHAT...`` does ``VERB`` to each of ``WHAT`` in turn, all
processes at once each time, and prints what came of it as lines of JSON: [process, what, answer].
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402

import leasing  # noqa: E402
from leasing.exceptions import LeaseHeld, LeaseLost  # noqa: E402
from leasing.models import Lease, OnceKey  # noqa: E402
from tasks.models import Task  # noqa: E402
from tests.races.once_at_work import charge  # noqa: E402
from tests.races.support import PATIENCE, SIZE  # noqa: E402

#: They are forked from one that has loaded everything, and has no connection yet.
processes = multiprocessing.get_context("fork")
together = processes.Barrier(SIZE, timeout=PATIENCE)
# What one recovers the others claim at once, and not after the race.
settings.TASK_QUEUE = {**settings.TASK_QUEUE, "BACKOFF": {"base": 0, "cap": 0}}


def acquire(me: int, resource: str) -> dict[str, Any]:
    """Acquire the lease."""
    together.wait()
    try:
        lease = Lease.objects.acquire(resource, ttl=600)
    except LeaseHeld as refusal:
        return {"won": False, "holder": refusal.holder}
    grant, token = str(lease.grant_id), lease.fencing_token
    return {"won": True, "holder": lease.holder, "grant": grant, "token": token}


def once(me: int, folder: str) -> dict[str, int]:
    """Do once what leaves a line in ``folder``."""
    together.wait()
    return charge(Path(folder), ttl=600)


def settle(me: int, key: str) -> dict[str, Any]:
    """Settle the key, whose work was begun and left; half of the processes do the work instead."""
    did: list[int] = []

    def charge() -> int:
        did.append(me)
        return me

    together.wait()
    if me % 2:
        return {"changed": OnceKey.objects.filter(key=key).settle("settled")}
    work = leasing.once(key, window=3600, ttl=600, wait=0)
    try:
        result = work.run(charge)
    except LeaseHeld:
        result = None
    return {"changed": len(did), "result": result}


def claim(me: int, queue: str) -> list[int]:
    """Claim from the queue, a few at a time, until there is nothing left."""

    def some() -> list[int]:
        tasks = Task.objects.claim(f"process {me}", queues=[queue], limit=2, ttl=600)
        return [task.pk for task in tasks]

    together.wait()
    keys = some()
    together.wait()  # none is done before all have begun
    while more := some():
        keys += more
    return keys


def complete(me: int, key: str) -> bool:
    """Complete the running task under its grant, which all processes have read."""
    task = Task.objects.get(pk=key)
    together.wait()
    try:
        Task.objects.complete(task, {"by": me})
    except LeaseLost:
        return False
    return True


def recover(me: int, key: str) -> int:
    """Recover the stuck task."""
    together.wait()
    return Task.objects.filter(pk=key).recover()


def sweep(me: int, limit: str) -> int:
    """Recover whatever is stuck, at most ``limit`` at a time."""
    total = 0
    together.wait()
    while recovered := Task.objects.recover(int(limit)):
        total += recovered
    return total


def retry(me: int, key: str) -> int:
    """Set the failed task ready."""
    together.wait()
    return Task.objects.filter(pk=key).retry()


def enqueue(me: int, unique_key: str) -> int:
    """Enqueue under the unique key."""
    together.wait()
    return Task.objects.enqueue("jobs.echo", {"by": me}, unique_key=unique_key).pk


VERBS: dict[str, Callable[[int, str], Any]] = {
    verb.__name__: verb
    for verb in (acquire, once, settle, claim, complete, recover, sweep, retry, enqueue)
}


def work(me: int, verb: str, things: Sequence[str]) -> None:
    Task.objects.exists()  # connect before the race
    for thing in things:
        line = json.dumps([me, thing, VERBS[verb](me, thing)]) + "\n"
        os.write(1, line.encode())


def main(verb: str, *things: str) -> int:
    crowd = [processes.Process(target=work, args=(me, verb, things)) for me in range(SIZE)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join()
    return max(process.exitcode != 0 for process in crowd)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
