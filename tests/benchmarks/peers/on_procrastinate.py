"""procrastinate, with a concurrency of 20."""

import asyncio
import os
import sys

import common
import procrastinate
import psycopg

MOST = 5_000
URL = os.environ["DATABASE_URL"]
app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=URL))
working = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))
connection = psycopg.connect(URL, autocommit=True)


async def _nothing(n):
    return common.ran()


async def _clock(key):
    return common.noted(key)


tasks = {
    each: (app.task(name=each)(function), working.task(name=each)(function))[0]
    for each, function in {"nothing": _nothing, "clock": _clock}.items()
}
app.open()


def prepare():
    app.schema_manager.apply_schema()


def enqueue(name, **data):
    tasks[name].defer(**data)


def enqueue_many(count):
    for start in range(0, count, 1_000):
        tasks["nothing"].batch_defer(*({"n": n} for n in range(start, min(start + 1_000, count))))


def left():
    waiting = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    return connection.execute(waiting).fetchone()[0]


def work():
    async def run():
        async with working.open_async():
            await working.run_worker_async(concurrency=20)

    asyncio.run(run())


common.main(sys.modules[__name__])
