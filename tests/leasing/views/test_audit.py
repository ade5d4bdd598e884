"""The page about what operators did."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from leasing import audit
from leasing.models import AuditEntry, Lease
from leasing.web.badges import BROKEN_OFF, DONE, NO_CHANGE, PARTLY, REFUSED
from tasks.models import GeneratorDesiredState, Queue, Schedule, Task
from tests.fixtures import client_with
from tests.pages import Page, Row, assert_cheap, get, sent_by, signed_in

pytestmark = pytest.mark.django_db

AUDIT = "/ops/audit/"
VIEW = "leasing.view_auditentry"

viewer = client_with(VIEW, "leasing_tasks.view_task")


def deed(row: Row) -> tuple[str, list[str]]:
    """The verb, and the names after it: rows, filter, reason, error."""
    what = row.element.one("td.name")
    (verb,) = parse_qs(urlsplit(what.one("a.loud")["href"]).query)["verb"]
    return verb, [each.text for each in what.all("bdi")]


def test_without_permission_it_is_closed() -> None:
    assert signed_in("leasing_tasks.view_task").get(AUDIT).status_code == 403


def test_an_entry_tells_who_did_what_to_which_row_and_why(viewer: Client) -> None:
    audit.record("olga", "retry", Task, keys=[17], changed=1, reason="again, please", via="page")
    (row,) = get(viewer, AUDIT).rows
    assert deed(row) == ("retry", ["task:17", "again, please"])
    who = row.element.one("td.who")
    assert who.one("bdi").text == "olga" and "page" in who.one(".aside").text
    assert row.badges == [DONE.word] and row.element.one("td.told").numbers == [1, 1]
    assert "/ops/tasks/17/" in row.links and row.element.all("time")


def test_rows_that_an_entry_names_are_shown_by_name_after_they_are_gone(viewer: Client) -> None:
    names = {7: "nightly"}
    audit.record("olga", "pause", Schedule, keys=[7, 8], names=names, changed=2)
    (row,) = get(viewer, AUDIT).rows
    assert deed(row) == ("pause", ["schedule nightly", "schedule 8"])


def test_what_came_of_it_is_told(viewer: Client) -> None:
    audit.record("olga", "retry", Task, keys=[1, 2, 3], changed=1, skipped={"it runs": 2})
    audit.record("olga", "cancel", Task, filter={"state": "ready", "q": ""}, asked=5, changed=5)
    audit.record("olga", "pause", Queue, keys=["mail"], changed=0)
    with pytest.raises(ZeroDivisionError), audit.recording("olga", "revoke", Lease, keys=[4]):
        raise ZeroDivisionError("oh")
    AuditEntry.objects.create(by="olga", verb="discard", model="vanished.thing", key="9")
    reported = [(*deed(row), *row.badges) for row in get(viewer, AUDIT).rows]
    assert reported == [
        ("discard", ["vanished.thing 9"], BROKEN_OFF.word),
        ("revoke", ["lease 4", "ZeroDivisionError: oh"], REFUSED.word),
        ("pause", ["queue mail"], NO_CHANGE.word),
        ("cancel", ["ready"], DONE.word),
        ("retry", ["task:1", "task:2", "task:3"], PARTLY.word),
    ]
    discarded, *_, retried = get(viewer, AUDIT).rows
    assert discarded.element.one("td.told").numbers == []
    assert retried.element.one("td.told").numbers == [1, 3, 2]
    assert "it runs" in retried.element.one("td.told").text


def test_many_rows_are_named_in_part(viewer: Client) -> None:
    audit.record("olga", "retry", Task, keys=list(range(100, 140)), changed=40)
    (row,) = get(viewer, AUDIT).rows
    assert deed(row) == ("retry", [f"task:{key}" for key in range(100, 105)])
    assert row.element.one("td.name").numbers[-1] == 35


def test_entries_are_found_by_who_what_and_which(viewer: Client) -> None:
    audit.record("olga", "retry", Task, keys=[17], changed=1)
    audit.record("emil", "retry", Task, keys=[18], changed=1)
    audit.record("emil", "stop", GeneratorDesiredState, keys=[1], changed=1)
    found = {
        "?by=emil&verb=retry": [("retry", ["task:18"])],
        "?verb=retry": [("retry", ["task:18"]), ("retry", ["task:17"])],
        "?model=leasing_tasks.task&key=17": [("retry", ["task:17"])],
        "?model=leasing_tasks.generatordesiredstate": [("stop", ["generator"])],
        "?by=nina": [],
    }
    assert {query: list(map(deed, get(viewer, AUDIT + query).rows)) for query in found} == found
    assert get(viewer, f"{AUDIT}?by=nina").is_empty


def test_its_links_lead_to_the_same_filter(viewer: Client) -> None:
    audit.record("o&l=ga", "retry", Task, keys=[17], changed=1)
    page = get(viewer, f"{AUDIT}?verb=retry")
    assert f"{AUDIT}?verb=retry&by=o%26l%3Dga" in page.links


def test_it_is_paged_by_key(viewer: Client) -> None:
    AuditEntry.objects.bulk_create(
        AuditEntry(by="olga", verb="retry", model="leasing_tasks.task", key=f"k{number:02}")
        for number in range(60)
    )
    first = get(viewer, f"{AUDIT}?by=olga")
    second = get(viewer, first.next)
    assert "k59" in first.text and "k10" in first.text and "k09" not in first.text
    assert "k09" in second.text and "k00" in second.text and "k10" not in second.text
    statements = sent_by(viewer, first.next)
    assert len(statements) <= 7
    assert_cheap(statements)


def test_an_address_that_makes_no_sense_is_refused(viewer: Client) -> None:
    page = Page(viewer.get(AUDIT, {"at": "nonsense"}))
    assert page.status == 400 and len(page.alerts) == 1 and AUDIT in page.links


def test_markup_in_it_is_inert(viewer: Client) -> None:
    audit.record("<b>o", "<i>x", Task, keys=["<u>1"], changed=1, reason="<script>1</script>")
    page = get(viewer, AUDIT)
    assert not any(tag in page.html for tag in ("<b>o", "<i>x", "<u>1", "<script>1"))


def test_it_is_exported_by_the_same_filter(viewer: Client) -> None:
    audit.record("=olga", "retry", Task, keys=[17], changed=1, reason="again")
    audit.record("emil", "retry", Task, keys=[18], changed=1)
    page = get(viewer, f"{AUDIT}?by=%3Dolga&verb=retry")
    assert "/ops/audit.csv?by=%3Dolga&verb=retry" in page.links
    response = viewer.get("/ops/audit.csv", {"by": "=olga"})
    rows = b"".join(response).decode().splitlines()
    assert len(rows) == 2 and ",'=olga,retry," in rows[1] and "again" in rows[1]
    entries = json.loads(b"".join(viewer.get("/ops/audit.json")))
    assert [entry["by"] for entry in entries] == ["emil", "=olga"]
    assert viewer.get("/ops/audit.csv", {"by": "x" * 201}).status_code == 400
    assert (
        signed_in("leasing_tasks.view_task", name="olga").get("/ops/audit.csv").status_code == 403
    )
