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
from prometheus_client import CollectorRegistry

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

    series: dict[str, str]
    at: str
    #: The labels of each alert apart from its name and severity; None: all is quiet.
    fires: dict[str, str] | None = None


def flat(value: float) -> str:
    return f"{value}+0x200"


def buckets(name: str, labels: str, fast: float, slow: float) -> dict[str, str]:
    """A histogram that grows by ``slow`` and ``fast`` a minute up to each bound."""
    grows = {"0.1": slow, "0.3": slow, "0.6": fast, "+Inf": fast}
    return {f'{name}{{{labels},le="{le}"}}': f"0+{by}x200" for le, by in grows.items()}


RENEWALS = 'leasing_renewals_total{model="leasing_tasks.task",instance="%s",outcome="%s"}'
REFUSED = 'leasing_fence_rejections_total{model="leasing_tasks.task",verb="%s"}'
LATE = "tasks_recovery_delay_seconds_bucket"


def renewals(failed: str) -> dict[str, str]:
    """Two processes that renew 1,000 leases a minute, and the failures of one."""
    return {
        RENEWALS % ("a", "renewed"): "0+500x600",
        RENEWALS % ("b", "renewed"): "0+500x600",
        RENEWALS % ("a", "failed"): failed,
    }


def slots(busy: float, *, ready: float = 3, paused: float = 0) -> dict[str, str]:
    """Two workers with four threads each, of which so many are ``busy``, and free coroutines."""
    return {
        'tasks_worker_slots{instance="a",job="w",kind="thread"}': flat(4),
        'tasks_worker_slots{instance="b",job="w",kind="thread"}': flat(4),
        'tasks_worker_slots_busy{instance="a",job="w",kind="thread"}': flat(4),
        'tasks_worker_slots_busy{instance="b",job="w",kind="thread"}': flat(busy - 4),
        'tasks_worker_slots{instance="a",job="w",kind="coroutine"}': flat(9),
        'tasks_worker_slots_busy{instance="a",job="w",kind="coroutine"}': flat(0),
        'tasks_worker_slots{instance="a",job="w",kind="process"}': flat(0),
        'tasks_worker_slots_busy{instance="a",job="w",kind="process"}': flat(0),
        'tasks_queue_ready{instance="c",queue="mail"}': flat(ready),
        'tasks_queue_paused{instance="c",queue="mail"}': flat(paused),
    }


CASES: dict[str, list[Case]] = {
    "LeasingNoLeader": [
        Case(
            {
                'leasing_leaders_wanted{instance="a"}': flat(2),
                'leasing_leaders_wanted{instance="b"}': flat(2),
                'leasing_leaders_present{instance="a"}': flat(1),
                'leasing_leaders_present{instance="b"}': flat(1),
            },
            "3m",
            {},
        ),
        Case({"leasing_leaders_wanted": flat(2), "leasing_leaders_present": flat(1)}, "1m"),
        Case({"leasing_leaders_wanted": flat(2), "leasing_leaders_present": flat(2)}, "9m"),
    ],
    "LeasingTwoLeaders": [
        Case(
            {
                'leasing_leading{instance="a"}': flat(1),
                'leasing_leading{instance="b"}': flat(1),
                "leasing_leaders_wanted": flat(1),
                'leasing_leaders_present{instance="c"}': flat(1),
                'leasing_leaders_present{instance="d"}': flat(1),
            },
            "2m",
            {},
        ),
        Case(
            {
                'leasing_leading{instance="a"}': flat(1),
                'leasing_leading{instance="b"}': flat(0),
                "leasing_leaders_wanted": flat(1),
                "leasing_leaders_present": flat(1),
            },
            "9m",
        ),
        Case(  # a handover between two scrapes
            {
                'leasing_leading{instance="a"}': "1 1 0+0x200",
                'leasing_leading{instance="b"}': "0 1 1+0x200",
                "leasing_leaders_wanted": flat(1),
                "leasing_leaders_present": flat(1),
            },
            "1m",
        ),
        Case(  # leaderships that nobody has named
            {
                "leasing_leading": flat(1),
                "leasing_leaders_wanted": flat(0),
                "leasing_leaders_present": flat(0),
            },
            "9m",
        ),
    ],
    "LeasingLeaderFlapping": [
        Case({'leasing_leader_transitions_total{kind="elected"}': "0+1x200"}, "40m", {}),
        Case({'leasing_leader_transitions_total{kind="elected"}': "0+0.1x200"}, "40m"),
        Case({'leasing_leader_transitions_total{kind="left"}': "0+1x200"}, "40m"),
    ],
    "LeasingRenewalSlackLow": [
        Case(
            buckets("leasing_renewal_slack_ratio_bucket", 'model="leasing_tasks.task"', 100, 10),
            "20m",
            {"model": "leasing_tasks.task"},
        ),
        Case(
            buckets("leasing_renewal_slack_ratio_bucket", 'model="leasing_tasks.task"', 100, 1),
            "20m",
        ),
    ],
    "LeasingRenewalFailures": [
        Case(renewals("0+20x600"), "70m", {"model": "leasing_tasks.task"}),
        Case(renewals("0+14x600"), "70m"),
        Case(renewals("0+20x70 1400+0x600"), "77m"),  # it is over
        Case(renewals("0+0x70 0+200x600"), "73m"),  # and here it has just begun
        Case(
            renewals("0+1x600")
            | {
                RENEWALS % ("a", "skipped"): "0+500x600",
                RENEWALS % ("a", "lost"): "0+50x600",
            },
            "70m",
        ),
    ],
    "LeasingRenewalFailuresLasting": [
        Case(renewals("0+8x600"), "370m", {"model": "leasing_tasks.task"}),
        Case(renewals("0+5x600"), "370m"),
        Case(renewals("0+8x370 2960+0x600"), "405m"),
        Case(renewals("0+0x370 0+30x600"), "400m"),
    ],
    "LeasingKeeperDraining": [
        Case({'leasing_keeper_draining{instance="a"}': flat(1)}, "2m", {"instance": "a"}),
        Case({'leasing_keeper_draining{instance="a"}': "0 1 0 0+0x100"}, "1m"),
    ],
    "LeasingLeasesLost": [
        Case(  # the first of its kind: no increase() sees it
            {'leasing_losses_total{model="leasing_tasks.task",reason="overdue"}': "_x20 1+0x200"},
            "22m",
            {"model": "leasing_tasks.task", "reason": "overdue"},
        ),
        Case(
            {'leasing_losses_total{model="leasing_tasks.task",reason="taken"}': "7+0x20 8+0x200"},
            "22m",
            {"model": "leasing_tasks.task", "reason": "taken"},
        ),
        Case({'leasing_losses_total{model="leasing_tasks.task",reason="taken"}': flat(7)}, "60m"),
        Case(
            {'leasing_losses_total{model="leasing_tasks.task",reason="revoked"}': "0+1x200"}, "20m"
        ),
    ],
    "LeasingFenceRejections": [
        Case(
            {REFUSED % "renew": "_x20 1+0x200"},
            "22m",
            {"model": "leasing_tasks.task", "verb": "renew"},
        ),
        Case(
            {REFUSED % "fail": "3+0x20 4+0x200"},
            "25m",
            {"model": "leasing_tasks.task", "verb": "fail"},
        ),
        Case({REFUSED % "fail": flat(3)}, "60m"),
    ],
    "LeasingClockOffset": [
        Case({'leasing_clock_offset_seconds{instance="a"}': flat(-6)}, "6m", {"instance": "a"}),
        Case({'leasing_clock_offset_seconds{instance="a"}': flat(4)}, "60m"),
        Case({'leasing_clock_offset_seconds{instance="a"}': "9 9 0+0x200"}, "1m"),
    ],
    "LeasingRenewalsNotHot": [
        Case(
            {
                'leasing_table_hot_updates_total{model="leasing.lease",instance="a"}': "0+100x200",
                'leasing_table_hot_updates_total{model="leasing.lease",instance="b"}': "0+100x200",
                'leasing_renewals_total{model="leasing.lease",outcome="renewed"}': "0+300x200",
            },
            "90m",
            {"model": "leasing.lease"},
        ),
        Case(
            {
                'leasing_table_hot_updates_total{model="leasing.lease"}': "0+290x200",
                'leasing_renewals_total{model="leasing.lease",outcome="renewed"}': "0+300x200",
            },
            "90m",
        ),
        Case(  # too few to judge by
            {
                'leasing_table_hot_updates_total{model="leasing.lease"}': flat(0),
                'leasing_renewals_total{model="leasing.lease",outcome="renewed"}': "0+3x200",
            },
            "90m",
        ),
    ],
    "LeasingTableBloat": [
        Case(
            {
                'leasing_table_dead_rows{model="leasing_tasks.task"}': flat(200_000),
                'leasing_table_live_rows{model="leasing_tasks.task"}': flat(100_000),
            },
            "40m",
            {"model": "leasing_tasks.task"},
        ),
        Case(
            {
                'leasing_table_dead_rows{model="leasing_tasks.task"}': flat(200),
                'leasing_table_live_rows{model="leasing_tasks.task"}': flat(100),
            },
            "90m",
        ),
        Case(
            {
                'leasing_table_dead_rows{model="leasing_tasks.task"}': flat(200_000),
                'leasing_table_live_rows{model="leasing_tasks.task"}': flat(300_000),
            },
            "90m",
        ),
    ],
    "LeasingFiguresMissing": [
        Case({}, "15m", {}),
        Case(
            {'leasing_figures_up{figure="queues"}': flat(0)},
            "15m",
            {"figure": "queues"},
        ),
        Case(
            {
                'leasing_figures_up{figure="queues"}': flat(1),
                'leasing_figures_skipped{figure="queues"}': flat(1),
            },
            "15m",
            {"figure": "queues"},
        ),
        Case(
            {
                'leasing_figures_up{figure="queues"}': flat(1),
                'leasing_figures_age_seconds{figure="queues"}': flat(400),
            },
            "15m",
            {"figure": "queues"},
        ),
        Case(
            {
                'leasing_figures_up{figure="queues",instance="a"}': flat(1),
                'leasing_figures_up{figure="queues",instance="b"}': flat(0),
                'leasing_figures_age_seconds{figure="queues"}': flat(30),
            },
            "30m",
        ),
    ],
    "TasksNoWorkers": [
        Case(
            {
                'tasks_queue_workers{queue="mail",instance="a"}': flat(0),
                'tasks_queue_workers{queue="mail",instance="b"}': flat(0),
                'tasks_queue_ready{queue="mail",instance="a"}': flat(3),
            },
            "3m",
            {"queue": "mail"},
        ),
        Case(
            {
                'tasks_queue_workers{queue="mail"}': flat(0),
                'tasks_queue_ready{queue="mail"}': flat(3),
                'tasks_queue_running{queue="mail"}': flat(2),
                'tasks_orphans{queue="mail"}': flat(2),
            },
            "3m",
            {"queue": "mail"},
        ),
        Case(
            {
                'tasks_queue_workers{queue="remote"}': flat(0),
                'tasks_queue_ready{queue="remote"}': flat(3),
                'tasks_queue_running{queue="remote"}': flat(2),
                'tasks_orphans{queue="remote"}': flat(1),
                'tasks_queue_workers{queue="paused"}': flat(0),
                'tasks_queue_ready{queue="paused"}': flat(3),
                'tasks_queue_paused{queue="paused"}': flat(1),
            },
            "9m",
        ),
        Case(
            {
                'tasks_queue_workers{queue="mail"}': flat(0),
                'tasks_queue_ready{queue="mail"}': flat(0),
                'tasks_queue_workers{queue="video"}': flat(1),
                'tasks_queue_ready{queue="video"}': flat(9),
            },
            "9m",
        ),
    ],
    "TasksWorkerGone": [
        Case(
            {'tasks_workers{role="worker",state="gone"}': "0+0x20 1+0x200"},
            "22m",
            {"role": "worker"},
        ),
        Case({'tasks_workers{role="worker",state="gone"}': "3+0x20 2+0x200"}, "22m"),
        Case({'tasks_workers{role="worker",state="stopped"}': "0+1x200"}, "22m"),
    ],
    "TasksNobodyRecovers": [
        Case({"tasks_recovering_workers": flat(0)}, "3m", {}),
        Case({"tasks_recovering_workers": flat(1)}, "9m"),
        Case({"tasks_recovering_workers": "0 0 1+0x200"}, "1m"),
    ],
    "TasksRecoveryStale": [
        Case(
            {
                'tasks_recovery_last_success_timestamp_seconds{instance="a"}': flat(0),
                'tasks_recovery_last_success_timestamp_seconds{instance="b"}': flat(60),
            },
            "5m",
            {},
        ),
        Case(
            {
                'tasks_recovery_last_success_timestamp_seconds{instance="a"}': flat(0),
                'tasks_recovery_last_success_timestamp_seconds{instance="b"}': "0+60x200",
            },
            "90m",
        ),
    ],
    "TasksRecoveryLate": [
        Case(
            {
                f'{LATE}{{queue="mail",le="10"}}': "0+90x200",
                f'{LATE}{{queue="mail",le="60"}}': "0+100x200",
                f'{LATE}{{queue="mail",le="+Inf"}}': "0+100x200",
            },
            "30m",
            {"queue": "mail"},
        ),
        Case(
            {
                f'{LATE}{{queue="mail",le="10"}}': "0+99x200",
                f'{LATE}{{queue="mail",le="60"}}': "0+100x200",
                f'{LATE}{{queue="mail",le="+Inf"}}': "0+100x200",
            },
            "30m",
        ),
    ],
    "TasksOrphans": [
        Case({'tasks_orphans{queue="mail"}': flat(2)}, "3m", {"queue": "mail"}),
        Case({'tasks_orphans{queue="mail"}': "2 2 0+0x200"}, "1m"),
    ],
    "TasksOldestReady": [
        Case(
            {
                'tasks_queue_oldest_ready_age_seconds{queue="mail"}': flat(301),
                'tasks_queue_paused{queue="mail"}': flat(0),
            },
            "6m",
            {"queue": "mail"},
        ),
        Case(
            {
                'tasks_queue_oldest_ready_age_seconds{queue="mail"}': flat(301),
                'tasks_queue_paused{queue="mail"}': flat(1),
                'tasks_queue_oldest_ready_age_seconds{queue="video"}': flat(299),
            },
            "30m",
        ),
    ],
    "TasksSlotsBusy": [
        Case(slots(8), "11m", {"job": "w", "kind": "thread"}),
        Case(slots(8), "9m"),
        Case(slots(7), "30m"),
        Case(slots(8, ready=0), "30m"),
        Case(slots(8, paused=1), "30m"),
    ],
    "TasksQueuePaused": [
        Case({'tasks_queue_paused{queue="mail"}': flat(1)}, "61m", {"queue": "mail"}),
        Case({'tasks_queue_paused{queue="mail"}': flat(1)}, "59m"),
    ],
    "TasksFailed": [
        Case({"tasks_failed_current": "5+0x40 6+0x200"}, "45m", {}),
        Case({"tasks_failed_current": flat(5)}, "90m"),
        Case({"tasks_failed_current": "5+0x40 2+0x200"}, "45m"),
    ],
    "TasksCompensationFailed": [
        Case({"tasks_compensations_failed": "0x5 2x200"}, "10m", {}),
        Case({"tasks_compensations_failed": "2x5 0x200"}, "10m"),
    ],
    "TasksFailing": [
        Case(
            {
                'tasks_executions_total{queue="mail",task="send",outcome="failed"}': "0+5x200",
                'tasks_executions_total{queue="mail",task="send",outcome="lost"}': "0+1x200",
                'tasks_executions_total{queue="mail",task="send",outcome="succeeded"}': "0+5x200",
            },
            "30m",
            {"queue": "mail", "task": "send"},
        ),
        Case(
            {
                'tasks_executions_total{queue="mail",task="send",outcome="failed"}': "0+5x200",
                'tasks_executions_total{queue="mail",task="send",outcome="succeeded"}': "0+6x200",
                'tasks_executions_total{queue="mail",task="few",outcome="failed"}': "0+0.5x200",
                'tasks_executions_total{queue="mail",task="nap",outcome="snoozed"}': "0+9x200",
            },
            "30m",
        ),
    ],
    "TasksSchedulesOverdue": [
        Case({"tasks_schedules_overdue": flat(1)}, "6m", {}),
        Case({"tasks_schedules_overdue": "1 1 0+0x200"}, "1m"),
    ],
    "TasksSuspected": [
        Case(
            {'tasks_suspected_total{kind="no_worker"}': "_x40 1+0x200"},
            "42m",
            {"kind": "no_worker"},
        ),
        Case({'tasks_suspected_total{kind="no_worker"}': flat(4)}, "90m"),
    ],
    "TasksNoRelay": [
        Case(
            {'tasks_relays{instance="a"}': flat(0), 'tasks_relays{instance="b"}': flat(0)}, "3m", {}
        ),
        Case({'tasks_relays{instance="a"}': flat(1)}, "9m"),
        Case({}, "9m"),  # nothing for one to do
    ],
    "TasksRelayStale": [
        Case(
            {
                'tasks_relay_last_success_timestamp_seconds{instance="a"}': "0 60+0x200",
                'tasks_relay_last_success_timestamp_seconds{instance="b"}': flat(0),
                "tasks_relays": flat(2),
            },
            "6m",
            {},
        ),
        Case(  # another has taken over
            {
                'tasks_relay_last_success_timestamp_seconds{instance="a"}': flat(0),
                'tasks_relay_last_success_timestamp_seconds{instance="b"}': "0+60x200",
                "tasks_relays": flat(2),
            },
            "9m",
        ),
        Case(  # none, of which another alert tells
            {"tasks_relay_last_success_timestamp_seconds": flat(0), "tasks_relays": flat(0)}, "9m"
        ),
    ],
    "TasksOutboxStuck": [
        Case({'tasks_outbox_oldest_age_seconds{instance="a"}': "0+60x200"}, "9m", {}),
        Case({'tasks_outbox_oldest_age_seconds{instance="a"}': flat(200)}, "9m"),
    ],
    "TasksOutboxFailing": [
        Case({'tasks_outbox_failing{instance="a"}': flat(2)}, "3m", {}),
        Case({'tasks_outbox_failing{instance="a"}': "0 1 1 0+0x100"}, "3m"),
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
    registry = CollectorRegistry()
    leases = leasing_metrics.LeaseMetrics(registry)
    task_metrics.TaskMetrics(registry, leases)
    lease_figures.figures.cache_clear()
    database.figures.cache_clear()
    collected = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for source in (registry, OfDatabase())
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
