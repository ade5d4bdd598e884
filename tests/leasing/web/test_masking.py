"""What looks like a secret is not shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasing.web.masking import MASK, is_secret, masked


@pytest.mark.parametrize(
    "key",
    [
        *("password", "db_password", "dbPassword", "PASSWORD", "Authorization", "api_key"),
        *("apiKey", "API-KEY", "x-api-key", "apikey", "Set-Cookie", "access_token", "accessToken"),
        *("client.secret", "card", "cardNumber", "credit_card", "private_key", "sessionid"),
        *("CSRFToken", "AWS_SECRET_ACCESS_KEY", "jwt", "card2"),
    ],
)
def test_keys_that_look_secret_are(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        *("name", "key", "discard", "cardinality", "author", "tokenizer", "postcard", "pinned"),
        *("passenger", "secretary", "primary_key", "monkey", "keys", "api", ""),
    ],
)
def test_keys_that_only_remind_of_one_are_not(key: str) -> None:
    assert not is_secret(key)


def test_values_are_replaced_however_deep_and_whatever_they_are() -> None:
    value = {
        "user": {"name": "ann", "password": "x", "tokens": ["a", "b"]},
        "list": [{"secret": {"a": 1}}, 5, None],
        "token": None,
        "cookie": "",
    }

    assert masked(value) == {
        "user": {"name": "ann", "password": MASK, "tokens": MASK},
        "list": [{"secret": MASK}, 5, None],
        "token": None,
        "cookie": "",
    }


def test_what_was_given_is_left_as_it_was() -> None:
    value = {"password": "x", "list": [{"password": "y"}]}
    masked(value)
    assert value == {"password": "x", "list": [{"password": "y"}]}


def test_what_is_too_deep_is_not_shown() -> None:
    value: Any = {"password": "leak"}
    for _ in range(2_000):
        value = [value]

    assert "leak" not in json.dumps(masked(value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=20,
)


@settings(max_examples=25)
@given(JSON)
def test_a_secret_never_comes_through(value: Any) -> None:
    hidden = {"password": "hunter2", "rest": [value, {"nested": {"api_key": "hunter2"}}]}
    assert "hunter2" not in json.dumps(masked(hidden))
