"""The OpenAPI document of the task routes tells the truth."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.leasing.api.test_document import document, schema_of

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def test_the_closed_mode_demands_the_key_of_holders(admin_client: Client) -> None:
    known = document(admin_client)
    for name in ("Complete", "Fail", "Checkpoint", "One", "Completion"):
        schema = schema_of(known, name)
        assert "lease_key" in schema["required"]
        assert "processor" not in schema["required"]
        assert schema["additionalProperties"] is False


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
