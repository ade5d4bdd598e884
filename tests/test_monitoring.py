"""The alerts fire when they should and at no other time, and know no metric but ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.db import connection
from prometheus_client import REGISTRY

from leasing.metrics import leases as lease_figures
from leasing.metrics import process as leasing_metrics
from leasing.metrics.exposition import OfDatabase
from tasks import monitoring
from tasks.metrics import database
from tasks.metrics import process as task_metrics
from tasks.outbox.totals import totals as relayed
from tests.plugin import ROOT
from tests.test_docs import blocks

PAGES = ROOT / "docs" / "runbook"
#: What Prometheus makes of a histogram.
SERIES = r"(?:_bucket|_sum|_count)?"


class Case(NamedTuple):
    """Series as promtool writes them, minute by minute, and what fires at a minute."""

    at: str
    series: dict[str, str]
    #: The labels of each alert apart from its name and severity; None: all is quiet.
    fires: dict[str, str] | None = None


def fires(at: str, series: dict[str, str], **labels: str) -> Case:
    return Case(at, series, labels)


def of(labels: str = "", /, **values: float | str) -> dict[str, str]:
    """Return series with these labels, "queue=mail instance=a", by their names: a number stays."""
    pairs = (each.partition("=") for each in labels.split())
    shown = ",".join(f'{name}="{value}"' for name, _, value in pairs)
    return {
        f"{name}{{{shown}}}" if shown else name: value
        if isinstance(value, str)
        else f"{value}+0x200"
        for name, value in values.items()
    }


def buckets(labels: str, name: str, **grows: float) -> dict[str, str]:
    """Return a histogram that grows by so much a minute up to each bound, such as ``to_60``."""
    return {
        key: value
        for bound, by in grows.items()
        for key, value in of(
            f"{labels} le={bound.removeprefix('to_').replace('_', '.')}", **{name: f"0+{by}x200"}
        ).items()
    }


TASK = "model=leasing_tasks.task"


def slack(slow: float) -> dict[str, str]:
    """Of 100 renewals a minute, so many leave less than 0.3 of their slack."""
    name = "leasing_renewal_slack_ratio_bucket"
    return buckets(TASK, name, to_0_1=slow, to_0_3=slow, to_0_6=100) | buckets(
        TASK, name, **{"to_+Inf": 100}
    )


def late(in_time: float) -> dict[str, str]:
    """Of 100 recoveries a minute, so many come within ten seconds, and all within a minute."""
    name = "tasks_recovery_delay_seconds_bucket"
    return buckets("queue=mail", name, to_10=in_time, to_60=100, **{"to_+Inf": 100})


def renewals(failed: str, **more: str) -> dict[str, str]:
    """Two processes that renew 1,000 leases a minute, and the failures of one."""
    told = {"renewed": "0+500x600", "failed": failed, **more}
    of_one = [
        of(f"{TASK} instance=a outcome={outcome}", leasing_renewals_total=values)
        for outcome, values in told.items()
    ]
    of_other = of(f"{TASK} instance=b outcome=renewed", leasing_renewals_total="0+500x600")
    return {key: value for each in (*of_one, of_other) for key, value in each.items()}


def refused(verb: str, values: float | str) -> dict[str, str]:
    return of(f"{TASK} verb={verb}", leasing_fence_rejections_total=values)


def lost(reason: str, values: float | str) -> dict[str, str]:
    return of(f"{TASK} reason={reason}", leasing_losses_total=values)


def leading(a: float | str, b: float | str, *, wanted: float = 1) -> dict[str, str]:
    """What two processes say of their leadership, which two databases show."""
    return (
        of(leasing_leaders_wanted=wanted)
        | of("instance=a", leasing_leading=a)
        | of("instance=b", leasing_leading=b)
        | of("instance=c", leasing_leaders_present=wanted)
        | of("instance=d", leasing_leaders_present=wanted)
    )


def hot(updates: float, renewed: float) -> dict[str, str]:
    """The updates a minute that touched no index, which two processes show, and the renewals."""
    same = {"leasing_table_hot_updates_total": f"0+{updates}x200"}
    return (
        of("model=leasing.lease instance=a", **same)
        | of("model=leasing.lease instance=b", **same)
        | of("model=leasing.lease outcome=renewed", leasing_renewals_total=f"0+{renewed}x200")
    )


def rows(dead: float, live: float) -> dict[str, str]:
    return of(TASK, leasing_table_dead_rows=dead, leasing_table_live_rows=live)


def queue(name: str, **figures: float) -> dict[str, str]:
    """Figures of a queue; ``orphans`` are no figure of the queue alone."""
    orphans = {"tasks_orphans": figures.pop("orphans")} if "orphans" in figures else {}
    named = {f"tasks_queue_{each}": value for each, value in figures.items()}
    return of(f"queue={name}", **named, **orphans)


def slots(busy: float, *, ready: float = 3, paused: float = 0) -> dict[str, str]:
    """Two workers with four threads each, of which so many are ``busy``, and free coroutines."""
    each = [("a", "thread", 4, 4.0), ("b", "thread", 4, busy - 4)]
    each += [("a", "coroutine", 9, 0.0), ("a", "process", 0, 0.0)]
    found = queue("mail", ready=ready, paused=paused)
    for instance, kind, of_kind, of_them_busy in each:
        labels = f"instance={instance} job=w kind={kind}"
        found |= of(labels, tasks_worker_slots=of_kind, tasks_worker_slots_busy=of_them_busy)
    return found


def ended(task: str, **outcomes: float) -> dict[str, str]:
    """Executions a minute, by their outcome."""
    labels = f"queue=mail task={task} outcome="
    return {
        key: value
        for outcome, by in outcomes.items()
        for key, value in of(labels + outcome, tasks_executions_total=f"0+{by}x200").items()
    }


def relays(count: float, a: float | str = "", b: float | str = "") -> dict[str, str]:
    """So many relays, and when each of two processes published last."""
    name = "tasks_relay_last_success_timestamp_seconds"
    found = of(tasks_relays=count)
    for instance, moment in (("a", a), ("b", b)):
        found |= of(f"instance={instance}", **{name: moment}) if moment != "" else {}
    return found


RECOVERED = "tasks_recovery_last_success_timestamp_seconds"
FIGURE = "figure=queues"
GOES_ON = "0+60x200"

CASES: dict[str, list[Case]] = {
    "LeasingNoLeader": [
        fires(
            "3m",
            of("instance=a", leasing_leaders_wanted=2, leasing_leaders_present=1)
            | of("instance=b", leasing_leaders_wanted=2, leasing_leaders_present=1),
        ),
        Case("1m", of(leasing_leaders_wanted=2, leasing_leaders_present=1)),
        Case("9m", of(leasing_leaders_wanted=2, leasing_leaders_present=2)),
    ],
    "LeasingTwoLeaders": [
        fires("2m", leading(1, 1)),
        Case("9m", leading(1, 0)),
        Case("1m", leading("1 1 0+0x200", "0 1 1+0x200")),  # a handover between two scrapes
        Case("9m", leading(1, 0, wanted=0)),  # leaderships that nobody has named
    ],
    "LeasingLeaderFlapping": [
        fires("40m", of("kind=elected", leasing_leader_transitions_total="0+1x200")),
        Case("40m", of("kind=elected", leasing_leader_transitions_total="0+0.1x200")),
        Case("40m", of("kind=left", leasing_leader_transitions_total="0+1x200")),
    ],
    "LeasingRenewalSlackLow": [
        fires("20m", slack(10), model="leasing_tasks.task"),
        Case("20m", slack(1)),
    ],
    "LeasingRenewalFailures": [
        fires("70m", renewals("0+20x600"), model="leasing_tasks.task"),
        Case("70m", renewals("0+14x600")),
        Case("77m", renewals("0+20x70 1400+0x600")),  # it is over
        Case("73m", renewals("0+0x70 0+200x600")),  # and here it has just begun
        Case("70m", renewals("0+1x600", skipped="0+500x600", lost="0+50x600")),
    ],
    "LeasingRenewalFailuresLasting": [
        fires("370m", renewals("0+8x600"), model="leasing_tasks.task"),
        Case("370m", renewals("0+5x600")),
        Case("405m", renewals("0+8x370 2960+0x600")),
        Case("400m", renewals("0+0x370 0+30x600")),
    ],
    "LeasingKeeperDraining": [
        fires("2m", of("instance=a", leasing_keeper_draining=1), instance="a"),
        Case("1m", of("instance=a", leasing_keeper_draining="0 1 0 0+0x100")),
    ],
    "LeasingLeasesLost": [
        # The first of its kind: no increase() sees it.
        fires("22m", lost("overdue", "_x20 1+0x200"), model="leasing_tasks.task", reason="overdue"),
        fires("22m", lost("taken", "7+0x20 8+0x200"), model="leasing_tasks.task", reason="taken"),
        Case("60m", lost("taken", 7)),
        Case("20m", lost("revoked", "0+1x200")),
    ],
    "LeasingFenceRejections": [
        fires("22m", refused("renew", "_x20 1+0x200"), model="leasing_tasks.task", verb="renew"),
        fires("25m", refused("fail", "3+0x20 4+0x200"), model="leasing_tasks.task", verb="fail"),
        Case("60m", refused("fail", 3)),
    ],
    "LeasingClockOffset": [
        fires("6m", of("instance=a", leasing_clock_offset_seconds=-6), instance="a"),
        Case("60m", of("instance=a", leasing_clock_offset_seconds=4)),
        Case("1m", of("instance=a", leasing_clock_offset_seconds="9 9 0+0x200")),
    ],
    "LeasingRenewalsNotHot": [
        fires("90m", hot(100, 300), model="leasing.lease"),
        Case("90m", hot(290, 300)),
        Case("90m", hot(0, 3)),  # too few to judge by
    ],
    "LeasingTableBloat": [
        fires("40m", rows(200_000, 100_000), model="leasing_tasks.task"),
        Case("90m", rows(200, 100)),
        Case("90m", rows(200_000, 300_000)),
    ],
    "LeasingFiguresMissing": [
        fires("15m", {}),
        fires("15m", of(FIGURE, leasing_figures_up=0), figure="queues"),
        fires("15m", of(FIGURE, leasing_figures_up=1, leasing_figures_skipped=1), figure="queues"),
        fires(
            "15m",
            of(FIGURE, leasing_figures_up=1, leasing_figures_age_seconds=400),
            figure="queues",
        ),
        Case(
            "30m",
            of(f"{FIGURE} instance=a", leasing_figures_up=1)
            | of(f"{FIGURE} instance=b", leasing_figures_up=0)
            | of(FIGURE, leasing_figures_age_seconds=30),
        ),
    ],
    "TasksNoWorkers": [
        fires(
            "3m",
            of("queue=mail instance=a", tasks_queue_workers=0, tasks_queue_ready=3)
            | of("queue=mail instance=b", tasks_queue_workers=0),
            queue="mail",
        ),
        fires("3m", queue("mail", workers=0, ready=3, running=2, orphans=2), queue="mail"),
        Case(
            "9m",
            queue("remote", workers=0, ready=3, running=2, orphans=1)
            | queue("paused", workers=0, ready=3, paused=1),
        ),
        Case("9m", queue("mail", workers=0, ready=0) | queue("video", workers=1, ready=9)),
    ],
    "TasksWorkerGone": [
        fires("22m", of("role=worker state=gone", tasks_workers="0+0x20 1+0x200"), role="worker"),
        Case("22m", of("role=worker state=gone", tasks_workers="3+0x20 2+0x200")),
        Case("22m", of("role=worker state=stopped", tasks_workers="0+1x200")),
    ],
    "TasksNobodyRecovers": [
        fires("3m", of(tasks_recovering_workers=0)),
        Case("9m", of(tasks_recovering_workers=1)),
        Case("1m", of(tasks_recovering_workers="0 0 1+0x200")),
    ],
    "TasksRecoveryStale": [
        fires("5m", of("instance=a", **{RECOVERED: 0}) | of("instance=b", **{RECOVERED: 60})),
        Case("90m", of("instance=a", **{RECOVERED: 0}) | of("instance=b", **{RECOVERED: GOES_ON})),
    ],
    "TasksRecoveryLate": [fires("30m", late(90), queue="mail"), Case("30m", late(99))],
    "TasksOrphans": [
        fires("3m", of("queue=mail", tasks_orphans=2), queue="mail"),
        Case("1m", of("queue=mail", tasks_orphans="2 2 0+0x200")),
    ],
    "TasksOldestReady": [
        fires("6m", queue("mail", oldest_ready_age_seconds=301, paused=0), queue="mail"),
        Case(
            "30m",
            queue("mail", oldest_ready_age_seconds=301, paused=1)
            | queue("video", oldest_ready_age_seconds=299),
        ),
    ],
    "TasksSlotsBusy": [
        fires("11m", slots(8), job="w", kind="thread"),
        Case("9m", slots(8)),
        Case("30m", slots(7)),
        Case("30m", slots(8, ready=0)),
        Case("30m", slots(8, paused=1)),
    ],
    "TasksQueuePaused": [
        fires("61m", queue("mail", paused=1), queue="mail"),
        Case("59m", queue("mail", paused=1)),
    ],
    "TasksFailed": [
        fires("45m", of(tasks_failed_current="5+0x40 6+0x200")),
        Case("90m", of(tasks_failed_current=5)),
        Case("45m", of(tasks_failed_current="5+0x40 2+0x200")),
    ],
    "TasksCompensationFailed": [
        fires("10m", of(tasks_compensations_failed="0x5 2x200")),
        Case("10m", of(tasks_compensations_failed="2x5 0x200")),
    ],
    "TasksFailing": [
        fires("30m", ended("send", failed=5, lost=1, succeeded=5), queue="mail", task="send"),
        Case(
            "30m",
            ended("send", failed=5, succeeded=6)
            | ended("few", failed=0.5)
            | ended("nap", snoozed=9),
        ),
    ],
    "TasksSchedulesOverdue": [
        fires("6m", of(tasks_schedules_overdue=1)),
        Case("1m", of(tasks_schedules_overdue="1 1 0+0x200")),
    ],
    "TasksSuspected": [
        fires("42m", of("kind=no_worker", tasks_suspected_total="_x40 1+0x200"), kind="no_worker"),
        Case("90m", of("kind=no_worker", tasks_suspected_total=4)),
    ],
    "TasksNoRelay": [
        fires("3m", of("instance=a", tasks_relays=0) | of("instance=b", tasks_relays=0)),
        Case("9m", relays(1)),
        Case("9m", {}),  # nothing for one to do
    ],
    "TasksRelayStale": [
        fires("6m", relays(2, "0 60+0x200", 0)),
        Case("9m", relays(2, 0, GOES_ON)),  # another has taken over
        Case("9m", relays(0, 0)),  # none, of which another alert tells
    ],
    "TasksOutboxStuck": [
        fires("9m", of(tasks_outbox_oldest_age_seconds=GOES_ON)),
        Case("9m", of(tasks_outbox_oldest_age_seconds=200)),
    ],
    "TasksOutboxFailing": [
        fires("3m", of(tasks_outbox_failing=2)),
        Case("3m", of(tasks_outbox_failing="0 1 1 0+0x100")),
    ],
}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def severities() -> dict[str, str]:
    """Of each alert."""
    found = re.findall(r"- alert: (\w+).*?severity: (\w+)", monitoring.alerts(), re.DOTALL)
    return dict(found)


# The alerts


def test_the_rules_are_valid(promtool: str) -> None:
    run(promtool, "check", "rules", Path(monitoring.__file__).parent / "alerts.yml")


def test_every_alert_is_tried_both_ways() -> None:
    assert list(CASES) == list(severities()) == list(rules())
    assert all({case.fires is None for case in cases} == {True, False} for cases in CASES.values())


def test_each_alert_fires_when_it_should_and_at_no_other_time(
    promtool: str, tmp_path: Path
) -> None:
    trials = []
    for name, rule in rules().items():
        alone = tmp_path / f"{name}.yml"  # each by itself, which is many times faster
        alone.write_text(f"groups:\n  - name: alone\n    rules:\n{rule}")
        tests = [as_test(name, case) for case in CASES[name]]
        trials.append(tmp_path / f"{name}.trial.yml")
        trials[-1].write_text(json.dumps({"rule_files": [str(alone)], "tests": tests}))  # YAML too

    run(promtool, "test", "rules", *trials)


def rules() -> dict[str, str]:
    """Each alert's own lines."""
    found = re.findall(r"^( {6}- alert: (\w+)\n(?: {8,}.*\n)+)", monitoring.alerts(), re.MULTILINE)
    return {name: text for text, name in found}


def as_test(name: str, case: Case) -> dict[str, Any]:
    firing = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    samples = []
    if case.fires is not None:
        labels = {"alertname": name, "alertstate": "firing", "severity": severities()[name]}
        told = ",".join(f'{key}="{value}"' for key, value in (labels | case.fires).items())
        samples.append({"labels": f"ALERTS{{{told}}}", "value": 1})
    return {
        "interval": "1m",
        "name": f"{name} {'fires' if samples else 'is quiet'}",
        "input_series": [{"series": k, "values": v} for k, v in case.series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": case.at, "exp_samples": samples}],
    }


# Names


def documented() -> set[str]:
    """The metrics of docs/metrics-reference.md."""
    text = (ROOT / "docs" / "metrics-reference.md").read_text()
    return set(re.findall(r"^\| `((?:leasing|tasks)_\w+)` \|", text, re.MULTILINE))


def named_in(text: str) -> set[str]:
    """The metrics that queries in ``text`` name."""
    found = re.findall(rf"\b((?:leasing|tasks)_[a-z_]+?){SERIES}(?=[\s{{}}()\[\]]|$)", text)
    return set(found)


def queries(value: Any) -> list[str]:
    """All queries of a dashboard."""
    if isinstance(value, list):
        return [each for item in value for each in queries(item)]
    if isinstance(value, dict):
        own = [value[key] for key in ("expr", "definition") if isinstance(value.get(key), str)]
        return own + [each for item in value.values() for each in queries(item)]
    return []


def alert_queries() -> str:
    return "\n".join(re.findall(r"expr: (.*?)\n +(?:for|labels):", monitoring.alerts(), re.DOTALL))


@pytest.mark.parametrize("what", ["alerts", "dashboard"])
def test_every_metric_that_is_asked_for_is_documented(what: str) -> None:
    dashboard = "\n".join(queries(json.loads(monitoring.dashboard())))
    named = named_in({"alerts": alert_queries(), "dashboard": dashboard}[what])

    assert len(named) > 20
    assert named - documented() == set()


@pytest.mark.django_db
def test_every_metric_that_is_asked_for_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed, "failures", 1)  # as in a process that publishes
    lease_figures.figures.cache_clear()
    database.figures.cache_clear()
    collected = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for source in (REGISTRY, OfDatabase())
        for metric in source.collect()
    }
    # What only a process at work shows.
    for module in (leasing_metrics, task_metrics):
        source = Path(str(module.__file__)).read_text()
        collected |= set(re.findall(r'(?:Family|_moment)\(\s*"(\w+)"', source))
    if connection.vendor != "postgresql":  # whose statistics they are of
        collected |= {name for name in documented() if name.startswith("leasing_table_")}
    dashboard = "\n".join(queries(json.loads(monitoring.dashboard())))

    assert named_in(alert_queries() + "\n" + dashboard) - collected == set()


# The pages


def test_every_alert_has_its_page() -> None:
    linked = re.findall(
        r"- alert: (\w+).*?runbook_url: https://\S+/runbook/(\S+)/", monitoring.alerts(), re.S
    )

    assert [name for name, _ in linked] == list(CASES)
    for name, page in linked:
        assert f"`{name}`" in monitoring.runbook_page(page), page


def first_action(page: str) -> str:
    """Return what a page says before its first heading, after the names of the alerts."""
    (found,) = re.findall(r"^\*\*First:\*\* (.*)$", page.partition("\n## ")[0], re.MULTILINE)
    return re.sub("[`*]", "", found)


def test_an_alert_and_its_page_begin_with_the_same_action() -> None:
    alerts = re.findall(
        r'description: "(.*?) First: (.*)"\s+runbook_url: https://\S+/runbook/(\S+)/',
        monitoring.alerts(),
    )

    assert len(alerts) == len(CASES)
    for _, action, page in alerts:
        assert action == first_action(monitoring.runbook_page(page)), page


def test_every_page_begins_with_an_action_then_says_what_it_means_and_when_it_is_over() -> None:
    parts = ["## What to do", "## What it means", "## How to see", "## When it is over"]

    for page in PAGES.glob("*.md"):
        if page.name != "index.md":
            text = page.read_text()
            headings = [line for line in text.splitlines() if line.startswith("## ")]
            # What is seen is sometimes what the first action shows.
            assert headings in (parts, [each for each in parts if each != parts[2]]), page.name
            assert first_action(text), page.name


def test_the_overview_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (PAGES / "index.md").read_text()))

    assert listed == {page.name for page in PAGES.glob("*.md")} - {"index.md"}


def test_the_configuration_of_a_page_is_understood(promtool: str, tmp_path: Path) -> None:
    (config,) = blocks(ROOT / "docs" / "metrics.md", "yaml")
    (tmp_path / "prometheus.yml").write_text(config)

    run(promtool, "check", "config", "--syntax-only", tmp_path / "prometheus.yml")


# The dashboard


def test_the_dashboard_has_its_rows_and_asks_the_source_that_is_chosen() -> None:
    board = json.loads(monitoring.dashboard())
    panels = board["panels"]

    assert [p["title"] for p in panels if p["type"] == "row"] == [
        *("Leases", "Tasks", "Workers", "Recovery", "Broker")
    ]
    (source,) = (v for v in board["templating"]["list"] if v["type"] == "datasource")
    chosen = {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"] == chosen
            assert panel["description"]
            assert panel["targets"]


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids = []
    for panel in json.loads(monitoring.dashboard())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        ids.append(panel["id"])
    assert len(set(ids)) == len(ids)


def test_the_queries_of_the_dashboard_are_promql(promtool: str, tmp_path: Path) -> None:
    found = [
        query.replace("$__rate_interval", "5m").replace("$queue", "mail")
        for query in queries(json.loads(monitoring.dashboard()))
        if not query.startswith("label_values(")
    ]
    rules = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(found)]
    (tmp_path / "panels.yml").write_text(
        json.dumps({"groups": [{"name": "panels", "rules": rules}]})
    )

    assert len(found) > 20
    run(promtool, "check", "rules", tmp_path / "panels.yml")


# How users get at them


@pytest.mark.parametrize("what", ["alerts", "dashboard"])
def test_the_command_prints_the_file(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("tasks", "monitoring", what)

    assert capsys.readouterr().out.rstrip() == getattr(monitoring, what)().rstrip()


def test_the_pages_may_be_kept_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("tasks", "monitoring", "alerts", "--runbook", "https://wiki.example/runbook")

    printed = capsys.readouterr().out
    assert "runbook_url: https://wiki.example/runbook/worker-gone/\n" in printed
    assert printed.count("runbook_url: https://wiki.example/") == printed.count("runbook_url: ")
