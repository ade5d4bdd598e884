"""pgmq: its SQL, which its Python package carries, and a loop of batches of 500 in psycopg. It
deletes what has ended and keeps no results; who waits for messages polls."""

import json
import os
import sys
from importlib.resources import files

import common
import psycopg

MOST = 30_000
BATCH = 500
connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=2)

SEND = "SELECT pgmq.send('bench', %s::jsonb)"
SEND_MANY = "SELECT pgmq.send_batch('bench', %s::jsonb[])"
READ = "SELECT msg_id, message FROM pgmq.read_with_poll('bench', 30, %s, 5, 50)"
DELETE = "SELECT pgmq.delete('bench', %s::bigint[])"


def prepare():
    connection.execute(files("pgmq.sql").joinpath("pgmq.sql").read_text())
    connection.execute("SELECT pgmq.create('bench')")


def enqueue(name, **data):
    connection.execute(SEND, [json.dumps({"name": name, **data})])


def enqueue_many(count):
    for start in range(0, count, 10_000):
        size = min(10_000, count - start)
        connection.execute(SEND_MANY, [[json.dumps({"name": "nothing", "n": 1})] * size])


def left():
    return connection.execute("SELECT count(*) FROM pgmq.q_bench").fetchone()[0]


def work():
    while True:
        messages = connection.execute(READ, [BATCH]).fetchall()
        for _, message in messages:
            if message["name"] == "clock":
                common.noted(message["key"])
            else:
                common.ran()
        connection.execute(DELETE, [[key for key, _ in messages]])


common.main(sys.modules[__name__])
