"""Leases in a lease service: what is renewed when, and what failures cost.

The service is the API of this site, called without a network, while time stands still. The contract
is tried in ``tests/leasing/contract``, and a real network below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from django.test import override_settings

from leasing import Leader
from leasing.checks.stores import check_stores
from leasing.exceptions import LeaseHeld, LeaseLost, StoreError
from leasing.holding.keeper import Keeper
from leasing.holding.term import Term, keep_all, margin
from leasing.models import ApiToken, Lease
from leasing.stores import InvalidStore, stores
from leasing.stores.http import HttpStore
from leasing.stores.memory import MemoryStore
from leasing.testing.keeper import ManualKeeper
from leasing.validation.names import MAX_BODY
from leasing.validation.terms import Terms
from tests.factories import make_task
from tests.leasing.stores.served import InProcess, store_of_api
from tests.leasing.support import OFTEN, PATIENCE
from tests.processes import wait_for
from tests.remote import answered, refused, swallowed

pytestmark = pytest.mark.django_db

BACKEND = "leasing.stores.http.HttpStore"
URL = "http://localhost/api"


@pytest.fixture
def network() -> InProcess:
    return InProcess()


@pytest.fixture
def store(network: InProcess, clocks: ManualKeeper) -> HttpStore:
    return store_of_api(network)


def renewals(network: InProcess) -> list[httpx.Request]:
    return [each for each in network.requests if each.url.path.endswith("/renew/batch")]


# Requests


def test_all_holds_of_a_client_cost_one_request_in_each_third_of_their_ttl(
    store: HttpStore, network: InProcess, clocks: ManualKeeper
) -> None:
    holds: list[Term] = []
    for number in range(10):
        holds.append(store.hold(f"crane:{number}", ttl=30).__enter__())
        clocks.advance(7)
    network.requests.clear()
    clocks.advance(300)

    sent = len(renewals(network))
    assert 300 / 11.5 - 1 <= sent <= 300 / 10
    assert len(network.requests) == sent
    assert all(hold.valid for hold in holds)


def test_a_thousand_holds_are_renewed_by_one_request(
    store: HttpStore, network: InProcess, clocks: ManualKeeper
) -> None:
    resource = "\u4e2d" * 190
    grants = [
        store.acquire(f"{resource}:{number}", Terms.check(holder="me", ttl=30))
        for number in range(3)
    ]
    proofs = {
        **{grant.key: grant.grant_id for grant in grants},
        **{
            type(grants[0].key)(f"{resource}:{n}", "x" * 43): grants[0].grant_id
            for n in range(3, 1000)
        },
    }
    network.requests.clear()

    answer = store.renew(proofs, timeout=30)

    assert len(network.requests) == 1
    assert len(network.requests[0].content) > MAX_BODY
    assert set(answer.renewed) == {grant.key for grant in grants}
    assert len(answer.lost) == 997


def test_all_pages_of_what_is_held_are_listed_and_only_leases_on_names(
    store: HttpStore, network: InProcess
) -> None:
    make_task(state="running")
    grant = store.acquire("crane:1", Terms.check(holder="me", ttl=30))
    network.requests.clear()
    network.faults = [answered(200, b'{"leases": [], "next": ""}')]

    held = store.held()

    assert [(name, each.fencing_token) for name, each in held.items()] == [
        ("crane:1", grant.fencing_token)
    ]
    assert len(network.requests) == 2


@pytest.mark.parametrize("lease", ["{}", "7", '{"id": 1}', '{"id": 1, "resource": "crane:1"}'])
def test_a_list_that_is_none_of_leases_is_an_error(
    store: HttpStore, network: InProcess, lease: str
) -> None:
    network.faults = [answered(200, f'{{"leases": [{lease}]}}'.encode())]
    with pytest.raises(StoreError, match="has no valid field"):
        store.held()


# Failures


def test_an_acquisition_whose_answer_was_lost_finds_its_grant(
    store: HttpStore, network: InProcess, clocks: ManualKeeper
) -> None:
    network.faults = [swallowed, refused]
    with store.hold("crane:1", ttl=30) as hold:
        row = Lease.objects.get()
        assert (hold.fencing_token, row.grants) == (row.fencing_token, 1)
        assert hold.trusted_until <= clocks.seconds + 30 - margin(30)


@override_settings(LEASING={"JITTER": 0})
def test_a_renewal_whose_answer_was_lost_extends_the_lease_and_no_trust(
    store: HttpStore, network: InProcess, clocks: ManualKeeper
) -> None:
    with store.hold("crane:1", ttl=30) as hold:
        trusted_until = hold.trusted_until
        network.faults = [swallowed]
        clocks.advance(10)
        assert Lease.objects.get().renewals == 1
        assert hold.trusted_until == trusted_until

        clocks.advance(6)
        assert hold.trusted_until > trusted_until


@pytest.mark.parametrize("ttl", [30, 120])
def test_a_hold_outlives_an_absence_for_as_long_as_its_trust(
    store: HttpStore, network: InProcess, clocks: ManualKeeper, ttl: int
) -> None:
    lost: list[float] = []
    hold = store.hold("crane:1", ttl=ttl, on_lost=lambda _: lost.append(clocks.seconds))
    hold.__enter__()
    clocks.advance(4 * ttl)
    network.is_away = True
    trusted_until = hold.term.trusted_until
    clocks.advance(30)
    network.is_away = False
    clocks.advance(ttl)

    if ttl == 120:
        assert hold.term.valid
        hold.term.release()
    else:
        assert lost == [pytest.approx(trusted_until, abs=0.02)]
        with pytest.raises(LeaseLost, match="not renewed in time"):
            hold.term.ensure()
        store.hold("crane:1").__enter__()


def test_what_the_service_gave_to_another_is_lost_with_the_reason(
    store: HttpStore, clocks: ManualKeeper
) -> None:
    with (
        pytest.raises(LeaseLost, match="not that of the current grant"),
        store.hold("crane:1", ttl=30) as hold,
    ):
        store.revoke("crane:1", reason="stuck")
        store.hold("crane:1", holder="next").__enter__()
        clocks.advance(12)
        assert hold.lost


def test_what_is_wrong_with_a_service_is_told_and_no_secret(
    store: HttpStore, network: InProcess
) -> None:
    hold = store.hold("crane:2").__enter__()
    network.faults = [answered(302, b"", Location="https://sso/")]
    with pytest.raises(StoreError, match="redirects to https://sso/"):
        store.hold("crane:1").__enter__()
    ApiToken.objects.all().revoke()
    with pytest.raises(StoreError, match="denies access"):
        store.current("crane:1")
    with pytest.raises(StoreError, match="denies access"):
        hold.renew()
    hold.detach()
    assert repr(store) == f"the lease service at {URL}"


@pytest.mark.django_db(transaction=True)
def test_a_leader_campaigns_while_its_service_is_away(
    network: InProcess, clocks: ManualKeeper
) -> None:
    store = store_of_api(network, patience=0.0)
    network.faults = [refused, refused]
    leader = Leader("scheduler", store=store, holder="me")
    with leader as term:
        incumbent = leader.current()
        assert incumbent is not None
        assert (incumbent.holder, incumbent.fencing_token) == ("me", term.fencing_token)
        with pytest.raises(LeaseHeld, match="scheduler is held by me"):
            store.hold("scheduler", wait=0).__enter__()
    assert leader.current() is None


def test_it_is_made_from_the_settings_and_bad_ones_are_told() -> None:
    good = {"BACKEND": BACKEND, "URL": URL, "TOKEN": "leasing_secret"}
    with override_settings(LEASING={"STORES": {"central": good}}):
        assert list(check_stores()) == []
        assert repr(stores["central"]) == f"the lease service at {URL}"
    for bad, message in (
        ({"BACKEND": BACKEND}, "missing 1 required keyword-only argument: 'url'"),
        ({**good, "URLL": URL}, "unexpected keyword argument 'urll'"),
        ({**good, "URL": "leases.example.com"}, "is not the address of an API"),
    ):
        with override_settings(LEASING={"STORES": {"central": bad}}):
            (found,) = check_stores()
            assert message in found.msg
            with pytest.raises(InvalidStore):
                stores["central"]


# The renewing thread


@pytest.fixture
def hanging(live_keeper: Keeper) -> Iterator[Callable[[], HttpStore]]:
    """Return a function that makes a store of a service which grants, and hangs at a renewal."""
    go = threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/renew/batch"):
            go.wait(PATIENCE)
        return httpx.Response(
            201,
            json={
                **{"resource": "crane:1", "holder": "me", "fencing_token": 7, "ttl": 30.0},
                **{"lease_key": "k" * 43, "expires_at": "2030-01-01T00:00:00.000Z"},
                **{"remaining": 30.0, "yield_to": "", "is_last": False},
            },
        )

    yield lambda: HttpStore(url=URL, transport=httpx.MockTransport(answer))
    go.set()


@override_settings(LEASING=OFTEN)
def test_a_service_that_hangs_costs_holds_of_other_stores_nothing(
    hanging: Callable[[], HttpStore], live_keeper: Keeper
) -> None:
    remote, memory = hanging(), MemoryStore()
    terms = Terms.check(holder="me", ttl=30)
    for store in (remote, memory):
        grant = store.acquire("crane:1", terms)
        keep_all([grant], live_keeper)
    row = memory.look(("leasing.Lease", "crane:1"))
    wait_for(lambda: live_keeper.draining, timeout=PATIENCE)
    before = row.renewals
    wait_for(lambda: row.renewals >= before + 3, timeout=PATIENCE)
