"""Measure pages with a million tasks, a million events and ten thousand leases."""

from __future__ import annotations

import gzip
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache.backends import base, locmem
from django.db import connection
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Page

from leasing.functions import after
from leasing.models import Lease, LeaseEvent
from leasing.web import cache
from tasks.dashboard.listing import STATES
from tasks.models import Task, Worker
from tests.browser import filling, harbour
from tests.browser.conftest import Figure, Visit
from tests.factories import make_task, make_worker
from tests.pages import assert_cheap, queries

#: Milliseconds of server time. It is the processors' time, of this thread and of the database's
#: process for it: what else this machine does is not in it. But it slows processors down, to less
#: than half where two share a core, so the best of TRIES counts; and where even the poll of an
#: empty page takes so long that POLL_LIMIT is less than FLOORS of it, so many of it are the limit.
PAGE_LIMIT, POLL_LIMIT, TRIES, FLOORS = 200, 10, 5, 7
#: Seconds between two polls of a page, and how many polls make one try.
BETWEEN, POLLS = 2.0, 8
#: Bytes of a page with all that it loads, on the first visit, as a web server compresses them.
WEIGHT_LIMIT = 100_000
#: Pages that stay open.
POLLED = (
    *("overview", "queues", "tasks", "tasks succeeded", "tasks failed", "leases"),
    *("task ready", "task failed", "lease"),
)


def _addresses(client: Client) -> dict[str, str]:
    """Lists, filters, next pages and details, by what they are."""
    tasks, leases = reverse("leasing_tasks:list"), reverse("leasing:list")
    found = {
        "overview": reverse("leasing_tasks:overview"),
        "queues": reverse("leasing_tasks:queues"),
        "tasks": tasks,
        "leases": leases,
        "leases expired": f"{leases}?state=expired",
        "leases renewed": f"{leases}?renewed=1",
        "leases by name": f"{leases}?q=pier:77",
        "tasks by name": f"{tasks}?name=sample.sleep",
        "tasks of no name": f"{tasks}?name=no.such",
        "tasks by prefix": f"{tasks}?q=sample",
        "tasks by holder": f"{tasks}?state=succeeded&holder=ann",
        "tasks of nobody": f"{tasks}?state=succeeded&holder=nobody",
        "tasks of a queue": f"{tasks}?queue=default",
        "tasks by time": f"{tasks}?since=2020-01-01T00:00&until=2020-02-01T00:00",
        "task by id": f"{tasks}?q={Task.objects.latest('pk').pk}",
        "audit": reverse("leasing:audit"),
    }
    for state in STATES:
        found[f"tasks {state}"] = f"{tasks}?state={state}"
    for name in ("tasks", "tasks succeeded", "leases", "tasks by name"):
        shown = client.get(found[name]).context
        pages = [shown["page"]] if "page" in shown else [s.page for s in shown["sections"]]
        older = next((page.older for page in pages if page.older), "")
        if older:
            mark = "&" if "?" in found[name] else "?"
            found[f"{name}, next page"] = f"{found[name]}{mark}at={older}"
    for state in ("succeeded", "failed", "ready"):
        task = Task.objects.filter(status=state).latest("pk")
        found[f"task {state}"] = reverse("leasing_tasks:detail", args=[task.pk])
    lease = Lease.objects.get(resource="berth:traded")
    found["lease"] = reverse("leasing:detail", args=[lease.lease_id])
    return found


def _timed(client: Client, url: str, **headers: str) -> tuple[float, Any]:
    """Milliseconds that the answer takes, and the answer."""
    start = _spent()
    answer = client.get(url, headers=headers)
    return _spent() - start, answer


def _spent() -> float:
    """Milliseconds of processor that this thread and its database's process have used."""
    database = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat").read_text()
    return 1000 * time.thread_time() + int(database.split()[0]) / 1e6


def _page(client: Client, url: str) -> float:
    """Milliseconds that the page takes at best. No more tries than it needs."""
    best = float("inf")
    for _ in range(TRIES):
        best = min(best, _timed(client, url)[0])
        if best < PAGE_LIMIT / 2:
            break
    return best


class Cadence:
    """The clock by which polls share what they have read: polls of the only open page."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now


def _poll(client: Client, url: str, cadence: Cadence, enough: float = 0.0) -> float:
    """Milliseconds that polls of a page take which bring nothing new: the mean, for some of them
    find what an earlier one has read, and others read in their turn what several share."""
    best = float("inf")
    tag = _timed(client, url, **{"X-Live": "1"})[1].headers["ETag"]
    for _ in range(TRIES):
        took = []
        for _ in range(POLLS):
            cadence.now += BETWEEN
            ms, answer = _timed(client, url, **{"X-Live": "1", "If-None-Match": tag})
            if answer.status_code == 304:
                took.append(ms)
            tag = answer.headers["ETag"]
        assert len(took) >= POLLS // 2, f"{url} has news although nothing changes"
        best = min(best, sum(took) / len(took))
        if best < enough:
            break
    return best


def _statements(client: Client, addresses: dict[str, str]) -> dict[str, list[str]]:
    sent = {}
    for name, url in addresses.items():
        with queries() as statements:
            assert client.get(url).status_code == 200, name
        # Whether there is a generator is read every ten seconds, by whichever page comes then.
        sent[name] = [each for each in statements() if "generatordesiredstate" not in each]
    return sent


@pytest.mark.measures
@pytest.mark.usefixtures("transactional_db")
def test_24_with_a_million_tasks_every_page_is_quick_and_its_queries_are_fixed(
    visit: Visit, olga: User, figure: Figure, shared_readings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    client.force_login(olga)
    harbour.fill()
    for state in ("succeeded", "failed"):
        for _ in range(2):
            make_task(state=state, holder="ann")
    # As of the many: some have waited for so long that pages say why.
    Task.objects.filter(status="ready").update(scheduled_at=after(-timedelta(hours=1)))
    few = {name: len(sent) for name, sent in _statements(client, _addresses(client)).items()}
    harbour.clear()
    Lease.objects.all().delete()
    LeaseEvent._base_manager.all().delete()
    start = time.perf_counter()
    filling.fill()
    figure(f"{time.perf_counter() - start:.0f} s to fill")
    make_task(state="running", holder="ann", ttl=86_400)
    make_worker(name="ann")
    # It stays as it is meanwhile: no poll brings anything new.
    Worker.objects.update(last_seen_at=after(timedelta(hours=1)))

    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")  # or they were not measured
    addresses = _addresses(client)
    slow = {}
    took = {}
    for name, url in addresses.items():
        took[name] = _page(client, url)
        if took[name] >= PAGE_LIMIT:
            slow[name] = round(took[name])
    statements = _statements(client, addresses)
    for sent in statements.values():
        assert_cheap(sent)
    counts = {name: len(sent) for name, sent in statements.items()}
    more = {n: (few[n], counts[n]) for n in few if n in counts and counts[n] > few[n]}
    assert more == {}
    assert slow == {}
    cadence = Cadence()
    for module in (base, locmem):
        monkeypatch.setattr(module, "time", cadence)
    cache.forget()  # what was read by the real clock would never be too old by this one
    floor = _poll(client, addresses["audit"], cadence)
    limit = max(POLL_LIMIT, FLOORS * floor)
    polls = {name: _poll(client, addresses[name], cadence, limit / 2) for name in POLLED}
    weights = {
        name: _weight(visit(user=olga), addresses[name])
        for name in ("overview", "tasks", "tasks failed", "leases", "lease", "task ready")
    }
    worst = max(took, key=lambda name: took[name])
    figure(f"slowest of {len(took)} pages: {worst}, {took[worst]:.0f} ms")
    figure(", ".join(f"{name} {ms:.0f}" for name, ms in took.items()) + " ms")
    figure(f"at most {max(counts.values())} queries a page")
    figure(f"an empty page's poll: {floor:.1f} ms; no poll may take {limit:.1f} ms")
    figure("polls: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in polls.items()))
    figure(
        "weights: "
        + ", ".join(
            f"{n} {sent / 1000:.0f} kB ({raw / 1000:.0f} uncompressed)"
            for n, (sent, raw) in weights.items()
        )
    )
    assert {name: ms for name, ms in polls.items() if ms >= limit} == {}
    assert {name: sent for name, (sent, _) in weights.items() if sent >= WEIGHT_LIMIT} == {}


def _weight(page: Page, path: str) -> tuple[int, int]:
    """Bytes of the page at ``path`` and of all that it loads, to a browser that has nothing:
    compressed, and as they are."""
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(path)
    page.locator("[data-live-toggle]").click()  # no poll comes between
    bodies = [answer.body() for answer in answers if "x-live" not in answer.request.headers]
    return sum(len(gzip.compress(body, 6)) for body in bodies), sum(map(len, bodies))
