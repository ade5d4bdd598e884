"""The health sentence and the list of needs, judged from figures alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from leasing.paging import Capped
from tasks.health import PATIENCE, Figures, assess

NONE = Capped(0)
WELL = Figures(
    ready=NONE, scheduled=NONE, running=NONE, stuck=NONE, failed=NONE, workers=2, sweepers=2
)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (WELL, "All is well. Nothing runs on 2 workers, nothing waits."),
        (
            replace(WELL, running=Capped(3), ready=Capped(12), workers=1),
            "All is well. 3 tasks run on 1 worker, 12 wait.",
        ),
        (
            replace(WELL, running=Capped(1), ready=Capped(10_001)),
            "All is well. 1 task runs on 2 workers, 10,000+ wait.",
        ),
    ],
)
def test_when_nothing_is_wrong_the_sentence_says_what_is_done(
    figures: Figures, sentence: str
) -> None:
    health = assess(figures)
    assert (health.severity, health.sentence, health.needs) == ("ok", sentence, [])


def test_without_workers_it_depends_on_whether_anything_waits() -> None:
    idle = assess(replace(WELL, workers=0, sweepers=0))
    assert (idle.severity, idle.needs[0].headline) == ("info", "Nobody works.")
    assert idle.sentence == "1 thing needs you."
    waiting = assess(replace(WELL, workers=0, sweepers=0, scheduled=Capped(1)))
    assert waiting.severity == "critical"


def test_stuck_tasks_are_worse_without_anyone_to_recover_them() -> None:
    stuck = replace(WELL, stuck=Capped(2), overdue=Capped(2))
    heals, does_not = (assess(replace(stuck, sweepers=some)).needs[0] for some in (1, 0))
    assert heals.headline == does_not.headline == "2 tasks are stuck: nobody renews the lease."
    assert "Recovery should have" in heals.detail and "not heal by itself" in does_not.detail


def test_what_the_next_sweep_will_find_is_no_news() -> None:
    assert assess(replace(WELL, stuck=Capped(1))).severity == "ok"
    assert assess(replace(WELL, stuck=Capped(3), overdue=Capped(1))).severity == "critical"


@pytest.mark.parametrize("field", ["start_unheard", "stop_unheard"])
def test_a_wish_may_go_unheard_for_a_moment(field: str) -> None:
    assert assess(replace(WELL, **{field: PATIENCE})).severity == "ok"  # type: ignore[arg-type]
    late = replace(WELL, **{field: PATIENCE + timedelta(seconds=1)})  # type: ignore[arg-type]
    assert assess(late).severity == "warning"


def test_the_gravest_need_leads() -> None:
    health = assess(replace(WELL, failed=Capped(1), stuck=Capped(1), sweepers=0))
    assert health.severity == "critical"
    assert [need.severity for need in health.needs] == ["critical", "warning"]
    assert health.sentence == "2 things need you."
