"""The terms of a lease: checked before anything is sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.models import Lease
from leasing.validation.names import process_named
from leasing.validation.terms import HIGHEST_PRIORITY, LOWEST_PRIORITY, Terms
from leasing.validation.values import MAX_DEPTH, check_json


def test_terms_have_defaults() -> None:
    terms = Terms.check()

    assert terms.ttl == timedelta(seconds=30)
    assert terms.holder != ""
    assert (terms.priority, terms.max_hold, terms.preempt_after) == (0, None, None)
    assert (terms.grace, terms.metadata) == (timedelta(0), {})


def test_the_process_of_a_holder_with_another_name_is_metadata() -> None:
    with process_named("run_report@vm:12:0a1b2c3d"):
        assert Terms.check(holder="report-service").metadata == {
            "process": "run_report@vm:12:0a1b2c3d"
        }
        assert Terms.check(holder="report-service", metadata={"n": 1}).metadata == {"n": 1}
        assert Terms.check(holder="report-service", metadata={}).metadata == {}
        assert Terms.check(holder="run_report@vm:12:0a1b2c3d").metadata == {}


def test_the_defaults_of_ttl_and_grace_are_settings() -> None:
    with override_settings(LEASING={"TTL": 7, "GRACE": 3}):
        terms = Terms.check()

        assert (terms.ttl, terms.grace) == (timedelta(seconds=7), timedelta(seconds=3))
        assert Terms.check(grace=0).grace == timedelta(0)


def test_times_are_seconds_or_timedeltas() -> None:
    seconds = Terms.check(holder="ann", ttl=10, max_hold=60, grace=1.5, preempt_after=0)
    deltas = Terms.check(
        holder="ann",
        ttl=timedelta(seconds=10),
        max_hold=timedelta(minutes=1),
        grace=timedelta(milliseconds=1500),
        preempt_after=timedelta(0),
    )

    assert seconds == deltas
    assert seconds.max_hold == timedelta(seconds=60)


@pytest.mark.parametrize("term", ["max_hold", "grace", "preempt_after"])
@pytest.mark.parametrize("value", [-1, "5", True, float("nan"), float("inf"), 10**12])
def test_what_is_no_time_is_refused(term: str, value: Any) -> None:
    with pytest.raises(InvalidTTL, match=f"^The {term} must be"):
        Terms.check(**{term: value})


def test_a_lease_cannot_be_held_for_less_than_its_ttl() -> None:
    with pytest.raises(InvalidTTL, match="max_hold must not be shorter than the ttl"):
        Terms.check(ttl=30, max_hold=29)
    assert Terms.check(ttl=30, max_hold=30).max_hold == timedelta(seconds=30)


def test_the_holders_name_is_checked() -> None:
    with pytest.raises(InvalidResource, match="^The holder must have"):
        Terms.check(holder="")


# Priority


@pytest.mark.parametrize("priority", [LOWEST_PRIORITY, -1, 0, HIGHEST_PRIORITY])
def test_a_priority_is_a_whole_number(priority: int) -> None:
    assert Terms.check(priority=priority).priority == priority


@pytest.mark.parametrize("priority", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_no_priority(priority: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        Terms.check(priority=priority)


@pytest.mark.parametrize("priority", [LOWEST_PRIORITY - 1, HIGHEST_PRIORITY + 1])
def test_a_priority_out_of_bounds_is_refused(priority: int) -> None:
    with pytest.raises(ValueError, match="must be from -32768 to 32767"):
        Terms.check(priority=priority)


# Metadata

FINE = [
    {},
    {"ticket": 42, "why": None, "parts": [1, 2.5, True, "x"], "deep": {"er": {}}},
    {"mood": "😀", "名": "起重机", "sign": "𝄞"},
    {"written": "\\u0000 and \\ud83d, as people write of them"},
]


@pytest.mark.parametrize("metadata", FINE)
def test_metadata_is_a_json_object(metadata: dict[str, Any]) -> None:
    assert Terms.check(metadata=metadata).metadata == metadata


@pytest.mark.django_db
@pytest.mark.parametrize("metadata", FINE)
def test_what_is_accepted_comes_back_from_the_database(metadata: dict[str, Any]) -> None:
    lease = Lease.objects.acquire("crane:1", metadata=metadata)

    assert lease.metadata == metadata
    assert Lease.objects.get().metadata == metadata


@pytest.mark.parametrize("metadata", [[], "text", 7, [("a", 1)]])
def test_metadata_that_is_no_object_is_refused(metadata: Any) -> None:
    with pytest.raises(ValueError, match="must be a dictionary"):
        Terms.check(metadata=metadata)


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (object(), "is not JSON"),
        (float("nan"), "is not JSON"),
        (float("inf"), "is not JSON"),
        ({1, 2}, "is not JSON"),
        ("\ud800", "is not JSON"),
        ("\udfff", "is not JSON"),
        ("a\0b", "contains a NUL character"),
        ({"a\0b": 1}, "contains a NUL character"),
        (["fine", {"fine": "a\0b"}], "contains a NUL character"),
        (deep(MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels deep"),
        (deep(100_000), "is not JSON"),
    ],
)
def test_what_not_every_database_stores_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^The metadata .*{complaint}"):
        Terms.check(metadata={"value": value})


def test_json_may_be_nested_up_to_the_limit() -> None:
    assert check_json(deep(MAX_DEPTH), "result") == deep(MAX_DEPTH)


# Nothing is sent


@pytest.mark.django_db
@pytest.mark.parametrize(
    "terms",
    [
        {"ttl": 0},
        {"holder": ""},
        {"priority": "high"},
        {"max_hold": 1},
        {"grace": -1},
        {"preempt_after": -1},
        {"metadata": []},
    ],
    ids=lambda terms: next(iter(terms)),
)
@pytest.mark.parametrize("verb", ["acquire", "hold", "acquire_many"])
def test_terms_are_checked_before_anything_is_sent(
    verb: str, terms: dict[str, Any], django_assert_num_queries: Any
) -> None:
    resource: Any = ["crane:1"] if verb == "acquire_many" else "crane:1"

    with django_assert_num_queries(0), pytest.raises(ValueError):
        getattr(Lease.objects, verb)(resource, **terms)


@pytest.mark.parametrize("verb", ["acquire", "hold", "acquire_many"])
def test_an_option_that_a_verb_does_not_have_is_named(verb: str) -> None:
    call: Any = getattr(Lease.objects, verb)
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        call("crane:1", timeout=5)
