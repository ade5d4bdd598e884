"""Celery on Redis, results kept there too; two processes a worker."""

import os
import sys

import celery
import common
import redis

MOST = 5_000
URL = os.environ["REDIS_URL"]
app = celery.Celery("bench", broker=f"{URL}/0", backend=f"{URL}/1")
app.conf.update(worker_prefetch_multiplier=4, task_acks_late=True, broker_connection_retry=True)
results = redis.Redis.from_url(f"{URL}/1")
enqueue_many = None
_sent = 0


@app.task(name="nothing")
def nothing(n):
    return common.ran()


@app.task(name="clock")
def clock(key):
    return common.noted(key)


def prepare():
    results.flushall()


def enqueue(name, **data):
    global _sent
    _sent += 1
    {"nothing": nothing, "clock": clock}[name].delay(**data)


def left():
    return _sent - results.dbsize()


def work():
    name = f"bench-{os.getpid()}@%h"
    options = ["--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR", "-n", name]
    app.worker_main(["worker", *options, "--without-mingle", "--without-gossip"])


common.main(sys.modules[__name__])
