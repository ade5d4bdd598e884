"""chancy, coroutines, with a concurrency of 100, looking for more as soon as a job has ended."""

import asyncio
import logging
import os
import sys

import common
import psycopg
from chancy import Chancy, Queue, Worker, job

MOST = 10_000
URL = os.environ["DATABASE_URL"]
# Its own logger tells of every job.
quiet = logging.getLogger("bench")
connection = psycopg.connect(URL, autocommit=True)


@job()
async def nothing(*, n: int):
    common.ran()


@job()
async def clock(*, key: int):
    common.noted(key)


JOBS = {"nothing": nothing, "clock": clock}
pushing = Chancy(URL, log=quiet)


def prepare():
    async def make():
        async with Chancy(URL, log=quiet) as chancy:
            await chancy.migrate()
            await chancy.declare(
                Queue(
                    "default",
                    concurrency=100,
                    executor="chancy.executors.asyncex.AsyncExecutor",
                    eager_polling=True,
                )
            )

    asyncio.run(make())


def enqueue(name, **data):
    pushing.sync_push(JOBS[name].job.with_kwargs(**data))


def enqueue_many(count):
    jobs = [nothing.job.with_kwargs(n=n) for n in range(count)]
    for _ in pushing.sync_push_many(jobs):
        pass


def left():
    waiting = "SELECT count(*) FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed')"
    return connection.execute(waiting).fetchone()[0]


def work():
    async def run():
        async with Chancy(URL, log=quiet) as chancy, Worker(chancy) as worker:
            await worker.wait_for_shutdown()

    asyncio.run(run())


common.main(sys.modules[__name__])
