"""The health sentence and the list of needs, judged from figures alone."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from leasing.web.counts import Capped
from tasks.dashboard.health import PATIENCE, Assessment, Figures, assess
from tasks.dashboard.queue_rows import QueueLine
from tasks.dashboard.troubles import Failures
from tasks.models import Queue

NONE = Capped(0)
PAUSED_AT = datetime(2026, 1, 1, tzinfo=UTC)
WELL = Figures(
    ready=NONE, scheduled=NONE, running=NONE, stuck=NONE, failed=NONE, workers=2, sweepers=2
)


def codes(health: Assessment) -> list[str]:
    return [need.code for need in health.needs]


@pytest.mark.parametrize(
    ("figures", "reported"),
    [
        (WELL, ["2"]),
        (replace(WELL, running=Capped(3), ready=Capped(12), workers=1), ["3", "1", "12"]),
        (replace(WELL, running=Capped(1), ready=Capped(10_001)), ["1", "2", "10,000+"]),
    ],
)
def test_when_nothing_is_wrong_the_sentence_says_what_is_done(
    figures: Figures, reported: list[str]
) -> None:
    health = assess(figures)
    assert (health.severity, health.needs) == ("ok", [])
    assert re.findall(r"\d[\d,]*\+?", health.sentence.replace(", ", " ")) == reported


def test_without_workers_it_depends_on_whether_anything_waits() -> None:
    nobody = replace(WELL, workers=0, sweepers=0)
    idle = assess(nobody)
    assert (idle.severity, codes(idle)) == ("info", ["nobody_works"])
    assert re.findall(r"\d+", idle.sentence) == ["1"]
    waiting = assess(replace(nobody, ready=Capped(1)))
    assert (waiting.severity, codes(waiting)) == ("critical", ["no_worker"])


def test_what_cannot_be_claimed_now_needs_no_worker() -> None:
    nobody = replace(WELL, workers=0, sweepers=0)
    paused = [QueueLine("mail", Queue("mail", PAUSED_AT), Capped(3), NONE, 0, None, 0)]
    later = assess(replace(nobody, scheduled=Capped(1)))
    standing = assess(replace(nobody, ready=Capped(3), paused=paused))
    beside = assess(replace(nobody, ready=Capped(4), paused=paused))
    assert (later.severity, codes(later)) == ("info", ["nobody_works"])
    assert (standing.severity, codes(standing)) == ("warning", ["paused", "nobody_works"])
    assert (beside.severity, codes(beside)) == ("critical", ["no_worker", "paused"])


def test_who_holds_tasks_is_at_work_although_no_heartbeat_says_so() -> None:
    remote = replace(WELL, workers=0, running=Capped(2), ready=Capped(1))
    assert (assess(remote).severity, codes(assess(remote))) == ("ok", [])
    assert "remote" in assess(remote).sentence
    assert codes(assess(replace(remote, stuck=Capped(1)))) == []
    assert "no_worker" in codes(assess(replace(remote, stuck=Capped(2))))
    assert "no_worker" in codes(assess(replace(remote, stuck=None)))


def test_stuck_tasks_are_worse_without_anyone_to_recover_them() -> None:
    stuck = replace(WELL, stuck=Capped(2), overdue=Capped(2))
    heals, does_not = (assess(replace(stuck, sweepers=some)).needs[0] for some in (1, 0))
    assert heals.headline == does_not.headline and "2" in heals.headline
    assert (heals.code, does_not.code) == ("stuck", "no_recoverer")
    assert heals.detail != does_not.detail


def test_what_the_next_sweep_will_find_is_no_news() -> None:
    assert assess(replace(WELL, stuck=Capped(1))).severity == "ok"
    assert assess(replace(WELL, stuck=Capped(3), overdue=Capped(1))).severity == "critical"


@pytest.mark.parametrize("field", ["start_unheard", "stop_unheard"])
def test_a_desired_state_may_go_unheard_for_a_moment(field: str) -> None:
    assert assess(replace(WELL, **{field: PATIENCE})).severity == "ok"  # type: ignore[arg-type]
    late = replace(WELL, **{field: PATIENCE + timedelta(seconds=1)})  # type: ignore[arg-type]
    assert (assess(late).severity, codes(assess(late))) == ("warning", [field])


def test_the_gravest_need_leads() -> None:
    failures = [Failures("mail.send", "no", 1, "mail", PAUSED_AT, 1)]
    failed = replace(WELL, failed=Capped(1), failures=failures, now=PAUSED_AT)
    health = assess(replace(failed, stuck=Capped(1), sweepers=0))
    assert health.severity == "critical"
    assert [need.severity for need in health.needs] == ["critical", "warning"]
    assert codes(health) == ["no_recoverer", "failed"]
    assert re.findall(r"\d+", health.sentence) == ["2"]
