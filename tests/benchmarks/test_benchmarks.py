"""The benchmark still runs, and judges what it has measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.benchmarks import databases
from tests.benchmarks.__main__ import WORKLOADS, parser, peers_of
from tests.benchmarks.bars import BARS, Bar
from tests.benchmarks.bench import measured, percentile
from tests.benchmarks.peers import HERE, PINS
from tests.benchmarks.plain import queue
from tests.benchmarks.report import Report

DRAIN = "drain, 1 worker (tasks/s)"
#: Those that start few processes. Together they use nearly every part.
QUICK = {
    "postgresql": ["enqueue", "latency", "leases", "recovery", "keeper", "unbegun"],
    "sqlite": ["on_sqlite"],
}


@pytest.fixture
def parcels(process_env: dict[str, str]) -> Iterator[None]:
    """The table of the benchmarks' own model, which the tests' settings do not have."""
    databases.migrate(process_env["DATABASE_URL"])
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE benchmarks_parcel")


@pytest.mark.slow
@pytest.mark.usefixtures("parcels")
def test_workloads_run_in_miniature(process_env: dict[str, str]) -> None:
    workloads = QUICK[connection.vendor]
    command = [sys.executable, "-m", "tests.benchmarks.turn", "mini", *workloads]

    figures = measured(command, process_env["DATABASE_URL"])

    assert all("ours" in by_whom for by_whom in figures.values())
    assert all(figure >= 0 for by_whom in figures.values() for figure in by_whom.values())
    if connection.vendor == "postgresql":
        compared = [name for name, by_whom in figures.items() if "limit" in by_whom]
        assert {"enqueue one by one (tasks/s)", "enqueue to start, p50 (ms)"} <= set(compared)
    else:
        assert figures[f"SQLite: {DRAIN}"]["ours"] > 0


@pytest.fixture
def plain(process_env: dict[str, str]) -> Iterator[queue.Connection]:
    """A connection to a new plain queue of 5,000 tasks."""
    if connection.vendor != "postgresql":
        pytest.skip("it is PostgreSQL's limit")
    with queue.connect(process_env["DATABASE_URL"]) as made:
        made.execute("DROP TABLE IF EXISTS plain_queue")
        queue.create(made)
        queue.fill(made, 5_000)
        yield made
        made.execute("DROP TABLE plain_queue")


@pytest.mark.slow
def test_the_plain_loop_loses_no_task_and_does_each_once(
    plain: queue.Connection, process_env: dict[str, str]
) -> None:
    lost = queue.claim(plain, "one")
    with queue.connect(process_env["DATABASE_URL"]) as other:
        while queue.work(other, "other"):
            pass
        assert queue.take_back(other, "one") == len(lost) == queue.BATCH
        again = queue.claim(other, "other")

        assert queue.complete(plain, "one", lost) == 0
        assert queue.complete(other, "other", again) == queue.BATCH
    statuses = "SELECT status, holder, count(*) FROM plain_queue GROUP BY 1, 2"
    assert plain.execute(statuses).fetchall() == [("succeeded", "other", 5_000)]


@pytest.mark.slow
def test_no_limit_is_measured_with_a_plan_that_reads_the_whole_table(
    plain: queue.Connection,
) -> None:
    queue.check_plans(plain)

    plain.execute("ALTER TABLE plain_queue DROP CONSTRAINT plain_queue_pkey")

    with pytest.raises(RuntimeError, match="Seq Scan"):
        queue.check_plans(plain)


def test_every_workload_has_a_module_and_every_peer_an_adapter() -> None:
    modules = {path.stem for path in Path(HERE.parent, "workloads").glob("[a-z]*.py")}

    assert modules == {*WORKLOADS, "on_sqlite"}
    assert {path.stem for path in HERE.glob("on_*.*")} == {
        f"on_{peer.replace('-', '_')}" for peer in PINS
    }


def test_ratios_are_of_one_turn_and_the_median_of_the_turns_counts() -> None:
    turns = [
        {DRAIN: {"limit": 100.0, "ours": 90.0}},
        {DRAIN: {"limit": 1000.0, "ours": 300.0}},
        {DRAIN: {"limit": 10.0, "ours": 8.0}},
    ]

    report = Report(turns)

    assert report.ratio(DRAIN, "ours", "limit") == 0.8
    assert report.median(DRAIN, "limit") == 100.0
    (verdict,) = report.verdicts()
    assert verdict.ok and verdict.figure == 0.8


def test_a_missed_bar_is_short_and_slack_forgives_as_much_as_it_says() -> None:
    turns = [{DRAIN: {"limit": 100.0, "ours": 40.0}}]

    assert "SHORT" in Report(turns).tables()
    assert "SHORT" not in Report(turns, slack=2.0).tables()


def test_a_bar_can_be_a_ceiling() -> None:
    bar = Bar("idle worker (queries/s)", 1, at_most=True)

    assert bar.is_met(1.0) and not bar.is_met(1.1)
    assert bar.is_met(1.9, slack=2.0)


def test_with_an_older_python_a_ratio_may_be_a_little_lower_and_nothing_else() -> None:
    ratio, ceiling = Bar(DRAIN, 0.7, "limit"), Bar("idle worker (queries/s)", 1, at_most=True)

    assert ratio.is_met(0.6, lower=0.1) and not ratio.is_met(0.59, lower=0.1)
    assert not ceiling.is_met(1.01, lower=0.1)


def test_what_was_not_measured_is_not_judged() -> None:
    assert Report([{}]).verdicts() == []


def test_each_bar_is_about_one_figure_of_one_contender() -> None:
    assert len({(bar.name, bar.other) for bar in BARS}) == len(BARS)


def test_durability_is_on() -> None:
    assert databases.SERVER["fsync"] == databases.SERVER["synchronous_commit"] == "on"


def test_a_percentile_is_one_of_the_figures() -> None:
    figures = [float(number) for number in range(1, 101)]

    assert percentile(figures, 50) == 50.0
    assert percentile(figures, 99) == 99.0
    assert percentile([7.0], 99) == 7.0


def test_the_command_takes_what_make_gives_it() -> None:
    options = parser().parse_args(
        ["--size", "short", "--only", "drain", "leases", "--peers", "pgqueuer"]
    )

    assert (options.only, options.peers) == (["drain", "leases"], ["pgqueuer"])
    assert parser().parse_args(["--size", "default", "--only", "--peers"]).only == []


def test_peers_of_which_a_bar_speaks_are_measured_unless_time_is_short() -> None:
    def asked(*args: str) -> list[str]:
        options = parser().parse_args(args)
        return peers_of(options, options.only or list(WORKLOADS))

    assert asked() == ["pgqueuer", "pg-boss"]
    assert asked("--peers", "pgmq") == ["pgmq"]
    assert asked("--size", "short") == asked("--only", "idle") == []
