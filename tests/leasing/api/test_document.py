"""The OpenAPI document tells the truth."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from ninja.renderers import BaseRenderer
from pytest_django import Settings

from leasing.api import LeasingAPI, errors
from leasing.api.document import Document
from project.urls import api
from tests.elements import Element, parse
from tests.pages import signed_in

pytestmark = pytest.mark.django_db


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


def test_the_document_is_made_once_and_a_change_of_one_reaches_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = api.get_openapi_schema(path_prefix="")
    changed["info"]["title"] = "Changed"
    monkeypatch.setattr(Document, "get_paths", lambda self: pytest.fail("made twice"))
    assert api.get_openapi_schema(path_prefix="")["info"]["title"] == "Leases and tasks"


def test_documents_of_addresses_that_clients_choose_are_not_kept_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def make(api: LeasingAPI, prefix: str) -> dict[str, str]:
        made.append(prefix)
        return {"prefix": prefix}

    monkeypatch.setattr(errors, "Document", make)
    api = LeasingAPI()
    prefixes = [f"/{n}/" for n in range(errors.MAX_DOCUMENTS + 1)]
    for prefix in (*prefixes, prefixes[-1], prefixes[0]):
        assert api.get_openapi_schema(path_prefix=prefix)["prefix"] == prefix
    assert made == [*prefixes, prefixes[0]]


class Shouting(BaseRenderer):
    """Renders what routes of a site answer as text."""

    media_type = "text/plain"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> str:
        return str(data).upper()


def test_a_route_of_a_site_answers_in_the_format_of_its_renderer(
    client: Client, settings: Settings
) -> None:
    own = LeasingAPI(renderer=Shouting(), urls_namespace="own", auth=None)

    @own.get("/hello")
    def hello(request: HttpRequest) -> str:
        return "hello"

    urls: Any = ModuleType("urls")
    urls.urlpatterns = [path("own/", own.urls)]
    settings.ROOT_URLCONF = urls

    answer = client.get("/own/hello")
    assert (answer.content, answer["Content-Type"]) == (b"HELLO", "text/plain; charset=utf-8")


def test_an_async_view_of_a_site_is_refused_as_the_urls_are_read() -> None:
    own = LeasingAPI(urls_namespace="own-async")

    @own.get("/hello")
    async def hello(request: HttpRequest) -> str:
        return "hello"

    with pytest.raises(ImproperlyConfigured, match="The view hello is async"):
        _ = own.urls


def test_the_closed_mode_demands_a_key_and_allows_no_other_fields(admin_client: Client) -> None:
    term = schema_of(document(admin_client), "Term")
    assert term["required"] == ["resource", "lease_key"]
    assert term["properties"]["lease_key"]["type"] == "string"
    assert term["additionalProperties"] is False


def test_only_the_compatible_mode_answers_in_the_spelling_of_the_sample(
    admin_client: Client,
) -> None:
    assert "createdAt" not in schema_of(document(admin_client), "LeaseOut")["properties"]


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


# The page


def page(client: Client) -> Element:
    return parse(client.get("/api/docs").content.decode())


def test_the_page_shows_every_operation_and_schema(admin_client: Client) -> None:
    known, shown = document(admin_client), page(admin_client)
    ids = {each["id"] for each in shown.all("[id]")}
    assert {each["operationId"] for each in operations(known)} <= ids
    assert {f"schema-{name}" for name in known["components"]["schemas"]} <= ids
    assert {link[1:] for link in shown.links if link.startswith("#")} <= ids
    assert "/api/openapi.json" in shown.links


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_script_of_its_own(
    admin_client: Client,
) -> None:
    shown = page(admin_client)
    assert not shown.all("[style]")
    assert not shown.all("style")
    assert all(each.get("src").startswith("/static/") for each in shown.all("script"))
    assert all(each.get("href").startswith("/static/") for each in shown.all("link"))
    assert not shown.all("img")


def test_the_page_tells_bounds_scopes_and_an_example(admin_client: Client) -> None:
    text = page(admin_client).text
    assert "Number from 1 to 86400 or null" in text
    assert "token scope: leasing.revoke_lease" in text
    assert "curl -X POST \\ http://testserver/api/leases" in text
    assert """-d '{"resource": "report:42", "holder": "web-1"}'""" in text
    assert "Authorization: Bearer TOKEN" in text


def test_the_page_is_for_those_who_may_see_leases(client: Client) -> None:
    assert client.get("/api/docs").status_code == 401
    assert signed_in("leasing.view_lease").get("/api/docs").status_code == 200
    assert signed_in("leasing_tasks.view_task", name="bob").get("/api/docs").status_code == 403


def test_the_page_of_a_compatible_site_asks_for_no_credentials(
    client: Client, compatible: None
) -> None:
    text = page(client).text
    assert "without credentials" in text
    assert "Bearer" not in text
