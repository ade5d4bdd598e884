"""Services while the database is down."""

from __future__ import annotations

import logging

import pytest
from django.db import InterfaceError, OperationalError, ProgrammingError

from leasing.runtime.threads import TOGETHER, Outage, Streak

AWAY = OperationalError("no route")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock) -> Outage:
    return Outage(clock)


def streak(outage: Outage) -> Streak:
    return Streak(1.0, 15.0, outage=outage)


def is_told(service: Streak, error: Exception = AWAY) -> bool:
    service.failed(error)
    return service.level == logging.WARNING


def test_an_outage_is_told_once_by_whoever_meets_it_first(outage: Outage) -> None:
    services = [streak(outage) for _ in range(3)]

    assert [is_told(each) for each in services * 3] == [True] + [False] * 8


def test_its_end_is_told_once_when_all_that_failed_have_succeeded(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    services = [streak(outage) for _ in range(3)]
    for each in services[:2] * 2:
        each.failed(AWAY)

    with caplog.at_level(logging.INFO, "leasing"):
        services[2].succeeded()
        services[0].succeeded()
        assert not caplog.records
        services[1].succeeded()
        services[1].succeeded()

    assert [each.event for each in caplog.records] == ["outage.ended"]  # type: ignore[attr-defined]
    assert is_told(services[0]), "the next one"


def test_whatever_kind_of_error_says_that_it_is_away_is_no_news(outage: Outage) -> None:
    first = streak(outage)

    assert is_told(first)
    assert not is_told(streak(outage), InterfaceError("closed"))
    assert not is_told(streak(outage), ConnectionRefusedError())


def test_a_failure_of_another_kind_is_told_during_an_outage(outage: Outage) -> None:
    service = streak(outage)
    service.failed(AWAY)

    assert is_told(service, ProgrammingError("there is no such column"))
    assert not is_told(service, ProgrammingError("there is no such column"))


def test_a_service_that_ended_while_it_failed_makes_no_outage_last(outage: Outage) -> None:
    streak(outage).failed(AWAY)  # and nobody has it any more

    assert is_told(streak(outage))


@pytest.mark.parametrize("error", [AWAY, ProgrammingError("no such column")])
def test_a_service_that_keeps_failing_mutes_no_later_outage(
    error: Exception, outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, *services = [streak(outage) for _ in range(3)]
    assert is_told(stuck, error)

    for _ in range(2):
        clock.now += 2 * TOGETHER
        caplog.clear()
        assert not is_told(stuck, error)
        assert [is_told(each) for each in services * 2] == [True, False, False, False]
        clock.now += 5
        with caplog.at_level(logging.INFO, "leasing"):
            for each in services:
                each.succeeded()
        assert [each.seconds for each in caplog.records] == [5]  # type: ignore[attr-defined]


def test_what_fails_again_after_a_success_is_another_outage(outage: Outage) -> None:
    services = [streak(outage) for _ in range(3)]
    for each in services:
        each.failed(AWAY)
    services[0].succeeded()

    assert not is_told(services[1]), "of the first"
    assert is_told(services[0])
    assert not is_told(services[2])


def test_a_service_that_looks_seldom_has_part_in_the_outage(outage: Outage, clock: Clock) -> None:
    services = [streak(outage) for _ in range(3)]
    services[0].failed(AWAY)

    clock.now += TOGETHER - 1
    assert not is_told(services[1])
    clock.now += 1
    assert is_told(services[2])


def test_a_forked_child_tells_of_no_end_of_what_its_parent_met(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    service = streak(outage)
    service.failed(AWAY)
    outage.forget()

    with caplog.at_level(logging.INFO, "leasing"):
        service.succeeded()

    assert not caplog.records


def test_services_that_fail_together_come_back_apart(outage: Outage) -> None:
    services = [streak(outage) for _ in range(50)]
    for _ in range(6):
        pauses = [each.failed(AWAY) for each in services]

    assert len(set(pauses)) > 40  # the shortest are all alike
    assert min(pauses) < 4 < 11 < max(pauses) <= 15


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success(outage: Outage) -> None:
    service = Streak(1.0, 15.0, outage=outage, uniform=max)

    assert [service.failed(AWAY) for _ in range(6)] == [1, 2, 4, 8, 15, 15]
    service.succeeded()
    assert service.failed(AWAY) == 1


def test_no_pause_is_so_short_that_it_storms_the_database(outage: Outage) -> None:
    assert Streak(1.0, 15.0, outage=outage, uniform=min).failed(AWAY) == 0.1
