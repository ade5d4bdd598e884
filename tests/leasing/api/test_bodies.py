"""Bodies of any kind: the answer is a 4xx that says what is wrong, and nothing is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client
from ninja.errors import HttpError
from pytest_django import Settings

from leasing.api.bodies import MAX_BODY_AT, MAX_DEPTH, BodyParser
from leasing.models import Lease
from leasing.validation.names import MAX_BODY
from tasks.models import Queue, Task
from tests.api_calls import BODIES, call

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]


def nested(depth: int) -> bytes:
    """A value ``depth`` lists deep."""
    return b"[" * depth + b"]" * depth


def beside(fragment: bytes) -> Callable[[bytes], bytes]:
    return lambda good: good[:-1] + b', "x": ' + fragment + b"}"


ROUTES = pytest.mark.parametrize(
    ("method", "path", "body"), BODIES, ids=[f"{method} {path}" for method, path, _ in BODIES]
)


@pytest.mark.parametrize("depth", [MAX_DEPTH, 20_000])
def test_a_body_that_is_nested_too_deep_is_told_so(client: Client, depth: int) -> None:
    good = json.dumps({"resource": "crane:1", "holder": "me"}).encode()
    answer = call(client, "POST", "/leases", beside(nested(depth))(good))
    assert (answer.status, "deep" in answer.body["error"]) == (400, True)


@pytest.mark.parametrize("fine", [nested(MAX_DEPTH - 1), b"9" * 300, b'"\\ud83c\\udfd7"', b"1e308"])
def test_what_is_just_within_the_limits_is_taken(client: Client, fine: bytes) -> None:
    good = json.dumps({"resource": "crane:1", "holder": "me"}).encode()
    assert call(client, "POST", "/leases", beside(fine)(good)).status == 201


@ROUTES
def test_unknown_fields_are_left_alone(
    client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    plain = call(client, method, path, body)
    Lease.objects.all().delete()
    Task.objects.all().delete()
    Queue.objects.all().delete()
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
def test_the_closed_mode_refuses_unknown_fields(
    admin_client: Client, settings: Settings, method: str, path: str, body: dict[str, Any]
) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "closed"}
    answer = call(admin_client, method, path, {**body, "lease_key": "x", "x" * 9_000: 1})
    assert (answer.status, "there is no field" in answer.body["error"]) == (400, True)
    assert len(answer.body["error"]) < 400


def test_a_field_that_was_mistyped_is_told_by_the_one_that_was_meant(
    admin_client: Client, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "closed"}
    body = {"resource": "crane:1", "holder": "me", "tll": 5}
    answer = call(admin_client, "POST", "/leases", body)
    assert answer.body == {"error": "body: there is no field 'tll' (did you mean ttl?)."}


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        (method, path, field)
        for method, path, body in BODIES
        for field in body
        if field in ("resource", "holder", "processor")
    ],
)
def test_a_name_that_nobody_could_read_is_refused(
    client: Client, method: str, path: str, field: str
) -> None:
    (body,) = (fields for verb, at, fields in BODIES if (verb, at) == (method, path))
    for name in ("", " ", " me", "me ", "a\nb", "a\tb", "\x7f", "\u2028", "\u202e", "x" * 201):
        assert call(client, method, path, {**body, field: name}).status == 400, repr(name)


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


def test_a_body_that_announces_too_much_is_not_even_read(client: Client) -> None:
    body = {"resource": "crane:1", "holder": "me"}
    assert call(client, "POST", "/leases", body, CONTENT_LENGTH=str(MAX_BODY + 1)).status == 413


def test_a_body_that_does_not_announce_its_length_has_the_same_limit() -> None:
    class Endless(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None and 0 < size <= MAX_BODY + 1
            return b" " * size

    request = HttpRequest()
    request._stream = Endless()
    with pytest.raises(HttpError) as refusal:
        BodyParser().parse_body(request)
    assert refusal.value.status_code == 413


def test_a_lower_limit_of_the_site_counts(client: Client, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    assert call(client, "POST", "/leases", {"resource": "crane:1", "holder": "me"}).status == 413


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_name_its_encoding(client: Client, content_type: str) -> None:
    body = {"resource": "crane:1", "holder": "me"}
    assert call(client, "POST", "/leases", body, content_type=content_type).status == 201


def test_a_list_is_shown_whatever_body_comes_with_the_question(client: Client) -> None:
    assert call(client, "GET", "/leases", b"{", content_type="text/plain").status == 200


def test_a_batch_of_renewals_may_be_larger_than_other_bodies(client: Client) -> None:
    path, most = "/leases/renew/batch", MAX_BODY_AT["/leases/renew/batch"]
    one = {"resource": "crane:1", "holder": "x" * MAX_BODY}
    assert call(client, "PUT", path, {"leases": [one]}).status == 200
    assert call(client, "PUT", path, {"leases": [one]}, CONTENT_LENGTH=str(most + 1)).status == 413
