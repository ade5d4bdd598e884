"""The OpenAPI document of the task routes tells the truth."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from tests.leasing.api.test_document import document, schema_of

pytestmark = pytest.mark.django_db


def test_the_closed_mode_demands_the_key_of_holders(admin_client: Client) -> None:
    known = document(admin_client)
    for name in ("Complete", "Fail", "Checkpoint", "One", "Completion"):
        schema = schema_of(known, name)
        assert "lease_key" in schema["required"]
        assert "processor" not in schema["required"]
        assert schema["additionalProperties"] is False


def test_the_fields_that_name_a_task_come_before_what_is_said_of_it(admin_client: Client) -> None:
    """Clients that are generated take them by place."""
    known = document(admin_client)
    for name in ("Complete", "Completion", "Fail", "Failure"):
        *_, last = schema_of(known, name)["properties"]
        assert last in ("task_output", "retry")


@pytest.mark.usefixtures("compatible")
def test_the_compatible_mode_demands_the_name_of_holders(client: Client) -> None:
    required = schema_of(document(client), "Complete")["required"]
    assert "processor" in required and "lease_key" not in required


def test_bounds_are_told_and_what_a_holder_does_next(admin_client: Client) -> None:
    known = document(admin_client)

    def numbers(schema: str, field: str) -> dict[str, Any]:
        found: dict[str, Any] = schema_of(known, schema)["properties"][field]
        return found.get("anyOf", [found])[0]  # type: ignore[no-any-return]

    assert (numbers("Claim", "limit")["minimum"], numbers("Claim", "limit")["maximum"]) == (1, 100)
    assert numbers("Claim", "ttl")["maximum"] == 86_400
    assert numbers("Enqueue", "name")["maxLength"] == 200
    assert numbers("Enqueue", "delay")["maximum"] == 3650 * 86_400
    assert numbers("Completions", "tasks")["maxItems"] == 100
    claim = known["paths"]["/api/tasks/next"]["post"]
    links = claim["responses"]["202"]["links"]
    verbs = {"heartbeat_task", "complete_task", "fail_task", "report_progress", "store_checkpoint"}
    assert verbs <= links.keys()
    assert all("lease_key" in links[name]["requestBody"] for name in verbs)
    assert any(each["name"] == "Idempotency-Key" for each in claim["parameters"])


def test_only_the_end_of_a_wait_requires_the_key_of_a_request(admin_client: Client) -> None:
    requiring = {
        (verb, path)
        for path, verbs in document(admin_client)["paths"].items()
        for verb, operation in verbs.items()
        for each in operation.get("parameters", ())
        if each["name"] == "Idempotency-Key" and each["required"]
    }
    assert requiring == {("delete", "/api/tasks/next")}


def test_batches_of_leases_and_of_tasks_have_answers_of_their_own(admin_client: Client) -> None:
    known = document(admin_client)
    fields = {}
    for path in ("/api/leases/renew/batch", "/api/tasks/heartbeat"):
        answer = known["paths"][path]["put"]["responses"]["200"]["content"]["application/json"]
        many = schema_of(known, answer["schema"]["$ref"].rpartition("/")[2])
        one = many["properties"]["results"]["items"]["$ref"].rpartition("/")[2]
        fields[path] = set(schema_of(known, one)["properties"])
    assert "lease" in fields["/api/leases/renew/batch"]
    assert {"id", "remaining"} <= fields["/api/tasks/heartbeat"]


def test_the_document_says_which_texts_are_names_and_that_none_has_a_nul(
    admin_client: Client,
) -> None:
    known = document(admin_client)
    name = re.compile(schema_of(known, "Acquire")["properties"]["holder"]["pattern"])
    assert all(name.search(each) for each in ("a", "crane 1", "K\u00f6ln/\U0001f69a"))
    assert not any(name.search(each) for each in ("", " a", "a ", "a\x00b", "a\x1fb", "a\nb", "\n"))
    text = re.compile(schema_of(known, "Reason")["properties"]["reason"]["pattern"])
    assert text.search("two\nlines") and not text.search("a\x00b")
