"""The page of one lease, and how it is taken from its holder."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from leasing.diagnosis.lease import explain
from leasing.exceptions import LeaseLost
from leasing.functions import database_now
from leasing.models import Lease, LeaseEvent
from leasing.web.badges import ACTIVE, EXPIRED
from tests.factories import make_lease, make_task
from tests.fixtures import client_with
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire, stored
from tests.pages import Page, get, sent_by

pytestmark = pytest.mark.django_db

LIST = "/ops/leases/"
VIEW, REVOKE = "leasing.view_lease", "leasing.revoke_lease"

viewer = client_with(VIEW)
operator = client_with(VIEW, REVOKE, name="olga")


def url_of(lease: Lease, verb: str = "detail") -> str:
    return reverse(f"leasing:{verb}", args=[lease.lease_id])


def test_an_active_lease_says_who_holds_it_and_what_happens_next(viewer: Client) -> None:
    lease = make_lease(holder="dora")
    page = get(viewer, url_of(lease))
    now = database_now("default")
    reported = explain(Lease.objects.get(pk=lease.pk), now)
    assert page.code == reported.code == "running_ok"
    assert page.answers["who"].text == "dora" and page.badges == [ACTIVE.word]
    until = page.answers["until"].one("time")
    assert datetime.fromisoformat(until["datetime"]) - now < timedelta(seconds=30)
    assert page.answers["until"].numbers[1] == 30
    assert page.answers["next"].text == reported.next
    assert str(lease.fencing_token) in page.facts.values()


def test_the_page_of_a_named_lease_is_found_by_its_name(viewer: Client) -> None:
    for name in ("report:stock", "nightly", "task:x", "17 or so"):
        make_lease(resource=name)
        assert name in get(viewer, reverse("leasing:detail", args=[name])).one("h1").text
    assert get(viewer, f"{LIST}no:such/").status == 404


def test_a_named_lease_shows_what_its_holder_left_for_others_to_read(viewer: Client) -> None:
    lease = make_lease()
    assert "Metadata" not in get(viewer, url_of(lease)).facts
    Lease.objects.filter(pk=lease.pk).update(metadata={"command": "report", "password": "x1y2"})
    shown = get(viewer, url_of(lease)).facts["Metadata"]
    assert '"command": "report"' in shown and "x1y2" not in shown


def test_the_holder_is_shown_with_its_program(viewer: Client) -> None:
    lease = make_lease(holder="report", metadata={"process": "report.py@vm:12:0a1b2c3d"})
    who = "report (report.py, pid 12 on vm)"
    assert get(viewer, url_of(lease)).answers["who"].text == who
    expire(lease)
    assert get(viewer, url_of(lease)).answers["who"].text == f"Nobody. Last holder: {who}"


def test_lateness_has_three_steps(viewer: Client, database_clock: DatabaseClock) -> None:
    lease = make_lease(holder="dora", renewals=1)

    def seen() -> str:
        return get(viewer, url_of(lease)).code

    database_clock.advance(9)
    assert seen() == "running_ok"
    database_clock.advance(7)
    assert seen() == "late"
    database_clock.advance(15)
    assert seen() == "expired_unclaimed"


def test_all_times_are_the_databases(viewer: Client, database_clock: DatabaseClock) -> None:
    lease = make_lease()
    database_clock.advance(12)
    page = get(viewer, url_of(lease))
    until = page.answers["until"].one("time")
    assert until["datetime"].startswith("2030-01-01T00:00:30") and until.numbers == [18]
    assert page.one("main")["data-now"].startswith("2030-01-01T00:00:12")


def test_a_revoked_lease_says_by_whom_and_why(viewer: Client) -> None:
    lease = make_lease(holder="dora")
    Lease.objects.filter(pk=lease.pk).revoke("she is on leave", "olga")
    page = get(viewer, url_of(lease))
    assert page.code == "released"
    assert all(word in page.answers["why"].text for word in ("dora", "olga", "she is on leave"))


def test_a_released_lease_says_that_its_holder_gave_it_back(viewer: Client) -> None:
    lease = make_lease(holder="dora", state="released")
    page = get(viewer, url_of(lease))
    assert page.code == "released" and "dora" in page.answers["why"].text
    assert not page.forms[1:], "there is nothing to revoke"


def test_a_lease_that_nobody_ever_held_says_so(viewer: Client) -> None:
    page = get(viewer, url_of(make_lease(state="free")))
    assert page.code == "free" and not page.answers["who"].all("bdi")
    assert not page.answers["do"].all("form") and not page.all("[data-forbidden]")


def test_the_timeline_shows_a_takeover_with_rising_tokens(viewer: Client) -> None:
    first = make_lease(resource="berth", holder="dora")
    expire(first)
    second = make_lease(resource="berth", holder="emil")
    page = get(viewer, url_of(second))
    takeover, grant = page.all(".timeline li")
    assert takeover.one(".token .mono").text == str(second.fencing_token)
    assert [each.text for each in takeover.all("bdi")] == ["emil", "dora"]
    assert grant.one(".token .mono").text == str(first.fencing_token)
    lost, won = page.all(".lanes li")
    assert lost["data-key"] == f"lane{first.fencing_token}"
    assert lost.one("bdi").text == "dora" and lost.all(".tinted")[1].text == EXPIRED.word
    assert won["data-key"] == f"lane{second.fencing_token}"
    assert won.one("bdi").text == "emil" and won.all(".tinted")[1].text == ACTIVE.word
    assert "dora" in won.one(".lane-note").text


def test_events_come_in_pages(viewer: Client) -> None:
    lease = make_lease()
    LeaseEvent.objects.bulk_create(
        LeaseEvent.of(lease, "refused", reason=f"write {number}") for number in range(60)
    )
    page = get(viewer, url_of(lease))
    assert "write 59" in page.text and "write 9 " not in page.text
    assert "write 0" in get(viewer, page.next).text


def test_a_lease_costs_the_same_however_much_happened_to_it(viewer: Client) -> None:
    lease = make_lease()
    few = sent_by(viewer, url_of(lease))
    LeaseEvent.objects.bulk_create(LeaseEvent.of(lease, "refused") for _ in range(30))
    assert len(sent_by(viewer, url_of(lease))) == len(few) <= 9


def test_a_lease_that_does_not_exist_answers_404(viewer: Client) -> None:
    make_lease()
    for key in ("999", "task:999", "nobody:1", "x", "task:x", "lease:1", "9" * 30):
        assert viewer.get(f"{LIST}{key}/").status_code == 404, key


# Revoke


def test_a_revocation_takes_the_lease_and_remembers_who_and_why(operator: Client) -> None:
    lease = make_lease(holder="dora")
    said = {"reason": "she hangs", "typed": lease.resource}
    response = operator.post(url_of(lease, "revoke"), said, follow=True)
    assert response.redirect_chain == [(url_of(lease), 302)]
    page = Page(response)
    assert page.notice.tone == "ok" and "dora" in page.notice.text
    assert all(word in page.answers["why"].text for word in ("dora", "olga", "she hangs"))
    assert stored(lease)["fencing_token"] > lease.fencing_token


@pytest.mark.parametrize("typed", ["", "berth", "BERTH:1"])
def test_a_revocation_needs_the_name_typed(operator: Client, typed: str) -> None:
    lease = make_lease(resource="berth:1")
    before = stored(lease)
    page = Page(operator.post(url_of(lease, "revoke"), {"reason": "she hangs", "typed": typed}))
    assert (page.status, page.invalid) == (400, {"typed"})
    assert "berth:1" in page.one("label[for=id_typed]").text
    assert stored(lease) == before


def test_a_revocation_leads_back_only_to_this_site(operator: Client) -> None:
    task = make_task(state="running")
    url = reverse("leasing:revoke", args=[task.lease_id])
    said = {"reason": "x", "typed": task.lease_id}
    response = operator.post(url, said | {"next": "//evil.example/"})
    assert response["Location"] == f"{LIST}task:{task.pk}/"
    task = make_task(state="running")
    url = reverse("leasing:revoke", args=[task.lease_id])
    said = {"reason": "x", "typed": task.lease_id}
    response = operator.post(url, said | {"next": "/ops/"})
    assert response["Location"] == "/ops/"


def test_terms_are_drawn_with_refused_writes_and_told_in_a_table(viewer: Client) -> None:
    first = make_lease(resource="berth", holder="dora")
    expire(first)
    second = make_lease(resource="berth", holder="emil", renewals=3)
    with pytest.raises(LeaseLost):
        Lease.objects.release(first)
    page = get(viewer, url_of(second))
    of_dora, of_emil = page.all(".lanes li")
    assert of_dora.one(".lane-note").numbers == [1] and of_dora.all("circle.tone-crit")
    assert 3 in of_emil.one(".lane-note").numbers and of_emil.all("circle.tone-warn")
    assert "style=" not in page.html
    holders = [row.one("bdi").text for row in page.all(".drawing-table tbody tr")]
    assert holders == ["dora", "emil"]


@pytest.mark.parametrize("state", ["free", "active", "expired", "released", "revoked"])
def test_every_lease_answers_the_five_questions_in_their_order(viewer: Client, state: str) -> None:
    answers = get(viewer, url_of(make_lease(state=state))).answers
    assert list(answers) == ["why", "who", "until", "next", "do"]
    assert all(answer.text for answer in answers.values())
