"""The page of one lease, and how it is taken from its holder."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from leasing.exceptions import LeaseLost
from leasing.models import AuditEntry, Lease, LeaseEvent
from tests.factories import LeaseFactory, TaskFactory
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


@pytest.mark.once
def test_an_active_lease_says_who_holds_it_and_what_happens_next(viewer: Client) -> None:
    lease = LeaseFactory(holder="dora")
    text = get(viewer, url_of(lease)).text
    said = r"Why dora holds it\. Who holds it dora Until when in \d+ s of its 30 s"
    assert re.search(said, text)
    assert "What happens next While its holder renews it, it stays held." in text
    assert f"Fencing token {lease.fencing_token}" in text


@pytest.mark.once
def test_lateness_has_three_steps(viewer: Client, database_clock: DatabaseClock) -> None:
    lease = LeaseFactory(holder="dora", renewals=1)

    def seen() -> str:
        text = get(viewer, url_of(lease)).text
        return next(
            w for w in ("has missed a renewal", "neither renewed it", "holds it.") if w in text
        )

    database_clock.advance(9)
    assert seen() == "holds it."
    database_clock.advance(7)
    assert seen() == "has missed a renewal"
    database_clock.advance(15)
    assert seen() == "neither renewed it"


@pytest.mark.once
def test_all_times_are_the_databases(viewer: Client, database_clock: DatabaseClock) -> None:
    lease = LeaseFactory()
    database_clock.advance(12)
    page = get(viewer, url_of(lease))
    assert "in 18 s" in page.text
    assert 'data-now="2030-01-01T00:00:12' in page.html


@pytest.mark.once
def test_a_revoked_lease_says_by_whom_and_why(viewer: Client) -> None:
    lease = LeaseFactory(holder="dora")
    Lease.objects.filter(pk=lease.pk).revoke("she is on leave", "olga")
    assert "It was taken from dora by olga: she is on leave." in get(viewer, url_of(lease)).text


@pytest.mark.once
def test_a_released_lease_says_that_its_holder_gave_it_back(viewer: Client) -> None:
    lease = LeaseFactory(holder="dora", state="released")
    assert "dora gave it back." in get(viewer, url_of(lease)).text


@pytest.mark.once
def test_a_lease_that_nobody_ever_held_says_so(viewer: Client) -> None:
    text = get(viewer, url_of(LeaseFactory(state="free"))).text
    assert "Nobody has ever held it." in text
    assert "Nothing needs doing." in text


@pytest.mark.once
def test_the_timeline_shows_a_takeover_with_rising_tokens(viewer: Client) -> None:
    first = LeaseFactory(resource="berth", holder="dora")
    expire(first)
    second = LeaseFactory(resource="berth", holder="emil")
    text = get(viewer, url_of(second)).text
    events = text[text.index("What happened") :]
    takeover = events.index("emil took it over from dora")
    assert events.index(f"token {second.fencing_token}") < takeover
    assert takeover < events.index(f"token {first.fencing_token}")
    terms = text[text.index("Terms") : text.index("As a table")]
    lost = re.search(
        rf"Term 1 expired after (< )?\d+\.\d s dora token {first.fencing_token}", terms
    )
    won = f"Term 2 active emil token {second.fencing_token} taken over from dora"
    assert lost is not None and lost.start() < terms.index(won)


def test_events_come_in_pages(viewer: Client) -> None:
    lease = LeaseFactory()
    LeaseEvent.objects.bulk_create(
        LeaseEvent.of(lease, "refused", reason=f"write {number}") for number in range(60)
    )
    page = get(viewer, url_of(lease))
    assert "write 59" in page.text and "write 9 " not in page.text
    assert "write 0" in get(viewer, page.link_called("Older")).text


def test_a_lease_costs_the_same_however_much_happened_to_it(viewer: Client) -> None:
    lease = LeaseFactory()
    few = sent_by(viewer, url_of(lease))
    LeaseEvent.objects.bulk_create(LeaseEvent.of(lease, "refused") for _ in range(30))
    assert len(sent_by(viewer, url_of(lease))) == len(few) <= 8


@pytest.mark.once
@pytest.mark.parametrize("key", ["999", "task:999", "nobody:1", "x", "task:x", "lease:1", "9" * 30])
def test_a_lease_that_does_not_exist_answers_404(viewer: Client, key: str) -> None:
    LeaseFactory()
    assert viewer.get(f"{LIST}{key}/").status_code == 404


# Revoke


@pytest.mark.once
def test_a_revocation_takes_the_lease_and_remembers_who_and_why(operator: Client) -> None:
    lease = LeaseFactory(holder="dora")
    said = {"reason": "she hangs", "typed": lease.resource}
    response = operator.post(url_of(lease, "revoke"), said, follow=True)
    assert response.redirect_chain == [(url_of(lease), 302)]
    page = Page(response)
    assert "Taken from dora." in page.text
    assert "It was taken from dora by olga: she hangs." in page.text
    assert stored(lease)["fencing_token"] > lease.fencing_token


@pytest.mark.once
@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
def test_a_revocation_without_a_usable_reason_changes_nothing(
    operator: Client, reason: str
) -> None:
    lease = LeaseFactory()
    before = stored(lease)
    said = {"reason": reason, "typed": lease.resource}
    page = Page(operator.post(url_of(lease, "revoke"), said))
    assert page.status == 400
    assert 'aria-invalid="true"' in page.html
    assert "data-poll" not in page.html  # or the poll would ask for an address that only takes POST
    assert stored(lease) == before


@pytest.mark.once
@pytest.mark.parametrize("typed", ["", "berth", "BERTH:1"])
def test_a_revocation_needs_the_name_typed(operator: Client, typed: str) -> None:
    lease = LeaseFactory(resource="berth:1")
    before = stored(lease)
    page = Page(operator.post(url_of(lease, "revoke"), {"reason": "she hangs", "typed": typed}))
    assert page.status == 400
    assert "Type berth:1 to confirm" in page.text
    assert stored(lease) == before


@pytest.mark.once
def test_a_second_revocation_says_that_nothing_changed(operator: Client) -> None:
    lease = LeaseFactory()
    for words in ("Taken from", "Nothing changed"):
        said = {"reason": "x", "typed": lease.resource}
        response = operator.post(url_of(lease, "revoke"), said, follow=True)
        assert words in Page(response).text
    assert LeaseEvent.objects.filter(kind="revoked").count() == 1


@pytest.mark.once
def test_a_revocation_leads_back_only_to_this_site(operator: Client) -> None:
    task = TaskFactory(state="running")
    url = reverse("leasing:revoke", args=[task.lease_id])
    said = {"reason": "x", "typed": task.lease_resource}
    response = operator.post(url, said | {"next": "//evil.example/"})
    assert response["Location"] == f"{LIST}task:{task.pk}/"
    task = TaskFactory(state="running")
    url = reverse("leasing:revoke", args=[task.lease_id])
    said = {"reason": "x", "typed": task.lease_resource}
    response = operator.post(url, said | {"next": "/ops/"})
    assert response["Location"] == "/ops/"


@pytest.mark.once
def test_terms_are_drawn_with_refused_writes_and_told_in_a_table(viewer: Client) -> None:
    first = LeaseFactory(resource="berth", holder="dora")
    expire(first)
    second = LeaseFactory(resource="berth", holder="emil", renewals=3)
    with pytest.raises(LeaseLost):
        Lease.objects.release(first)
    page = get(viewer, url_of(second))
    drawing = page.html[page.html.index('<ol class="lanes">') : page.html.index('id="events"')]
    of_dora, of_emil = drawing.split('<li data-key="lane')[1:]
    assert "1 late write refused" in of_dora and '<circle class="tone-crit"' in of_dora
    assert "renewed 3 times" in of_emil and '<circle class="tone-warn"' in of_emil
    assert "style=" not in page.html
    assert "Term 1 dora" in page.text[page.text.index("As a table") :]


@pytest.mark.once
@pytest.mark.parametrize("state", ["free", "active", "expired", "released", "revoked"])
def test_every_lease_answers_the_five_questions_in_their_order(viewer: Client, state: str) -> None:
    text = get(viewer, url_of(LeaseFactory(state=state))).text
    questions = "Why", "Who holds it", "Until when", "What happens next", "What you can do"
    places = [text.index(each) for each in questions]
    assert places == sorted(places)


@pytest.mark.once
def test_a_revocation_is_in_the_ledger_of_audits(operator: Client) -> None:
    lease = LeaseFactory(resource="berth")
    operator.post(url_of(lease, "revoke"), {"reason": "she hangs", "typed": "berth"})
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.key) == ("olga", "revoke", str(lease.pk))
