"""Text that looks like a secret is not shown."""

from __future__ import annotations

import json
import time
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
        *("CSRFToken", "AWS_SECRET_ACCESS_KEY", "jwt", "card2", "db_pass", "smtpPass", "pass"),
        *("pw", "user_pw", "dsn", "SENTRY_DSN", "signing_key", "encryptionKey", "STRIPE_KEY"),
        *("ssh_keys", "lease_key", "api_keys"),
    ],
)
def test_keys_that_look_secret_are(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        *("name", "key", "discard", "cardinality", "author", "tokenizer", "postcard", "pinned"),
        *("passenger", "secretary", "primary_key", "monkey", "keys", "api", ""),
        *(
            "unique_key",
            "idempotencyKey",
            "routing-key",
            "public_key",
            "foreign_keys",
            "pass_count",
        ),
        *("concurrency_key", "cache_key", "bypass", "key_name"),
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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["Authorization", "Bearer abc"], ["Authorization", MASK]),
        ([["Accept", "*/*"], ["X-Api-Key", "abc"]], [["Accept", "*/*"], ["X-Api-Key", MASK]]),
        ({"name": "Authorization", "value": "x y"}, {"name": "Authorization", "value": MASK}),
        ({"key": "DB_PASS", "value": ["x"]}, {"key": "DB_PASS", "value": MASK}),
        ({"name": "Accept", "value": "x"}, {"name": "Accept", "value": "x"}),
        ({"name": 5, "value": "x"}, {"name": 5, "value": "x"}),
        ("Authorization: Bearer abc", f"Authorization: {MASK}"),
        ("Accept: */*\nCookie: a=b\r\nHost: c", f"Accept: */*\nCookie: {MASK}\nHost: c"),
        ("Bearer abc.def", MASK),
        ("Basic YW5uOmh1bnRlcjI=", MASK),
        ("Basic training", "Basic training"),
        ("bearer", "bearer"),
        ("12:30", "12:30"),
    ],
)
def test_a_secret_beside_its_name_is_replaced(value: Any, shown: Any) -> None:
    assert masked({"headers": value}) == {"headers": shown}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgres://ann:hunter2@db:5432/shop", f"postgres://ann:{MASK}@db:5432/shop"),
        ("redis://:hunter2@cache", f"redis://:{MASK}@cache"),
        ("https://ann:hun:t@er2@db/", f"https://ann:{MASK}@db/"),
        ("amqp://ann:hun/ter2@mq", f"amqp://ann:{MASK}@mq"),
        ("see http://a:b@c or ftp://d:e@f!", f"see http://a:{MASK}@c or ftp://d:{MASK}@f!"),
        ("https://host:8080/@scope/x@1", "https://host:8080/@scope/x@1"),
        ("https://ann@host/", "https://ann@host/"),
        ("mailto:ann@host", "mailto:ann@host"),
        ("https://host/?at=12:30&to=a@b", "https://host/?at=12:30&to=a@b"),
    ],
)
def test_a_password_in_an_address_is_replaced(address: str, shown: str) -> None:
    assert masked([{"url": address}, address]) == [{"url": shown}, shown]


def test_no_text_is_read_again_and_again() -> None:
    began = time.process_time()
    for part in ("://a:", "a://", "a:", "bearer ", "\n", "a" * 5, "://@:"):
        masked("@" + part * 10_000)
    assert time.process_time() - began < 3


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


@pytest.mark.slow
@settings(max_examples=25)
@given(JSON)
def test_a_secret_never_comes_through(value: Any) -> None:
    hidden = {"password": "hunter2", "rest": [value, {"nested": {"api_key": "hunter2"}}]}
    assert "hunter2" not in json.dumps(masked(hidden))
