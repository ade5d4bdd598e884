"""Leases in Django's admin: it looks and acts, and never edits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

import leasing
from leasing import audit
from leasing.admin import base
from leasing.admin.changelist import CappedPaginator
from leasing.functions import database_now
from leasing.humanize import stamp
from leasing.models import AuditEntry, BeatEntry, EventKind, Lease, LeaseEvent, OnceKey
from leasing.web import badges
from tasks.models import Schedule, ScheduleSlot
from tests.factories import make_lease, make_leases
from tests.fixtures import client_with
from tests.limits import Limits
from tests.pages import Page, admins, assert_cheap, get, queries, sent_by, signed_in

pytestmark = pytest.mark.django_db

LEASES = "/admin/leasing/lease/"
EVENTS, ONCE = "/admin/leasing/leaseevent/", "/admin/leasing/oncekey/"
AUDIT = "/admin/leasing/auditentry/"
SEEN = ("lease", "leaseevent", "oncekey", "auditentry")
VIEW, REVOKE = tuple(f"leasing.view_{name}" for name in SEEN), "leasing.revoke_lease"

viewer = client_with(*VIEW, is_staff=True)
operator = client_with(*VIEW, REVOKE, name="olga", is_staff=True)


def act(client: Client, leases: Sequence[Lease], **more: Any) -> Any:
    data = {"action": "revoke", "_selected_action": [lease.pk for lease in leases], **more}
    return client.post(LEASES, data, follow=True)


def once(key: str = "invoice 7") -> OnceKey:
    leasing.once(key, window=60)(lambda: {"token": "hunter2"})()
    return OnceKey.objects.get(key=key)


def beat_entry() -> BeatEntry:
    (entry,) = BeatEntry.objects.known("beat:shop", ["sync"], database_now("default")).values()
    return entry


def test_an_entry_of_a_beat_says_whether_its_latest_slot_was_sent() -> None:
    viewer = signed_in("leasing.view_beatentry", is_staff=True)
    entry = beat_entry()
    url = f"/admin/leasing/beatentry/{entry.pk}/change/"
    assert get(viewer, url).badges == [badges.NOT_YET.word]
    claimed = BeatEntry.objects.claim(entry, database_now("default"), 1)
    assert claimed is not None
    assert get(viewer, url).badges == [badges.UNSURE.word]
    BeatEntry.objects.confirm(claimed)
    assert get(viewer, url).badges == [badges.SENT.word]


def noted(lease: Lease) -> AuditEntry:
    return audit.record("olga", "revoke", Lease, keys=[lease.pk], changed=1, reason="it hangs")


def test_every_model_is_read_only_even_for_a_superuser(admin_client: Client) -> None:
    lease = make_lease()
    for row in (lease, LeaseEvent.objects.get(), once(), noted(lease), beat_entry()):
        meta = row._meta
        name = f"admin:{meta.app_label}_{meta.model_name}"
        assert admin_client.get(reverse(f"{name}_add")).status_code == 403
        assert admin_client.post(reverse(f"{name}_delete", args=[row.pk])).status_code == 403
        url = reverse(f"{name}_change", args=[row.pk])
        assert admin_client.post(url, {"holder": "thief"}).status_code == 403
        page = get(admin_client, url)
        assert not page.all("input[name=_save]") and "hunter2" not in page.text


def test_a_lease_shows_its_state_and_leads_to_its_events_and_its_page(viewer: Client) -> None:
    lease = make_lease(resource="berth: a & b", state="expired")
    page = get(viewer, f"{LEASES}{lease.pk}/change/")
    assert set(page.badges) == {badges.EXPIRED.word}
    assert f"{EVENTS}?q=berth%3A+a+%26+b" in page.links
    assert f"/ops/leases/{lease.pk}/" in page.links
    assert f"{AUDIT}?model__exact=leasing.lease&key__exact={lease.pk}" in page.links
    panel = page.one(".leasing-panel")
    assert panel["data-code"] == "expired_unclaimed" and lease.holder in panel.text
    assert badges.EXPIRED.word in panel.one(".leasing-badge").text
    events = get(viewer, f"{EVENTS}?q=berth%3A+a+%26+b")
    assert events.badges == [badges.EVENT_BADGES[EventKind.ACQUIRED].word]
    assert f"{LEASES}{lease.pk}/change/" in events.links


def test_an_event_of_a_model_that_is_gone_still_shows(viewer: Client) -> None:
    lease = make_lease()
    LeaseEvent(model="shop.order", key="1", resource="order 1", kind="acquired").save()
    assert "order 1" in get(viewer, EVENTS).text
    assert lease.resource in get(viewer, EVENTS).text


def test_an_event_names_a_task_as_pages_and_commands_do(viewer: Client) -> None:
    resource = "/api/tasks/1203"
    LeaseEvent(model="leasing_tasks.task", key="1203", resource=resource, kind="lost").save()
    text = get(viewer, EVENTS).text
    assert "task:1203" in text and resource not in text


def test_the_search_finds_exact_names_and_ids_only(viewer: Client) -> None:
    one, two = make_lease(resource="berth one"), make_lease(resource="berth one more")
    assert len(get(viewer, f"{LEASES}?q=berth+one").rows) == 1
    for text, lease in ((str(two.pk), two), ("berth one", one)):
        page = get(viewer, f"{LEASES}?q={text}")
        assert [f for f in page.links if f.startswith(f"{LEASES}{lease.pk}/change/")]
        assert len(page.rows) == 1
    assert get(viewer, f"{LEASES}?q=berth").rows == []


@pytest.mark.parametrize("state", ["active", "expired", "released", "renewed"])
def test_leases_are_filtered_by_state(viewer: Client, state: str) -> None:
    for each in ("active", "expired", "released"):
        make_lease(resource=each, state=each)
    make_lease(resource="renewed", state="released", renewals=1)
    found = {row["name"] for row in get(viewer, f"{LEASES}?state={state}").rows}
    assert found == {state, *(["renewed"] if state == "released" else [])}


def test_the_audit_leads_to_what_was_done_and_back(viewer: Client) -> None:
    lease = make_lease(resource="berth")
    entry = noted(lease)
    noted(make_lease())
    about = get(viewer, f"{LEASES}{lease.pk}/change/").link_called("Operator actions")
    found = get(viewer, about)
    (row,) = found.rows
    assert "olga" in row.values() and row.badges == [badges.DONE.word]
    assert f"{LEASES}{lease.pk}/change/" in get(viewer, f"{AUDIT}{entry.pk}/change/").links


def test_a_list_that_no_index_serves_looks_at_the_newest(viewer: Client, limits: Limits) -> None:
    for _ in range(2):
        noted(make_lease())
    limits(reach=1)
    assert len(get(viewer, f"{EVENTS}?kind__exact=acquired").rows) == 1
    assert len(get(viewer, f"{LEASES}?state=active").rows) == 1
    assert len(get(viewer, f"{AUDIT}?verb__exact=revoke").rows) == 2


LISTS = [LEASES, f"{LEASES}?state=active", EVENTS, f"{EVENTS}?kind__exact=acquired", ONCE, AUDIT]


def test_a_list_costs_the_same_however_long_it_is(viewer: Client) -> None:
    def add(number: int) -> None:
        noted(make_lease())
        once(f"invoice {number}")

    add(0)
    few = {url: len(sent_by(viewer, url)) for url in LISTS}
    for number in range(1, 5):
        add(number)
    large = ("metadata", "result", "target")
    for url in LISTS:
        many = sent_by(viewer, url)
        assert few[url] == len(many) <= 7, url
        assert_cheap(many)
        assert not any(f'"{column}"' in sql for sql in many for column in large), url


#: What there is little of: people write schedules, and their slots are pruned.
FEW = {Schedule, ScheduleSlot}


def test_no_list_filters_sorts_or_counts_by_what_has_no_index() -> None:
    for model, site in admins().items():
        if model in FEW:
            continue
        assert isinstance(site, base.ReadOnlyAdmin), model
        assert site.date_hierarchy is None and not site.show_full_result_count
        for name in site.list_filter:
            if isinstance(name, str):
                assert getattr(model._meta.get_field(name), "choices", None), f"{model}: {name}"


def test_the_paginator_counts_no_further_than_its_cap(limits: Limits) -> None:
    make_leases(4)
    limits(count_cap=3)
    assert CappedPaginator(Lease.objects.order_by("pk"), 50).count == 3
    assert CappedPaginator([1, 2, 3], 50).count == 3


# Actions


def test_a_confirmed_revocation_calls_the_same_service(operator: Client) -> None:
    held, over = make_lease(), make_lease(state="released")
    said = {"confirmed": "yes", "reason": "they hang"}
    assert Page(act(operator, [held, over], typed="2", **said)).invalid == {"typed"}
    page = Page(act(operator, [held, over], typed="2 leases", **said))
    assert (page.notice.tone, page.notice.numbers) == ("warn", [1, 2, 1])
    event = LeaseEvent.objects.get(kind="revoked")
    assert (event.resource, event.actor, event.reason) == (held.resource, "olga", "they hang")
    assert LogEntry.objects.filter(object_id=str(held.pk)).exists()


def test_an_action_takes_no_more_rows_than_it_says(operator: Client, limits: Limits) -> None:
    limits(max_selected=2)
    leases = [make_lease() for _ in range(3)]
    page = Page(act(operator, leases[:1], select_across="1"))
    assert page.one("[data-more]").numbers == [2]
    said = page.hidden | {"reason": "x", "typed": "2 leases"}
    operator.post(LEASES, said)
    taken = LeaseEvent.objects.filter(kind="revoked").order_by("pk")
    assert [event.resource for event in taken] == [lease.resource for lease in leases[1:]]
    assert AuditEntry.objects.get().target["filter"] == {}


def test_everything_chosen_is_fixed_to_what_was_asked_about(operator: Client) -> None:
    leases = [make_lease() for _ in range(2)]
    sent = Page(act(operator, leases[:1], select_across="1")).hidden
    make_lease()
    assert "select_across" not in sent and len(sent) == 6, "the number of fields is limited"
    said = {"reason": "x", "typed": "2 leases"}
    notice = Page(operator.post(LEASES, sent | said, follow=True)).notice
    assert (notice.tone, notice.numbers) == ("ok", [2, 2])


def test_what_no_page_has_sent_is_refused(operator: Client) -> None:
    lease = make_lease()
    for selection in ("", "[", "[1]", '[["x", 1]]', "{}x", '[[1, "x"]]'):
        said = {"confirmed": "yes", "selection": selection, "reason": "x", "typed": lease.resource}
        assert act(operator, [lease], **said).status_code == 403, selection


def test_hostile_names_are_inert(operator: Client) -> None:
    lease = make_lease(resource="<script>alert(1)</script>", holder="<b>bob</b>")
    pages = [get(operator, LEASES), get(operator, EVENTS), Page(act(operator, [lease]))]
    for page in pages:
        assert "<script>alert" not in page.html and "<b>bob" not in page.html


def test_the_confirmation_costs_a_fixed_number_of_queries(operator: Client) -> None:
    def cost(leases: list[Lease]) -> int:
        with queries() as sent:
            act(operator, leases)
        return len(sent())

    assert cost([make_lease()]) == cost([make_lease() for _ in range(10)])


def test_a_page_has_one_form_of_date(viewer: Client) -> None:
    lease = make_lease(state="expired")
    make_lease(state="free")
    Lease.objects.filter(pk=lease.pk).revoke(reason="host is gone", by="olga")
    for row in (lease, LeaseEvent.objects.first(), once()):
        assert row is not None
        name = f"admin:leasing_{row._meta.model_name}"
        for url in (reverse(f"{name}_change", args=[row.pk]), reverse(f"{name}_changelist")):
            text = get(viewer, url).one("#content").text
            assert not re.search(r"[ap]\.m\.|midnight|noon|\d:\d\d\.\d|\+00:00|None", text), url
    lease.refresh_from_db()
    page = get(viewer, reverse("admin:leasing_lease_change", args=[lease.pk]))
    assert lease.released_at and page.fields["released_at"] == stamp(lease.released_at)
