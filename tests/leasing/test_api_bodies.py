"""Whatever a body is, the answer is a 4xx that says what is wrong, and nothing is done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from leasing.http_json import MAX_BODY, MAX_DEPTH
from leasing.models import Lease
from tasks.models import Task
from tests.api_calls import BODIES, call

pytestmark = pytest.mark.django_db

#: No JSON object at all, or none that can be stored, whatever the route.
EVILS: dict[str, bytes] = {
    "nothing": b"",
    "a space": b" ",
    "half an object": b'{"resource": "crane:1"',
    "more than one object": b"{}{}",
    "a list": b"[]",
    "a string": b'"crane:1"',
    "a number": b"1",
    "null": b"null",
    "true": b"true",
    "single quotes": b"{'resource': 'crane:1'}",
    "a form": b"resource=crane:1&holder=me",
    "no UTF-8": b'{"resource": "\xff"}',
    "UTF-16": '{"resource": "crane:1"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"resource": "crane:1"}',
    "a real NUL": b'{"resource": "\x00"}',
    "NaN": b'{"x": NaN}',
    "Infinity": b'{"x": -Infinity}',
    "1e999": b'{"x": 1e999}',
    "5,000 digits": b'{"x": ' + b"9" * 5000 + b"}",
    "5,000 decimals": b'{"x": 0.' + b"9" * 5000 + b"}",
    "an escaped NUL": b'{"x": "\\u0000"}',
    "a NUL in a key": b'{"\\u0000": 1}',
    "a NUL deep inside": b'{"x": [{"y": ["\\u0000"]}]}',
    "a lone surrogate": b'{"x": "\\ud800"}',
    "the other half": b'{"x": "\\udfff"}',
    "nested too deep": b'{"x": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
    "nested very deep": b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "nested without an end": b'{"x":' * 10_000,
}
CORPUS = pytest.mark.parametrize("evil", EVILS.values(), ids=EVILS.keys())
ROUTES = pytest.mark.parametrize(
    ("method", "path", "body"), BODIES, ids=[f"{method} {path}" for method, path, _ in BODIES]
)


@pytest.fixture(autouse=True)
def compatible(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "compatible"}


@CORPUS
@ROUTES
def test_what_is_no_object_to_store_is_refused(
    client: Client, method: str, path: str, body: dict[str, Any], evil: bytes
) -> None:
    assert call(client, method, path, evil).status == 400
    assert not Lease.objects.exists()
    assert not Task.objects.exists()


@ROUTES
def test_an_evil_beside_good_fields_is_refused_too(
    client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    assert call(client, method, path, {**body, "more": {"x": "\0"}}).status == 400


@ROUTES
def test_unknown_fields_are_left_alone(
    client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    plain = call(client, method, path, body)
    Lease.objects.all().delete()
    Task.objects.all().delete()
    assert call(client, method, path, {**body, "hostname": ["x"]}).status == plain.status


@ROUTES
def test_a_field_that_is_missing_is_named(
    client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    for field in body:
        rest = {key: value for key, value in body.items() if key != field}
        answer = call(client, method, path, rest)
        assert (answer.status, field in answer.body["error"]) == (400, True)


@ROUTES
@pytest.mark.parametrize("value", [None, 1, 0, 1.5, True, False, [], ["me"], {}, {"a": "b"}])
def test_what_is_no_string_is_refused_where_one_belongs(
    client: Client, method: str, path: str, body: dict[str, Any], value: Any
) -> None:
    for field in body:
        answer = call(client, method, path, {**body, field: value})
        assert (answer.status, field in answer.body["error"]) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        (method, path, field)
        for method, path, body in BODIES
        for field in body
        if field in ("resource", "holder", "processor")
    ],
)
@pytest.mark.parametrize(
    "name", ["", " ", " me", "me ", "a\nb", "a\tb", "\x7f", "\u2028", "\u202e", "x" * 201]
)
def test_a_name_that_nobody_could_read_is_refused(
    client: Client, method: str, path: str, field: str, name: str
) -> None:
    (body,) = (fields for verb, at, fields in BODIES if (verb, at) == (method, path))
    assert call(client, method, path, {**body, field: name}).status == 400


@pytest.mark.parametrize(
    "ttl", [0, -1, 0.5, 86_401, 1e308, 10**299, True, False, "5", [], {}, "P1D"]
)
def test_a_ttl_that_is_no_number_or_out_of_bounds_is_refused(client: Client, ttl: Any) -> None:
    body = {"resource": "crane:1", "holder": "me", "ttl": ttl}
    assert call(client, "POST", "/leases", body).status == 400
    assert not Lease.objects.exists()


@pytest.mark.parametrize("ttl", [1, 1.5, 86_400, None])
def test_a_ttl_within_bounds_is_taken(client: Client, ttl: Any) -> None:
    body = {"resource": "crane:1", "holder": "me", "ttl": ttl}
    assert call(client, "POST", "/leases", body).status == 201


@pytest.mark.parametrize("name", ["Kran №1", "电梯", "🏗", "a/b?c=d&e", "<script>", "x" * 200])
def test_a_name_that_people_can_read_is_taken(client: Client, name: str) -> None:
    made = call(client, "POST", "/leases", {"resource": name, "holder": name})
    assert (made.status, made.body["resource"], made.body["holder"]) == (201, name, name)


@ROUTES
def test_a_body_of_ten_megabytes_is_too_large(
    client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    raw = json.dumps({**body, "x": "x" * 10_000_000}).encode()
    assert call(client, method, path, raw).status == 413


def test_a_body_may_be_as_large_as_the_limit_and_not_a_byte_larger(client: Client) -> None:
    empty = len(json.dumps({"resource": "crane:1", "holder": "me", "x": ""}))
    body = {"resource": "crane:1", "holder": "me", "x": "x" * (MAX_BODY - empty)}
    assert call(client, "POST", "/leases", {**body, "x": body["x"] + "x"}).status == 413
    assert call(client, "POST", "/leases", body).status == 201


def test_a_lower_limit_of_the_site_counts(client: Client, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    assert call(client, "POST", "/leases", {"resource": "crane:1", "holder": "me"}).status == 413


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
@ROUTES
def test_a_body_that_a_page_could_send_unasked_is_refused(
    client: Client, method: str, path: str, body: dict[str, Any], content_type: str
) -> None:
    assert call(client, method, path, body, content_type=content_type).status == 415


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_name_its_encoding(client: Client, content_type: str) -> None:
    body = {"resource": "crane:1", "holder": "me"}
    assert call(client, "POST", "/leases", body, content_type=content_type).status == 201


def test_a_list_is_shown_whatever_body_comes_with_the_question(client: Client) -> None:
    assert call(client, "GET", "/leases", b"{", content_type="text/plain").status == 200
