"""A puppet that fills its database and claims from it: ``claimer DEPTH``."""

from __future__ import annotations

import statistics
import sys
import time

import django


def main(depth: int) -> None:
    from tasks.models import Task
    from tests.benchmarks import filling
    from tests.benchmarks.bench import play
    from tests.benchmarks.workloads.claim import LIMIT

    def claim() -> float:
        """Milliseconds that one of several claims takes."""
        took = []
        for _ in range(5):
            start = time.perf_counter()
            claimed = Task.objects.claim("claimer", limit=LIMIT)
            took.append(time.perf_counter() - start)
            if len(claimed) != LIMIT:
                raise RuntimeError(f"claimed {len(claimed)} of {depth}")
            Task.objects.complete_many([(task, {"ok": True}) for task in claimed])
        return statistics.median(took) * 1000

    first = Task.objects.enqueue("bench.nothing", {"n": 1})
    Task.objects.complete(Task.objects.claim("claimer", limit=1)[0], {"ok": True})
    first.refresh_from_db()
    filling.copies_of_task(first, depth)
    filling.tasks(depth + 10 * LIMIT)
    claim()
    play({"claim": claim})


if __name__ == "__main__":
    django.setup()
    main(int(sys.argv[1]))
