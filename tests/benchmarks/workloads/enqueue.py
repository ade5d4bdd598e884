"""Storing tasks: one by one in autocommit and in transactions, and many at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction

from tasks.models import Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, in_turns
from tests.benchmarks.plain import queue
from tests.benchmarks.tasks import nothing_of_django

#: How many tasks one bulk call stores.
CALL = 10_000


def run(bench: Bench) -> Figures:
    """Tasks stored a second."""
    size = bench.size
    plain = queue.connect(bench.url) if connection.vendor == "postgresql" else None
    if plain:
        queue.create(plain)
    each = max(1, size.enqueued // size.rounds)

    def one() -> None:
        Task.objects.enqueue("bench.nothing", {"n": 1})

    def one_in_transaction() -> None:
        with transaction.atomic():
            Task.objects.enqueue("bench.nothing", {"n": 1})

    def plain_in_transaction() -> None:
        assert plain is not None
        with plain.transaction():
            queue.enqueue(plain)

    ours: dict[str, Callable[[], object]] = {
        "enqueue one by one (tasks/s)": one,
        "enqueue in transactions (tasks/s)": one_in_transaction,
        "enqueue through django.tasks (tasks/s)": lambda: nothing_of_django.enqueue(n=1),
    }
    limits: dict[str, Callable[[], object]] = {}
    if plain:
        limits = {
            "enqueue one by one (tasks/s)": lambda: queue.enqueue(plain),
            "enqueue in transactions (tasks/s)": plain_in_transaction,
            "enqueue through django.tasks (tasks/s)": lambda: queue.enqueue(plain),
        }
    figures: Figures = {}
    for what, work in ours.items():
        contenders = {"limit": _many(limits[what], each)} if what in limits else {}
        figures[what] = in_turns({**contenders, "ours": _many(work, each)}, size.rounds)
    bulk = {"limit": _bulk_plain(plain, size.bulk)} if plain else {}
    figures["bulk enqueue (tasks/s)"] = in_turns(
        {**bulk, "ours": _bulk_ours(size.bulk)}, min(2, size.rounds)
    )
    filling.forget_tasks()
    return figures


def _many(work: Callable[[], object], count: int) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        for _ in range(count):
            work()
        return count / (time.perf_counter() - start)

    return measure


def _bulk_ours(count: int) -> Callable[[], float]:
    def store(data: list[dict[str, Any] | None]) -> None:
        Task.objects.enqueue_many("bench.nothing", data)

    return _in_calls(store, count)


def _bulk_plain(plain: queue.Connection, count: int) -> Callable[[], float]:
    return _in_calls(lambda data: queue.enqueue_many(plain, data), count)


def _in_calls(store: Callable[[list[Any]], None], count: int) -> Callable[[], float]:
    def measure() -> float:
        calls = [min(CALL, count - done) for done in range(0, count, CALL)]
        data = [[{"n": n} for n in range(call)] for call in calls]
        start = time.perf_counter()
        for each in data:
            store(each)
        return count / (time.perf_counter() - start)

    return measure
