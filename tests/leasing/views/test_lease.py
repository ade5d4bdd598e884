"""The pages about leases: who may see and do what, lists, live updates."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from leasing import once
from leasing.models import Lease, leasable_models
from tests.factories import make_lease, make_task
from tests.fixtures import client_with
from tests.pages import assert_cheap, get, sent_by, signed_in

pytestmark = pytest.mark.django_db

LIST = "/ops/leases/"
VIEW, REVOKE = "leasing.view_lease", "leasing.revoke_lease"

viewer = client_with(VIEW)
operator = client_with(VIEW, REVOKE, name="olga")


def url_of(lease: Lease, verb: str = "detail") -> str:
    return reverse(f"leasing:{verb}", args=[lease.lease_id])


# Who may see and do what


def test_an_anonymous_visitor_is_sent_to_sign_in_and_back(client: Client) -> None:
    response = client.get(LIST, {"state": "active"})
    assert response.status_code == 302
    assert response["Location"] == "/ops/login/?next=/ops/leases/%3Fstate%3Dactive"


def test_without_permission_pages_answer_403() -> None:
    lease = make_lease()
    client = signed_in()
    assert client.get(LIST).status_code == 403
    assert client.get(url_of(lease)).status_code == 403


def test_to_be_staff_is_no_permission() -> None:
    assert signed_in(is_staff=True).get(LIST).status_code == 403


def test_pages_are_not_kept_by_caches(viewer: Client) -> None:
    assert "no-store" in viewer.get(LIST)["Cache-Control"]


# Lists


@pytest.fixture
def of_each() -> None:
    for state in ("free", "active", "expired", "released", "revoked"):
        make_lease(resource=state, state=state)
    make_lease(resource="active, renewed", renewals=2)
    make_lease(resource="expired, renewed", renewals=1, state="expired")


@pytest.mark.usefixtures("of_each")
def test_a_list_has_the_leases_it_is_asked_for(viewer: Client) -> None:
    renewed = {"active, renewed", "expired, renewed"}
    asked = {
        "": {"free", "active", "expired", "released", "revoked"} | renewed,
        "state=active": {"active", "active, renewed"},
        "state=expired": {"expired", "expired, renewed"},
        "state=released": {"released", "revoked"},
        "state=renewed": renewed,
        "state=active&renewed=1": {"active, renewed"},
        "state=released&renewed=1": set(),
        "q=active": {"active", "active, renewed"},
        "q=expired, renewed": {"expired, renewed"},
        "state=expired&q=active": set(),
    }
    assert {query: set(get(viewer, f"{LIST}?{query}").names) for query in asked} == asked


@pytest.mark.usefixtures("of_each")
def test_active_expired_and_released_add_up(viewer: Client) -> None:
    tabs = get(viewer, LIST).tabs
    states = {"": "7", "state=active": "2", "state=expired": "2", "state=released": "2"}
    assert tabs == states | {"state=free": "1", "renewed=1": "2"}
    assert get(viewer, f"{LIST}?state=active").tabs["renewed=1,state=active"] == "1"


def test_leases_of_tasks_stand_beside_the_named_ones(viewer: Client) -> None:
    held, _waiting = make_task(state="running"), make_task()
    page = get(viewer, f"{LIST}?state=active")
    assert page.names == [f"task:{held.pk}"]
    assert f"{LIST}task:{held.pk}/" in page.links
    make_lease(resource="berth")
    page = get(viewer, f"{LIST}?state=active")
    assert page.names == ["berth", f"task:{held.pk}"]
    assert [each["href"] for each in page.all("nav.jump a")][1:] == ["#section-tasks"]


def test_a_task_is_found_by_its_id(viewer: Client) -> None:
    task, _other = make_task(state="running"), make_task(state="running")
    for text in (f"{task.pk}", f"task:{task.pk}", f"/api/tasks/{task.pk}"):
        assert get(viewer, f"{LIST}?q={text}").names == [f"task:{task.pk}"]


def test_an_unknown_state_is_refused_and_says_which_there_are(viewer: Client) -> None:
    page = get(viewer, f"{LIST}?state=bogus")
    assert page.status == 400
    assert "bogus" in page.alerts[0]


@pytest.mark.parametrize(
    "cursor", ["x", "%00", "é", "W10", "WyJsZWFzaW5nLmxlYXNlIiwib2xkZXIiLCJ4Il0", "9" * 5000]
)
def test_a_cursor_of_no_page_is_refused(viewer: Client, cursor: str) -> None:
    page = get(viewer, f"{LIST}?at={cursor}")
    assert page.status == 400
    assert LIST in page.links


def test_paging_shows_every_lease_once_while_others_come(viewer: Client) -> None:
    Lease.objects.bulk_create(Lease(resource=f"berth:{number}") for number in range(120))
    seen, page = [], get(viewer, LIST)
    seen += page.names
    for _ in range(2):
        make_lease()
        page = get(viewer, page.next)
        seen += page.names
    assert seen == [f"berth:{number}" for number in reversed(range(120))]
    assert page.next == ""
    back = get(viewer, page.previous)
    assert back.names == seen[50:100]


def test_a_list_costs_the_same_however_long_it_is(viewer: Client) -> None:
    make_lease()
    make_task(state="running")
    few = sent_by(viewer, LIST)
    for _ in range(4):
        make_lease(renewals=1)
        make_task(state="running")
    many = sent_by(viewer, LIST)
    assert len(few) == len(many) <= 6 + 6 * len(leasable_models())
    assert_cheap(many)
    assert not any("task_data" in sql or "last_error" in sql for sql in many)


def test_an_empty_list_says_so(viewer: Client) -> None:
    for url in (LIST, f"{LIST}?state=expired&renewed=1"):
        page = get(viewer, url)
        assert page.is_empty and page.rows == []
    make_lease()
    assert get(viewer, f"{LIST}?state=expired&renewed=1").is_empty
    assert len(get(viewer, LIST).rows) == 1


def test_hostile_names_are_inert(viewer: Client) -> None:
    hostile = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
    lease = make_lease(resource=hostile, holder=f"{hostile}!")
    for page in (get(viewer, LIST), get(viewer, url_of(lease))):
        assert hostile in page.text
        assert page.handlers == []
        assert all(script.get("src") for script in page.scripts)


# Live


def test_a_poll_gets_the_page_without_its_frame(viewer: Client) -> None:
    make_lease(resource="berth")
    page = get(viewer, LIST, x_live="1")
    assert page.names == ["berth"]
    assert page.scripts == [] and not page.all("nav.menu")
    assert "X-Live" in viewer.get(LIST)["Vary"]


def test_a_poll_leaves_messages_for_the_page(operator: Client) -> None:
    lease = make_lease(holder="dora")
    operator.post(url_of(lease, "revoke"), {"reason": "x", "typed": lease.resource})
    assert get(operator, url_of(lease), x_live="1").notices == []
    assert "dora" in get(operator, url_of(lease)).notice.text


# In another site


@pytest.mark.urls("tests.leasing.urls_alone")
def test_the_pages_stand_alone_under_any_prefix(operator: Client) -> None:
    lease, task = make_lease(), make_task(state="running")
    page = get(operator, "/deep/inside/leases/")
    assert all(link.startswith(("/deep/inside/leases", "#")) for link in page.links)
    for key in (str(lease.pk), task.lease_id):
        page = get(operator, f"/deep/inside/leases/{key}/")
        assert page.status == 200
        revoke = f"/deep/inside/leases/{key}/revoke/"
        assert page.forms == ["/deep/inside/logout/", revoke]
    said = {"reason": "x", "typed": task.lease_id}
    response = operator.post(revoke, said)
    assert response["Location"] == f"/deep/inside/leases/{task.lease_id}/"


def test_internal_leases_are_marked_and_come_after_those_of_the_application(
    operator: Client,
) -> None:
    for name in ("leasing_tasks.sampling", "leasing_tasksy", "report:7"):
        make_lease(resource=name)
    for key in ("leasing_tasks:examine", "mail:7"):
        once(key, 60).run(lambda: None)

    page = get(operator, "/ops/leases/")

    sections = page.all("section.section")
    assert [each.one("h2").text for each in sections][-1] == "Internal leases"
    names = [[name.text for name in each.all("td.name a")] for each in sections]
    assert names[0] == ["report:7", "leasing_tasksy"]
    assert ["once:mail:7"] in names
    assert names[-1] == ["leasing_tasks.sampling", "once:leasing_tasks:examine"]
    for internal in sections[-1].links:
        assert "Internal: " in get(operator, internal).text
    assert "Internal: " not in get(operator, sections[0].links[0]).text


def test_the_internal_leases_obey_the_filter(operator: Client) -> None:
    make_lease(resource="leasing_tasks.sampling")
    make_lease(resource="report:7")

    assert get(operator, "/ops/leases/?q=report").names == ["report:7"]
    assert get(operator, "/ops/leases/?q=leasing_tasks").names == ["leasing_tasks.sampling"]
    assert get(operator, "/ops/leases/?state=released").names == []
