"""Two web processes and two generators on one database: one truth."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, expect

from leasing.models import Lease
from tasks.models import Task
from tests.browser.conftest import Figure, Visit
from tests.browser.live import Polls
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.test_two_web_processes import free_port

ROUNDS = 20
READS = 30
BADGE = "[data-live=head] .badge"
STATUS = re.compile(r'<h1>Generator</h1><span class="badge.*?</svg>(\w+)</span>')


def _answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{address}/ops/login/", timeout=10) as answer:
        return bool(answer.status == 200)
    return False


@pytest.fixture
def servers(spawn: Spawn) -> list[str]:
    """The addresses of two web processes."""
    addresses = []
    for _ in range(2):
        place = f"localhost:{free_port()}"
        run = ["manage.py", "runserver", "--noreload", "--skip-checks", "--insecure", place]
        spawn(run, PYTHONWARNINGS="default")
        addresses.append(f"http://{place}")
    for address in addresses:
        wait_for(partial(_answers, address), timeout=60)
    return addresses


@pytest.fixture
def generators(spawn: Spawn) -> list[Process]:
    run = ["manage.py", "run_generator", "--rate", "20", "--ttl", "2"]
    return [spawn([*run, "--name", name]) for name in ("left", "right")]


@pytest.fixture
def pages(
    visit: Visit, olga: User, servers: list[str], generators: list[Process]
) -> Iterator[list[Page]]:
    """The generator's page, as each of the web processes serves it. They are closed before the
    processes end: a poll that nobody answers would be a failure of the page."""
    pages = [visit(user=olga, base_url=address) for address in servers]
    yield pages
    for page in pages:
        page.close()


def test_16_a_stop_sent_to_either_web_process_is_confirmed_20_times_of_20(
    pages: list[Page], figure: Figure
) -> None:
    polls = [Polls(page) for page in pages]
    for page in pages:
        page.goto(reverse("leasing_tasks:generator"))
    confirmed = 0
    for number in range(ROUNDS):
        started, stopped = number % 2, 1 - number % 2
        pages[started].get_by_role("button", name="Start").click()
        polls[stopped].until_shown("running", "[data-live=head]")
        stop = pages[stopped].get_by_role("button", name="Stop")
        polls[stopped].until(stop.is_visible)
        stop.click()
        expect(pages[stopped].locator(BADGE)).to_have_text("stopped")
        made = Task.objects.count()
        polls[stopped].until_shown("acknowledged", "[data-live=answers]")
        wait_for(
            lambda: not Lease.objects.active().filter(resource="leasing_tasks.generator").exists()
        )
        polls[started].until_shown("stopped", "[data-live=head]")
        polls[started].until(pages[started].get_by_role("button", name="Start").is_visible)
        assert Task.objects.count() == made
        confirmed += 1
    figure(f"{confirmed} of {ROUNDS} confirmed, no task was made after a stop")


def test_17_the_status_read_30_times_over_both_never_contradicts(
    pages: list[Page], figure: Figure
) -> None:
    polls = Polls(pages[0])
    pages[0].goto(reverse("leasing_tasks:generator"))
    pages[0].get_by_role("button", name="Start").click()
    polls.until_shown("running", "[data-live=head]")
    told = {"running": 0, "stopped": 0}
    for word in told:
        if word == "stopped":
            pages[0].get_by_role("button", name="Stop").click()
        for number in range(READS):
            html = pages[number % 2].request.get(reverse("leasing_tasks:generator")).text()
            assert STATUS.findall(html) == [word]
            told[word] += 1
    figure(f"{told}")
