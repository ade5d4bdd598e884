"""pgqueuer, on asyncpg, in batches of 100. It keeps a log row a task, and no results."""

import asyncio
import json
import os
import sys

import asyncpg
import common
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

MOST = 30_000
loop = uvloop.new_event_loop()
asyncio.set_event_loop(loop)
connection = loop.run_until_complete(asyncpg.connect(os.environ["DATABASE_URL"]))
queries = Queries(AsyncpgDriver(connection))


def prepare():
    loop.run_until_complete(queries.install())


def enqueue(name, **data):
    loop.run_until_complete(queries.enqueue(name, json.dumps(data).encode()))


def enqueue_many(count):
    for start in range(0, count, 10_000):
        size = min(10_000, count - start)
        loop.run_until_complete(queries.enqueue(["nothing"] * size, [b"{}"] * size, [0] * size))


def left():
    return loop.run_until_complete(connection.fetchval("SELECT count(*) FROM pgqueuer"))


def work():
    manager = QueueManager(queries)

    @manager.entrypoint("nothing")
    async def nothing(job):
        common.ran()

    @manager.entrypoint("clock")
    async def clock(job):
        common.noted(json.loads(job.payload)["key"])

    loop.run_until_complete(manager.run(batch_size=100))


common.main(sys.modules[__name__])
