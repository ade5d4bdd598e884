"""Leases in Django's admin: it looks and acts, and never edits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from leasing import adminkit
from leasing.adminkit import CappedPaginator
from leasing.models import Lease, LeaseEvent
from leasing.paging import Capped
from tasks.models import Schedule, ScheduleSlot
from tests.factories import LeaseFactory
from tests.leasing.support import stored
from tests.pages import Page, assert_cheap, get, queries, sent_by, signed_in

pytestmark = pytest.mark.django_db

LEASES = "/admin/leasing/lease/"
EVENTS = "/admin/leasing/leaseevent/"
VIEW, VIEW_EVENTS, REVOKE = "leasing.view_lease", "leasing.view_leaseevent", "leasing.revoke_lease"


@pytest.fixture
def viewer() -> Client:
    return signed_in(VIEW, VIEW_EVENTS, is_staff=True)


@pytest.fixture
def operator() -> Client:
    return signed_in(VIEW, VIEW_EVENTS, REVOKE, name="olga", is_staff=True)


def act(client: Client, leases: Sequence[Lease], **more: Any) -> Any:
    data = {"action": "revoke", "_selected_action": [lease.pk for lease in leases], **more}
    return client.post(LEASES, data, follow=True)


def test_every_model_is_read_only_even_for_a_superuser(admin_client: Client) -> None:
    lease = LeaseFactory()
    event = LeaseEvent.objects.get()
    for row in (lease, event):
        meta = row._meta
        name = f"admin:{meta.app_label}_{meta.model_name}"
        assert admin_client.get(reverse(f"{name}_add")).status_code == 403
        assert admin_client.post(reverse(f"{name}_delete", args=[row.pk])).status_code == 403
        url = reverse(f"{name}_change", args=[row.pk])
        assert admin_client.post(url, {"holder": "thief"}).status_code == 403
        assert 'name="_save"' not in get(admin_client, url).html


def test_a_lease_shows_its_state_and_leads_to_its_events_and_its_page(viewer: Client) -> None:
    lease = LeaseFactory(resource="berth: a & b", state="expired")
    page = get(viewer, f"{LEASES}{lease.pk}/change/")
    assert "▲ expired" in page.text
    assert f"{EVENTS}?q=berth%3A+a+%26+b" in page.links
    assert f"/ops/leases/{lease.pk}/" in page.links
    events = get(viewer, f"{EVENTS}?q=berth%3A+a+%26+b")
    assert "acquired" in events.text
    assert f"{LEASES}{lease.pk}/change/" in events.links


def test_an_event_of_a_model_that_is_gone_still_shows(viewer: Client) -> None:
    lease = LeaseFactory()
    LeaseEvent(model="shop.order", key="1", resource="order 1", kind="acquired").save()
    assert "order 1" in get(viewer, EVENTS).text
    assert lease.resource in get(viewer, EVENTS).text


def test_the_search_finds_exact_names_and_ids_only(viewer: Client) -> None:
    one, two = LeaseFactory(resource="berth one"), LeaseFactory(resource="berth one more")
    assert "1 result" in get(viewer, f"{LEASES}?q=berth+one").text
    for text, lease in ((str(two.pk), two), ("berth one", one)):
        page = get(viewer, f"{LEASES}?q={text}")
        assert [f for f in page.links if f.startswith(f"{LEASES}{lease.pk}/change/")]
        assert "1 result" in page.text
    assert "0 results" in get(viewer, f"{LEASES}?q=berth").text


@pytest.mark.parametrize("state", ["active", "expired", "released", "renewed"])
def test_leases_are_filtered_by_state(viewer: Client, state: str) -> None:
    for each in ("active", "expired", "released"):
        LeaseFactory(resource=each, state=each)
    LeaseFactory(resource="renewed", state="released", renewals=1)
    text = get(viewer, f"{LEASES}?state={state}").text
    found = {"released": 2}.get(state, 1)
    assert f"{found} lease" in text


@pytest.mark.parametrize("url", [LEASES, EVENTS])
def test_a_list_costs_the_same_however_long_it_is(viewer: Client, url: str) -> None:
    LeaseFactory()
    few = sent_by(viewer, url)
    for _ in range(20):
        LeaseFactory()
    many = sent_by(viewer, url)
    assert len(few) == len(many)
    assert_cheap(many)


#: What there is little of: people write schedules, and their slots are pruned.
FEW = {Schedule, ScheduleSlot}


def test_no_list_filters_sorts_or_counts_by_what_has_no_index() -> None:
    for model, site in admin.site._registry.items():
        if model._meta.app_label in ("leasing", "tasks"):
            if model in FEW:
                continue
            assert isinstance(site, adminkit.ReadOnlyAdmin), model
            assert site.date_hierarchy is None and not site.show_full_result_count
            for name in site.list_filter:
                if isinstance(name, str):
                    assert getattr(model._meta.get_field(name), "choices", None), f"{model}: {name}"


def test_the_paginator_counts_no_further_than_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    LeaseFactory.create_batch(4)
    monkeypatch.setattr(adminkit, "capped_count", lambda rows: Capped(10_001))
    assert CappedPaginator(Lease.objects.order_by("pk"), 50).count == 10_000
    assert CappedPaginator([1, 2, 3], 50).count == 3


# Actions


def test_a_revocation_asks_first_and_states_its_consequence(operator: Client) -> None:
    lease = LeaseFactory(resource="berth")
    before = stored(lease)
    page = Page(act(operator, [lease]))
    assert "Take these leases from their holders?" in page.text
    assert "What they have already done elsewhere is not undone" in page.text
    assert "berth" in page.text
    assert stored(lease) == before


def test_a_confirmed_revocation_calls_the_same_service(operator: Client) -> None:
    held, over = LeaseFactory(), LeaseFactory(state="released")
    page = Page(act(operator, [held, over], confirmed="yes", reason="they hang"))
    assert "1 of 2 changed; 1 were not in a state for it." in page.text
    event = LeaseEvent.objects.get(kind="revoked")
    assert (event.resource, event.actor, event.reason) == (held.resource, "olga", "they hang")
    assert LogEntry.objects.filter(object_id=str(held.pk)).exists()


def test_a_revocation_without_a_reason_asks_again(operator: Client) -> None:
    lease = LeaseFactory()
    before = stored(lease)
    assert "Say why" in Page(act(operator, [lease], confirmed="yes", reason="")).text
    assert stored(lease) == before


def test_a_revocation_needs_its_permission(viewer: Client) -> None:
    lease = LeaseFactory()
    before = stored(lease)
    assert 'value="revoke"' not in get(viewer, LEASES).html
    act(viewer, [lease], confirmed="yes", reason="x")
    assert stored(lease) == before


def test_an_action_takes_no_more_rows_than_it_says(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adminkit, "MOST_AT_ONCE", 2)
    leases = [LeaseFactory() for _ in range(3)]
    page = Page(act(operator, leases[:1], select_across="1", confirmed="yes", reason="x"))
    assert "Choose at most 2 rows at once. Nothing was changed." in page.text
    assert not LeaseEvent.objects.filter(kind="revoked").exists()


def test_everything_chosen_is_fixed_to_what_was_asked_about(operator: Client) -> None:
    leases = [LeaseFactory() for _ in range(3)]
    page = Page(act(operator, leases[:1], select_across="1"))
    assert all(f'name="_selected_action" value="{lease.pk}"' in page.html for lease in leases)
    assert "select_across" not in page.html


def test_hostile_names_are_inert(operator: Client) -> None:
    lease = LeaseFactory(resource="<script>alert(1)</script>", holder="<b>bob</b>")
    pages = [get(operator, LEASES), get(operator, EVENTS), Page(act(operator, [lease]))]
    for page in pages:
        assert "<script>alert" not in page.html and "<b>bob" not in page.html


def test_the_confirmation_costs_a_fixed_number_of_queries(operator: Client) -> None:
    def cost(leases: list[Lease]) -> int:
        with queries() as sent:
            act(operator, leases)
        return len(sent())

    assert cost([LeaseFactory()]) == cost([LeaseFactory() for _ in range(10)])
