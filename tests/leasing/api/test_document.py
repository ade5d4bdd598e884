"""The OpenAPI document tells the truth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def document(client: Client) -> dict[str, Any]:
    answer = client.get("/api/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = json.loads(answer.content)
    return found


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for methods in document["paths"].values() for each in methods.values()]


def schema_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"][name]
    return found


def test_every_link_leads_to_an_operation_that_takes_what_it_brings(admin_client: Client) -> None:
    known = document(admin_client)
    by_id = {each["operationId"]: each for each in operations(known)}
    links = [
        link
        for each in by_id.values()
        for response in each["responses"].values()
        for link in response.get("links", {}).values()
    ]
    assert len(links) > 10
    for link in links:
        taken = by_id[link["operationId"]]
        names = {each["name"] for each in taken["parameters"]}
        assert link.get("parameters", {}).keys() <= names
        assert ("requestBody" in link) == ("requestBody" in taken)


def test_the_bounds_are_those_of_the_site(admin_client: Client, settings: Settings) -> None:
    settings.LEASING = {"MIN_TTL": 2, "MAX_TTL": 600, "API_MAX_WAIT": 7}
    fields = schema_of(document(admin_client), "Acquire")["properties"]
    ttl = fields["ttl"]["anyOf"][0]
    assert (ttl["minimum"], ttl["maximum"]) == (2, 600)
    assert (fields["wait"]["minimum"], fields["wait"]["maximum"]) == (0, 7)
    assert (fields["resource"]["minLength"], fields["resource"]["maxLength"]) == (1, 200)


def test_the_closed_mode_demands_a_key_and_allows_no_other_fields(admin_client: Client) -> None:
    term = schema_of(document(admin_client), "Term")
    assert term["required"] == ["resource", "lease_key"]
    assert term["properties"]["lease_key"]["type"] == "string"
    assert term["additionalProperties"] is False


def test_the_compatible_mode_demands_a_name_and_no_credentials(
    client: Client, compatible: None
) -> None:
    known = document(client)
    term = schema_of(known, "Term")
    assert term["required"] == ["resource", "holder"]
    assert "additionalProperties" not in term
    assert not any("security" in each for each in operations(known))
    assert "createdAt" in schema_of(known, "LeaseOut")["properties"]


def test_each_answer_says_what_comes_with_it(admin_client: Client) -> None:
    known = document(admin_client)["paths"]
    assert "Retry-After" in known["/api/leases"]["post"]["responses"]["409"]["headers"]
    assert "ETag" in known["/api/leases"]["get"]["responses"]["200"]["headers"]
    assert "content" not in known["/api/leases"]["get"]["responses"]["304"]
    assert {"405", "404"} <= known["/api/leases/{lease_id}"]["get"]["responses"].keys()
    assert "304" not in known["/api/leases"]["post"]["responses"]
