"""A process that forks while one of its threads waits for a lease, and prints what both see."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import warnings

import django

django.setup()

from django.db import connection, connections  # noqa: E402

from leasing.models import Lease  # noqa: E402
from leasing.runtime import aio  # noqa: E402
from leasing.waiting.notifier import notifier  # noqa: E402
from tests.processes import wait_for  # noqa: E402


def say(who: str, **what: object) -> None:
    print(json.dumps({"who": who, **what}), flush=True)


def waiters() -> int:
    return sum(len(waiting) for waiting in notifier("default").waiters.values())


def child() -> None:
    for name in connections:
        connections[name].connection = None  # the parent's: not ours to close
    found = {"waiters": waiters(), "listens": notifier("default").listener.is_running}
    held = Lease.objects.acquire("crane:2", ttl=60)
    threading.Timer(0.1, lambda: Lease.objects.release(held)).start()
    waited = Lease.objects.acquire("crane:2", wait=20)
    lease = asyncio.run(Lease.objects.aacquire("crane:3"))
    say("child", **found, acquired=waited.grants == 2, async_acquired=lease.grants == 1)


def main() -> None:
    held = Lease.objects.acquire("crane:1", ttl=60)
    won: list[Lease] = []
    thread = threading.Thread(target=lambda: won.append(Lease.objects.acquire("crane:1", wait=20)))
    thread.start()
    wait_for(lambda: waiters() == 1)
    # Its threads are the parent's too: an executor that thinks it has them would wait for ever.
    asyncio.run(aio.in_thread(lambda: None))
    connection.close()
    with warnings.catch_warnings():
        # From 3.12 on Python warns of forks with threads; that is what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        code = 1
        try:
            child()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"
    count = waiters()
    Lease.objects.release(held)
    thread.join(20)
    say("parent", waiters=count, acquired=len(won) == 1)


main()
