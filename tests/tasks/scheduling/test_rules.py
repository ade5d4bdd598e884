"""Schedules and when they are due: nothing here touches a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery.schedules import crontab
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.exceptions import InvalidSchedule
from tasks.scheduling.rules import Cron, Interval, Rule, due_slots, rule_of

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def moments(rule: Rule, begin: str, count: int) -> list[str]:
    """The first ``count`` moments after ``begin``, in UTC and without the year."""
    first = rule.first(moment(begin))
    return [each.strftime("%m-%d %H:%M") for each in rule.upcoming(first, count)]


# Daylight saving time. Berlin: +1, in summer +2; New York: -5, in summer -4.

BERLIN_FORWARD, BERLIN_BACK = "2026-03-28T10:00", "2026-10-24T10:00"
NEW_YORK_FORWARD, NEW_YORK_BACK = "2026-03-07T10:00", "2026-10-31T10:00"


@pytest.mark.parametrize(
    ("zone", "begin", "expression", "expected"),
    [
        # 02:30 does not exist on that day: it comes at 03:00, when the clocks have gone forward.
        ("Europe/Berlin", BERLIN_FORWARD, "30 2 * * *", ["03-29 01:00", "03-30 00:30"]),
        ("America/New_York", NEW_YORK_FORWARD, "30 2 * * *", ["03-08 07:00", "03-09 06:30"]),
        # Two moments of an hour that does not exist come as one.
        ("Europe/Berlin", BERLIN_FORWARD, "0,30 2 * * *", ["03-29 01:00", "03-30 00:00"]),
        # 02:30 (in New York 01:30) comes twice: it is the first.
        ("Europe/Berlin", BERLIN_BACK, "30 2 * * *", ["10-25 00:30", "10-26 01:30"]),
        ("America/New_York", NEW_YORK_BACK, "30 1 * * *", ["11-01 05:30", "11-02 06:30"]),
        # A time of day that neither skips nor repeats is 23 or 25 hours after the last.
        ("Europe/Berlin", BERLIN_FORWARD, "0 13 * * *", ["03-28 12:00", "03-29 11:00"]),
        ("Europe/Berlin", BERLIN_BACK, "0 13 * * *", ["10-24 11:00", "10-25 12:00"]),
        # A rhythm goes on with the time that passes.
        (
            "Europe/Berlin",
            "2026-03-29T00:00",
            "30 * * * *",
            ["03-29 00:30", "03-29 01:30", "03-29 02:30"],
        ),
        (
            "Europe/Berlin",
            "2026-10-24T23:50",
            "30 * * * *",
            ["10-25 00:30", "10-25 01:30", "10-25 02:30"],
        ),
        (
            "America/New_York",
            "2026-11-01T04:45",
            "*/30 * * * *",
            ["11-01 05:00", "11-01 05:30", "11-01 06:00", "11-01 06:30", "11-01 07:00"],
        ),
    ],
)
def test_clocks_that_change_are_treated_as_cron_does(
    zone: str, begin: str, expression: str, expected: list[str]
) -> None:
    assert moments(Cron(expression, zone), begin, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "in_the_second_hour", "expression", "expected"),
    [
        ("Europe/Berlin", "2026-10-25T01:10", "30 2 * * *", "10-26 01:30"),
        ("America/New_York", "2026-11-01T06:10", "30 1 * * *", "11-02 06:30"),
    ],
)
def test_a_moment_is_not_repeated_by_whoever_looks_when_the_hour_comes_again(
    zone: str, in_the_second_hour: str, expression: str, expected: str
) -> None:
    assert moments(Cron(expression, zone), in_the_second_hour, 1) == [expected]


RULES = [
    Cron("30 2 * * *", "Europe/Berlin"),
    Cron("0,30 1-3 * * *", "America/New_York"),
    Cron("*/20 * * * *", "Europe/Berlin"),
    Cron("15 2,3 * * *", "Europe/Berlin"),
    Cron("0 0 * * SUN", "UTC"),
]
seconds = st.integers(0, 365 * 86_400)


@given(rule=st.sampled_from(RULES), at=seconds, later=st.integers(0, 3 * 86_400))
@example(rule=RULES[0], at=297 * 86_400 + 30 * 60, later=3_600)
def test_moments_do_not_depend_on_when_one_asks(rule: Rule, at: int, later: int) -> None:
    begin = moment("2026-01-01") + timedelta(seconds=at)
    after = begin + timedelta(seconds=later)

    found = rule.after(begin, begin)

    assert found > begin
    if found > after:
        assert rule.after(after, after) == found
    else:
        latest = rule.latest(found, after)
        assert found <= latest <= after < rule.after(latest, latest)


@given(
    every=st.timedeltas(timedelta(seconds=1), timedelta(days=400)),
    passed=st.timedeltas(timedelta(0), timedelta(days=4000)),
)
def test_an_interval_is_counted_from_its_own_moments(every: timedelta, passed: timedelta) -> None:
    anchor = moment("2026-01-01")
    rule, now = Interval(every), anchor + passed

    latest, following = rule.latest(anchor, now), rule.after(now, anchor)

    assert latest <= now < following == latest + every
    assert (latest - anchor) % every == timedelta(0)


# What is missed


def served(rule: Rule, missed: str, due: str, now: str, limit: int = 100) -> tuple[list[str], str]:
    slots, following = due_slots(rule, moment(due), moment(now), missed, limit)
    return [each.strftime("%H:%M") for each in slots], following.strftime("%d %H:%M")


EACH_RULE = pytest.mark.parametrize("rule", [Cron("0 * * * *"), Interval(HOUR)], ids=str)


@EACH_RULE
@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_a_moment_that_is_served_on_time_is_not_missed(rule: Rule, missed: str) -> None:
    now = "2026-05-01T03:00:59"
    assert served(rule, missed, "2026-05-01T03:00", now) == (["03:00"], "01 04:00")


@EACH_RULE
@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", []), ("latest", ["07:00"]), ("all", ["03:00", "04:00", "05:00", "06:00", "07:00"])],
)
def test_missed_moments_are_made_up_for_by_policy(
    rule: Rule, missed: str, expected: list[str]
) -> None:
    now = "2026-05-01T07:20"
    assert served(rule, missed, "2026-05-01T03:00", now) == (expected, "01 08:00")


@EACH_RULE
def test_of_missed_moments_and_one_on_time_that_one_is_enough(rule: Rule) -> None:
    now = "2026-05-01T07:00:10"
    assert served(rule, "skip", "2026-05-01T03:00", now) == (["07:00"], "01 08:00")
    assert served(rule, "latest", "2026-05-01T03:00", now) == (["07:00"], "01 08:00")


@EACH_RULE
def test_a_long_absence_is_made_up_for_in_parts(rule: Rule) -> None:
    slots, following = served(rule, "all", "2026-05-01T03:00", "2026-05-09T03:00", limit=3)
    assert (slots, following) == (["03:00", "04:00", "05:00"], "01 06:00")


def test_the_latest_of_years_is_found_without_counting_through_them() -> None:
    slots, following = due_slots(
        Cron("* * * * *"), moment("1990-01-01"), moment("2026-05-01T03:00:30"), "latest", 1
    )
    assert (slots, following) == ([moment("2026-05-01T03:00")], moment("2026-05-01T03:01"))


def test_the_latest_of_a_rare_rule_is_found() -> None:
    rule = Cron("0 0 29 2 *")
    latest = rule.latest(moment("2024-02-29"), moment("2027-12-31"))
    assert latest == moment("2024-02-29")
    assert rule.latest(moment("2020-02-29"), moment("2027-12-31")) == latest


# What is no rule


@pytest.mark.parametrize(
    ("cron", "every", "zone", "text"),
    [
        ("", None, "UTC", "either a cron"),
        ("* * * * *", MINUTE, "UTC", "either a cron"),
        ("* * * *", None, "UTC", "five fields"),
        ("0 * * * * *", None, "UTC", "five fields"),
        ("1," * 100 + "1 * * * *", None, "UTC", "not exceed 200"),
        ("@daily", None, "UTC", "five fields"),
        (crontab(minute=30), None, "UTC", "five fields, such as"),
        ("60 * * * *", None, "UTC", "Bad minute"),
        ("0 0 30 2 *", None, "UTC", "Bad day-of-month"),
        ("0 0 * * 1L/2", None, "UTC", "not a valid cron expression"),
        ("0 0 * * *", None, "Mars/Olympus", "^Unknown time zone 'Mars/Olympus'. Write one such as"),
        ("0 0 * * *", None, "europe/berlin", "^Unknown time zone .* mean 'Europe/Berlin'"),
        ("0 0 * * *", None, "", "^Unknown time zone"),
        ("0 0 * * *", None, "Europe", "Unknown time zone"),
        ("0 0 * * *", None, "../../etc/passwd", "Unknown time zone"),
        ("", timedelta(milliseconds=999), "UTC", "1 second"),
        ("", timedelta(days=3651), "UTC", "3650 days"),
        ("", timedelta(0), "UTC", "1 second"),
    ],
)
def test_what_says_no_moment_is_refused(
    cron: str, every: timedelta | None, zone: str, text: str
) -> None:
    with pytest.raises(InvalidSchedule, match=text):
        rule_of(cron, every, zone)


@given(st.lists(st.text("0123456789*/,-L#W MONDEC", max_size=8), min_size=5, max_size=5))
def test_any_text_is_a_rule_or_refused(fields: list[str]) -> None:
    try:
        rule = rule_of(" ".join(fields), None)
    except InvalidSchedule:
        return
    assert rule.first(moment("2026-01-01")) > moment("2026-01-01")
    assert str(rule)


def test_a_rule_says_itself_in_words() -> None:
    assert str(Cron("0 3 * * MON-FRI", "Europe/Berlin")) == (
        "At 03:00 on Monday through Friday (Europe/Berlin)"
    )
    assert str(Interval(timedelta(minutes=5))) == "Every 5 min"
