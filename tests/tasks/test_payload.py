"""Data and output that may be stored: pure decisions."""

from __future__ import annotations

import json
import math
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from leasing.validation.values import MAX_DEPTH
from tasks.exceptions import NotSerializable, TaskError
from tasks.payload import check_data, check_json, dumped_json, is_same_json
from tests.tasks.querysets.test_enqueue import EVIL, GOOD, lists, nested


@pytest.mark.parametrize("value", [*GOOD.values(), None, 0, -1.5, "", [], "text", [None]])
def test_json_is_returned_as_it_is(value: Any) -> None:
    assert check_json(value, "output") is value


@pytest.mark.parametrize("what", sorted(EVIL))
def test_no_value_that_some_database_refuses_passes(what: str) -> None:
    with pytest.raises(NotSerializable, match="data"):
        check_data(EVIL[what])


def test_the_error_says_what_it_was_about_and_why() -> None:
    with pytest.raises(NotSerializable, match=r"The output is not JSON: .*set.*") as refusal:
        check_json({1}, "output")

    assert isinstance(refusal.value, TaskError)
    assert isinstance(refusal.value, TypeError)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1}, "is not JSON: it is of the type set."),
        (
            {"rows": [{"at": 1}, {"at": {1}}], "last": b""},
            "is not JSON: the value at ['rows'][1]['at'] is of the type set.",
        ),
        ([1, math.nan], "is not JSON: the value at [1] is nan."),
        ({"x": {(1, 2): 3}}, "is not JSON: a key at ['x'] is of the type tuple."),
        ({"x": "\ud800"}, "is not JSON: the value at ['x'] has a lone surrogate."),
        ({"\ud800": 1}, "is not JSON: a key has a lone surrogate."),
        ({"x": ["a", "\0"]}, "contains a NUL character: the value at ['x'][1] has it."),
        ({"x": {"\0": 1}}, "contains a NUL character: a key at ['x'] has it."),
    ],
)
def test_the_error_names_the_part_that_cannot_be_stored(value: Any, said: str) -> None:
    with pytest.raises(NotSerializable) as refusal:
        check_json(value, "output")

    assert str(refusal.value) == f"The output {said}"


def test_what_no_part_alone_is_to_blame_for_is_told_in_the_words_of_the_encoder() -> None:
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(NotSerializable, match="is not JSON: Circular reference detected"):
        check_json(circle, "output")


@pytest.mark.parametrize("value", [UUID(int=7), Decimal("3.10"), date.min, timedelta(1)])
def test_output_has_no_strings_for_what_is_not_json(value: Any) -> None:
    with pytest.raises(NotSerializable, match="output"):
        check_json({"x": value}, "output")


def test_no_data_is_no_arguments() -> None:
    assert check_data(None) == {}


@pytest.mark.parametrize("nest", [nested, lists])
def test_values_are_nested_no_deeper_than_every_parser_can_read(nest: Any) -> None:
    deepest = nest(MAX_DEPTH - (nest is nested))  # ``nested`` counts what is inside the first
    assert check_json(deepest, "output") is deepest

    with pytest.raises(NotSerializable, match="nested more than 200 levels deep"):
        check_json([deepest], "output")


def test_brackets_in_strings_are_no_nesting() -> None:
    assert check_json({"x": "[{" * 1000}, "data")


@pytest.mark.parametrize("value", [*GOOD.values(), None, 0, -1.5, "", [], "text"])
def test_the_text_that_is_stored_is_that_of_the_value(value: Any) -> None:
    assert is_same_json(json.loads(dumped_json(value, "output")), value)
