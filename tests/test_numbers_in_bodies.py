"""Numbers in bodies, of every field of the document that takes one: no text, no boolean, no NaN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.test import Client

from project.urls import api
from tests.api_calls import BODIES, Answer, call
from tests.fixtures import compatible

__all__ = ["compatible"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]


class Field(NamedTuple):
    """A field that takes a number, and a body that is right but for it."""

    method: str
    path: str
    name: str
    is_whole: bool
    body: dict[str, Any]

    def sent_as(self, text: str) -> bytes:
        """Return the body with ``text`` as the value of the field, as it stands."""
        rest = json.dumps({name: each for name, each in self.body.items() if name != self.name})
        return f'{rest[:-1]}{", " if rest != "{}" else ""}"{self.name}": {text}}}'.encode()


def numbers() -> Iterator[Field]:
    document = api.get_openapi_schema(path_prefix="")
    schemas = document["components"]["schemas"]
    for method, path, body in BODIES:
        operation = document["paths"][_template(document, method, path)][method.lower()]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        fields = schemas[schema["$ref"].rpartition("/")[2]]["properties"]
        for name, field in fields.items():
            types = {each.get("type") for each in field.get("anyOf", [field])}
            if types & {"integer", "number"}:
                yield Field(method, path, name, "number" not in types, body)


def _template(document: dict[str, Any], method: str, path: str) -> str:
    """Return the path of the document that ``path`` is an address of."""
    parts = path.split("/")
    for template, methods in document["paths"].items():
        names = template.split("/")
        fits = (a == b or a.startswith("{") for a, b in zip(names, parts, strict=False))
        if method.lower() in methods and len(names) == len(parts) and all(fits):
            return str(template)
    raise LookupError(path)


FIELDS = list(numbers())
EACH = pytest.mark.parametrize(
    "field", FIELDS, ids=[f"{each.method} {each.path} {each.name}" for each in FIELDS]
)


def test_the_document_has_fields_of_both_kinds() -> None:
    assert {each.is_whole for each in FIELDS} == {True, False}
    assert {"ttl", "priority", "max_attempts"} <= {each.name for each in FIELDS}


@EACH
def test_what_is_no_number_is_refused_by_the_name_of_its_field(
    client: Client, field: Field
) -> None:
    for text in ("true", "false", '"2"', "NaN", "Infinity", "[2]", "{}"):
        answer = call(client, field.method, field.path, field.sent_as(text))

        assert answer.status == 400, (text, answer.body)
        assert field.name in answer.body["error"] or "not a number" in answer.body["error"], text


@EACH
def test_a_number_that_is_given_twice_is_refused(client: Client, field: Field) -> None:
    answer = call(client, field.method, field.path, field.sent_as(f'2, "{field.name}": 2'))

    assert (answer.status, "key twice" in answer.body["error"]) == (400, True)


def refusal(answer: Answer) -> str:
    """Return why a body was refused, "" if it was understood."""
    return str(answer.body["error"]) if answer.status == 400 else ""


@EACH
def test_a_whole_number_may_be_written_with_a_point(client: Client, field: Field) -> None:
    plain = call(client, field.method, field.path, field.sent_as("2"))
    pointed = call(client, field.method, field.path, field.sent_as("2.0"))
    half = call(client, field.method, field.path, field.sent_as("2.5"))

    # Some need another field, too, which is the error of both.
    assert refusal(pointed) == refusal(plain)
    if field.is_whole:
        assert (half.status, field.name in half.body["error"]) == (400, True)
