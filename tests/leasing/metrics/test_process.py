"""Counts of leases in a process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from prometheus_client import CollectorRegistry, generate_latest

from leasing.exceptions import LeaseHeld, LeaseLost, LeaseTimeout
from leasing.holding.keeper import Keeper
from leasing.leader import Leader
from leasing.metrics import port as metrics_port
from leasing.metrics import process as lease_metrics
from leasing.metrics.exposition import OURS
from leasing.metrics.process import VERBS
from leasing.metrics.registry import SHARED
from leasing.models import Lease
from leasing.runtime.event_lines import log
from leasing.runtime.events import happened, is_heard, subscribe, unsubscribe
from leasing.store import Renewals, Why, why_of
from leasing.stores.rows import term_of
from tasks.metrics import process as task_metrics
from tests.factories import grant_id_of, make_lease
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import FakeClock, FakeStore, enter, expire, usurp
from tests.metrics import Value, check_names, scrape
from tests.plugin import ROOT

LEASE = "leasing.lease"


# Acquiring


@pytest.mark.django_db
@pytest.mark.usefixtures("form")
def test_leases_are_counted_by_what_came_of_asking_for_them(
    database_clock: DatabaseClock, value: Value
) -> None:
    Lease.objects.acquire("crane:1", holder="ann", ttl=30)
    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1", holder="bob")
    database_clock.advance(42)
    Lease.objects.acquire("crane:1", holder="bob", ttl=30)

    for outcome in ("acquired", "held", "taken_over"):
        said = {"model": LEASE, "outcome": outcome}
        assert value("leasing_acquires_total", **said) == 1, outcome
        assert value("leasing_acquire_wait_seconds_count", **said) == 1, outcome
    assert value("leasing_expirations_total", model=LEASE) == 1
    assert value("leasing_takeover_gap_seconds_sum", model=LEASE) == 12


@pytest.mark.django_db
def test_who_waits_in_vain_is_counted_with_the_time_he_waited(value: Value) -> None:
    make_lease(resource="crane:1")

    with pytest.raises(LeaseTimeout):
        Lease.objects.acquire("crane:1", holder="bob", wait=0.1)

    said = {"model": LEASE, "outcome": "timed_out"}
    assert value("leasing_acquires_total", **said) == 1
    assert value("leasing_acquire_wait_seconds_sum", **said) >= 0.1


@pytest.mark.django_db
def test_leases_that_are_claimed_and_given_back_together_are_counted_each(value: Value) -> None:
    claimed = Lease.objects.acquire_many(["a", "b", "c"], holder="ann")
    Lease.objects.release_many(claimed)

    assert value("leasing_acquires_total", model=LEASE, outcome="acquired") == 3
    assert value("leasing_releases_total", model=LEASE) == 3


# Renewing


def test_each_renewal_is_counted_by_its_outcome(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock, value: Value
) -> None:
    renewed, lost, _ = enter(store, manual_keeper, 1, 2, 3, ttl=30)
    usual = store.answer

    def answer(grants: Any) -> Renewals:
        all_of_them = usual(grants)
        return Renewals({renewed.key: all_of_them.renewed[renewed.key]}, {lost.key: "revoked"})

    store.answer = answer
    clock.advance(12)
    manual_keeper.renew_due()
    store.answer = store.fail
    clock.advance(11)
    manual_keeper.renew_due()

    found = {
        outcome: value("leasing_renewals_total", model="other", outcome=outcome)
        for outcome in ("renewed", "lost", "skipped", "failed")
    }
    assert found == {"renewed": 1, "lost": 1, "skipped": 1, "failed": 2}
    assert value("leasing_renew_duration_seconds_count", model="other") == 2
    # Granted for 30 s, less a margin of 0.6, of which 12 have passed.
    slack = value("leasing_renewal_slack_ratio_sum", model="other")
    assert slack == pytest.approx((30 - 0.6 - 12) / 30)


@pytest.mark.django_db(transaction=True)
def test_a_renewal_by_hand_is_counted_and_compares_the_clocks(value: Value) -> None:
    with Lease.objects.hold("crane:1", ttl=60) as hold:
        hold.renew()
        assert value("leasing_holds", model=LEASE) == 1

    assert value("leasing_renewals_total", model=LEASE, outcome="renewed") == 1
    # The server is on this machine.
    assert abs(value("leasing_clock_offset_seconds")) < 30


def test_the_clock_offset_is_how_far_this_host_is_ahead(
    value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_010.0)

    there = datetime.fromtimestamp(1_000_000, UTC)
    happened("clock.read", now=there, took=4.0)

    assert value("leasing_clock_offset_seconds") == 8


# Losing


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (usurp, Why.TAKEN),
        (expire, Why.EXPIRED),
        (lambda lease: Lease.objects.revoke(), Why.ENDED),
        (lambda lease: Lease.objects.filter(pk=lease.pk).delete(), Why.GONE),
    ],
    ids=["taken", "expired", "ended", "gone"],
)
def test_the_reason_of_a_loss_has_a_kind(happens: Callable[[Lease], object], why: Why) -> None:
    lease = make_lease()
    happens(lease)

    answer = Lease.objects.all().renew_many({lease.pk: grant_id_of(lease)})

    assert why_of(answer.lost[lease.pk]) == why


@pytest.mark.django_db
def test_losses_are_counted_by_their_kind_and_never_by_their_words(value: Value) -> None:
    lease = make_lease()
    overdue = term_of(lease).overdue_reason
    for reason in (overdue, "the harbour burns"):
        happened("lease.lost", [Lease(resource="crane:1")], reason=reason)

    assert value("leasing_losses_total", model=LEASE, reason="overdue") == 1
    assert value("leasing_losses_total", model=LEASE, reason="other") == 1


@pytest.mark.django_db
def test_late_writes_are_counted_by_verb_among_those_that_are_known(value: Value) -> None:
    lease = make_lease()
    usurp(lease)
    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)
    happened("lease.refused", [lease], verb="set fire to crane 1", reason="no")

    assert value("leasing_fence_rejections_total", model=LEASE, verb="renew") == 1
    assert value("leasing_fence_rejections_total", model=LEASE, verb="other") == 1
    assert "guarded_write" in VERBS


@pytest.mark.django_db
def test_what_operators_do_is_counted(value: Value) -> None:
    make_lease()
    Lease.objects.revoke("enough", "root")

    assert value("leasing_revocations_total", model=LEASE) == 1


# Leading


@pytest.mark.django_db(transaction=True)
def test_leaderships_are_counted_from_the_campaign_to_the_end(value: Value) -> None:
    leader = Leader("scheduler")
    assert value("leasing_candidates") == value("leasing_leading") == 0
    with leader:
        assert value("leasing_candidates") == value("leasing_leading") == 1
    with pytest.raises(LeaseLost), leader as term:
        term.mark_lost("a test")
        assert value("leasing_leading") == 0

    kinds = {
        kind: value("leasing_leader_transitions_total", kind=kind)
        for kind in ("elected", "left", "lost")
    }
    assert kinds == {"elected": 2, "left": 1, "lost": 1}


# Who listens


def test_nothing_is_measured_while_nobody_asks() -> None:
    assert not any(map(is_heard, ("lease.asked", "lease.renewals", "clock.read", "leader.elected")))


def test_a_count_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    counts: list[Any] = []

    def fail(rows: Any, **details: Any) -> None:
        raise ZeroDivisionError

    def count(rows: Any, **details: Any) -> None:
        counts.append((rows, details))

    subscribe({"trial.failing": count}, log.metrics_failed)
    subscribe({"trial.failing": fail}, log.metrics_failed)
    happened("trial.failing", ["a lease"], reason="why")
    unsubscribe({"trial.failing": count})
    unsubscribe({"trial.failing": fail})

    assert counts == [(["a lease"], {"reason": "why"})]
    assert [bool(record.exc_info) for record in caplog.records] == [True]
    assert not is_heard("trial.failing")


# Showing


@pytest.fixture
def uncounted() -> Iterator[None]:
    """Nothing is counted when the test begins, nor after it."""
    assert not is_heard("clock.read")
    yield
    for module in (lease_metrics, task_metrics):
        module.disconnect()


@pytest.mark.usefixtures("uncounted")
def test_a_process_shows_what_it_counts_at_its_port() -> None:
    found = scrape(metrics_port.serve_at("127.0.0.1", 0))

    assert is_heard("clock.read")
    assert "python_info" in found.names


@pytest.mark.usefixtures("uncounted")
def test_a_process_has_pages_at_the_port_of_its_metrics() -> None:
    pages = {"/livez": (HTTPStatus.OK, "ok\n"), "/readyz": (HTTPStatus.IM_A_TEAPOT, "no\n")}
    port = metrics_port.serve_at("127.0.0.1", 0, pages.get)

    def ask(method: str, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        with closing(connection):
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    assert ask("GET", "/livez") == (200, "ok\n")
    assert ask("HEAD", "/readyz") == (418, "")
    assert ask("POST", "/livez")[0] == 405
    assert "python_info" in scrape(port).names


@pytest.mark.parametrize(
    ("directory", "port", "ports"),
    [("", 9100, [9100, 9101]), ("", 0, [0, 0]), ("/counts", 9100, [9100, None])],
)
def test_each_of_several_processes_has_a_port_unless_they_share_their_counts(
    directory: str, port: int, ports: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if directory:
        monkeypatch.setenv(SHARED, directory)

    assert [metrics_port.port_of(port, index) for index in (1, 2)] == ports
    assert metrics_port.port_of(port, None) == port


@pytest.mark.usefixtures("uncounted")
def test_one_whose_counts_another_shows_counts_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SHARED, "/counts")
    metrics_port.serve({"metrics_port": 9100, "metrics_address": "127.0.0.1"}, index=2)

    assert is_heard("clock.read")


@pytest.mark.usefixtures("uncounted")
def test_a_port_that_is_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"127.0.0.1 port {port}: Address already in use"):
            metrics_port.serve({"metrics_port": port, "metrics_address": "127.0.0.1"})


@pytest.mark.django_db
def test_a_port_that_is_none_is_said() -> None:
    with pytest.raises(CommandError, match="0 to 65535"):
        call_command("run_recovery", "--metrics-port", "65536")


@pytest.mark.django_db
def test_a_port_without_the_client_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(CommandError, match=r"pip install 'django-leasing\[prometheus\]'"):
        call_command("run_recovery", "--metrics-port", "0")


@pytest.mark.slow
def test_the_packages_do_without_the_client_library() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import django; django.setup()\n"
        "import project.urls, tasks.management.commands.run_worker\n"
    )

    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_names_are_as_promtool_wants_them(registry: CollectorRegistry) -> None:
    happened("clock.read", now=datetime.fromtimestamp(0, UTC), took=0.0)

    check_names(generate_latest(registry).decode())


def test_the_page_of_metrics_names_every_one(registry: CollectorRegistry) -> None:
    page = (ROOT / "docs" / "metrics-reference.md").read_text()
    shown = [
        f"`{family.name}{'_total' if family.type == 'counter' else ''}`"
        for family in registry.collect()
        if family.name.startswith(OURS)
    ]

    assert [name for name in shown if name not in page] == []
