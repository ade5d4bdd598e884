"""Data and output that may be stored: pure decisions."""

from __future__ import annotations

import json
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from leasing.validation.json_values import MAX_DEPTH
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
