"""huey on Redis, with four threads."""

import os
import sys

import common
import huey

MOST = 10_000
app = huey.RedisHuey("bench", url=os.environ["REDIS_URL"])
enqueue_many = None
_sent = 0


@app.task(name="nothing")
def nothing(n):
    return common.ran()


@app.task(name="clock")
def clock(key):
    return common.noted(key)


def prepare():
    app.storage.flush_all()


def enqueue(name, **data):
    global _sent
    _sent += 1
    {"nothing": nothing, "clock": clock}[name](**data)


def left():
    return _sent - app.result_count()


def work():
    app.create_consumer(workers=4, worker_type="thread", periodic=False).run()


common.main(sys.modules[__name__])
