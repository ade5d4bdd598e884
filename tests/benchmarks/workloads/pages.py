"""The pages of operators with a million rows in each list: time in the server, without the net."""

from __future__ import annotations

import statistics
import time

from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from leasing.models import Lease
from tasks.models import Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures

REQUESTS = 5


def run(bench: Bench) -> Figures:
    """Milliseconds of each page."""
    fill(bench.size.listed)
    client = Client(SERVER_NAME="localhost")
    client.force_login(get_user_model().objects.create_superuser("bench", password="bench"))
    tasks, leases = reverse("leasing_tasks:list"), reverse("leasing:list")
    pages = {
        "overview": reverse("leasing_tasks:overview"),
        "tasks": tasks,
        "tasks that are ready": f"{tasks}?state=ready",
        "tasks that succeeded": f"{tasks}?state=succeeded",
        "stuck tasks": reverse("leasing_tasks:stuck"),
        "leases": leases,
        "leases that are active": f"{leases}?state=active",
    }
    rows = f"{bench.size.listed:,} rows"
    figures: Figures = {
        f"page at {rows}: {name} (ms)": {"ours": duration(client, page)}
        for name, page in pages.items()
    }
    filling.forget_tasks()
    return figures


def fill(count: int) -> None:
    """Have ``count`` tasks, half of them ended, and ``count`` leases."""
    first = Task.objects.enqueue("bench.nothing", {"n": 1})
    Task.objects.complete(Task.objects.claim("bench", limit=1)[0], {"ok": True})
    filling.copies_of_task(Task.objects.get(pk=first.pk), count // 2)
    filling.tasks(count // 2)
    lease = Lease.objects.acquire("listed-0", ttl=3600)
    filling.copy(lease, count - 1, resource="'listed-' || n", grant_id="gen_random_uuid()")
    filling.settle(Lease)


def duration(client: Client, page: str) -> float:
    """Milliseconds, in the middle of several requests."""
    took = []
    for _ in range(REQUESTS + 1):
        start = time.perf_counter()
        response = client.get(page)
        took.append((time.perf_counter() - start) * 1000)
        if response.status_code != 200:
            raise RuntimeError(f"{page} answers {response.status_code}")
    return statistics.median(took[1:])
