"""redis-py's Lock: as fast as a lock without durability, history or fencing can be."""

import json
import os
import sys
import threading
import time

import redis

THREADS = 8


def cycle(client, name, renew=False):
    lock = client.lock(name, timeout=30)
    if not lock.acquire(blocking=False):
        return 0
    if renew:
        lock.reacquire()
    lock.release()
    return 1


def rate(seconds, names, renew=False):
    """Cycles a second of a thread for each of ``names``."""
    over, done = time.perf_counter() + seconds, [0] * len(names)

    def work(number):
        client = redis.Redis.from_url(os.environ["REDIS_URL"])
        while time.perf_counter() < over:
            done[number] += cycle(client, names[number], renew)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


if __name__ == "__main__":
    seconds = json.loads(sys.argv[1])["lease_seconds"]
    found = {
        "acquire, release (cycles/s)": rate(seconds, ["one"]),
        "acquire, renew, release (cycles/s)": rate(seconds, ["one"], renew=True),
        "8 threads, a resource each (cycles/s)": rate(seconds, [f"{n}" for n in range(THREADS)]),
        "8 threads, one resource (cycles/s)": rate(seconds, ["one"] * THREADS),
    }
    print(json.dumps(found))
