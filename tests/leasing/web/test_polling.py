"""Answers to polls of an open page, and their cost."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.core.cache.backends import base, locmem
from django.template import Template
from django.test import Client

from leasing.functions import database_now
from leasing.models import Lease
from leasing.web.fingerprint import Digest, fingerprint
from leasing.web.polling import SharedReading
from tasks.dashboard import overview
from tasks.models import Sample, Task, Worker
from tests.factories import make_lease, make_task, make_worker
from tests.fixtures import client_with
from tests.pages import signed_in

pytestmark = pytest.mark.django_db

OVERVIEW = "/ops/"
EVERYTHING = (
    *(
        "leasing_tasks.view_task",
        "leasing_tasks.view_worker",
        "leasing_tasks.view_queue",
        "leasing_tasks.view_schedule",
    ),
    *("leasing.view_lease", "leasing.view_auditentry"),
)
PAGES = (
    *(OVERVIEW, "/ops/queues/", "/ops/workers/", "/ops/generator/", "/ops/schedules/"),
    "/ops/handlers/",
    *("/ops/audit/", "/ops/leases/", "/ops/tasks/", "/ops/tasks/stuck/"),
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

viewer = client_with(*EVERYTHING)


def poll(client: Client, url: str, tag: str = "") -> Any:
    headers = {"X-Live": "1"} | ({"If-None-Match": tag} if tag else {})
    return client.get(url, headers=headers)


@pytest.mark.parametrize("url", PAGES)
def test_a_poll_that_knows_the_page_is_answered_304_and_nothing_is_rendered(
    viewer: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_worker()
    make_task()
    tag = poll(viewer, url)["ETag"]
    monkeypatch.delattr(Template, "render")
    answer = poll(viewer, url, tag)
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer["ETag"] == tag
    assert "X-Live" in answer["Vary"]


@pytest.mark.parametrize("url", [OVERVIEW, "/ops/tasks/", "/ops/queues/"])
def test_a_poll_hears_of_what_has_changed(viewer: Client, url: str) -> None:
    make_worker()
    tag = poll(viewer, url)["ETag"]
    make_task()
    answer = poll(viewer, url, tag)
    assert answer.status_code == 200
    assert answer["ETag"] != tag


def test_a_visit_is_shown_the_whole_page_whatever_it_knows(viewer: Client) -> None:
    tag = poll(viewer, OVERVIEW)["ETag"]
    answer = viewer.get(OVERVIEW, headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert "ETag" not in answer


def test_a_sample_is_news_to_the_overview_and_no_poll_reads_the_charts_without(
    viewer: Client, shared_readings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [100.0]
    for module in (base, locmem):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: moment[0]))
    tag = poll(viewer, OVERVIEW)["ETag"]
    moment[0] += 3  # polls do not share the page itself for so long
    with monkeypatch.context() as patch:
        patch.setattr(overview, "series", lambda *args, **kwargs: 1 / 0)
        assert poll(viewer, OVERVIEW, tag).status_code == 304
    moment[0] += 3
    slot = int(database_now("default").timestamp()) // Sample.SLOT * Sample.SLOT - Sample.SLOT
    Sample.objects.create(queue="default", slot=slot, completed=1)
    assert poll(viewer, OVERVIEW, tag).status_code == 200


def test_signs_of_life_are_no_news_until_they_stay_away(viewer: Client) -> None:
    worker = make_worker()
    for url in (OVERVIEW, "/ops/workers/", f"/ops/workers/{worker.pk}/"):
        tag = poll(viewer, url)["ETag"]
        Worker.objects.seen(worker.name)
        assert poll(viewer, url, tag).status_code == 304
    tag = poll(viewer, OVERVIEW)["ETag"]
    Worker.objects.update(last_seen_at=worker.last_seen_at - Worker.LATE_AFTER * 1.5)
    assert poll(viewer, OVERVIEW, tag).status_code == 200


def test_who_may_do_more_gets_another_page(viewer: Client) -> None:
    tag = poll(viewer, OVERVIEW)["ETag"]
    assert poll(signed_in(*EVERYTHING, name="olga"), OVERVIEW, tag).status_code == 200


def test_that_time_has_passed_a_deadline_is_news_though_no_row_has_changed() -> None:
    make_lease()
    Lease.objects.update(expires_at=NOON)
    lease = Lease.objects.get()

    def tag_at(seconds: float) -> str:
        return fingerprint(lease, NOON + timedelta(seconds=seconds))

    assert tag_at(-2) == tag_at(-1) != tag_at(1) == tag_at(2)


def test_a_lease_that_becomes_late_is_news() -> None:
    make_lease(ttl=30)
    Lease.objects.update(expires_at=NOON, renewals=1, renewed_at=NOON)
    lease = Lease.objects.get()
    early, late = (fingerprint(lease, NOON - timedelta(seconds=left)) for left in (29, 2))
    assert early != late


def test_words_that_read_the_same_when_joined_are_told_apart() -> None:
    assert fingerprint(["ab", "c"], NOON) != fingerprint(["a", "bc"], NOON)
    assert fingerprint({"a": {"b": "c"}}, NOON) != fingerprint({"a": "b", "c": ""}, NOON)


def test_the_heaviest_page_weighs_less_than_100_kb_with_all_it_loads(viewer: Client) -> None:
    for number in range(12):
        make_worker(name=f"worker-{number}")
    Task.objects.enqueue_many("sample.sleep", [{"sleep_duration_seconds": 1}] * 48)
    for number in range(12):
        assert len(Task.objects.claim(f"worker-{number}", limit=4)) == 4
    begin = int(datetime.now(UTC).timestamp()) // Sample.SLOT * Sample.SLOT
    Sample.objects.bulk_create(
        Sample(
            queue="default",
            slot=begin - Sample.SLOT * n,
            **dict.fromkeys(("ready", "running", "claimed", "completed", "failed"), n),
            **dict.fromkeys(("wait_p50", "wait_p95"), n / 7),
            **dict.fromkeys(("renewals", "releases", "enqueued", "recovered"), n),
        )
        for n in range(1, 61)
    )
    page = viewer.get(OVERVIEW).content
    assert page.count(b"<tr><th>") > 200
    assets = ["ops.css", "frame.js", "live.js", "keys.js", "mark.svg"]
    weights = [Path(str(finders.find(f"leasing/{name}"))).stat().st_size for name in assets]
    assert all(f"leasing/{name}".encode() in page for name in assets)
    assert len(page) + sum(weights) < 100_000, (len(page), weights)


def test_a_reading_is_shared_until_the_first_of_its_moments_passes() -> None:
    moments = [NOON + timedelta(seconds=seconds) for seconds in (-1, 60, 0.8)]
    row = Lease(resource="report:7", expires_at=moments[2])

    digest = Digest([moments[:2], row], NOON)
    reading = SharedReading({}, "", NOON, time.monotonic(), digest.changes_at)

    assert digest.changes_at == moments[2]
    assert 0 < reading.shared_for <= 0.8
    assert SharedReading({}, "", NOON, time.monotonic()).shared_for == 2.5
    assert SharedReading({}, "", NOON, time.monotonic() - 1, moments[2]).shared_for == 0.001
