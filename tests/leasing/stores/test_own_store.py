"""A store of one's own: the contract finds what is wrong with it, and settings name it."""

from __future__ import annotations

import unittest
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from django.db import transaction
from django.test import SimpleTestCase, override_settings

from leasing import Leader, leased, once
from leasing.checks.stores import check_stores
from leasing.exceptions import LeaseHeld, LeaseInTransaction, UnsupportedByStore
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.store import Incumbent, NamedStore, Renewals
from leasing.stores import InvalidStore, store_of, stores
from leasing.stores.memory import MemoryStore, memory
from leasing.testing import LeasingTestMixin, in_memory
from leasing.testing.contract import StoreContract
from leasing.testing.keeper import ManualKeeper
from tests.leasing.stores.own_store import DictStore, Entry

PATH = "tests.leasing.stores.own_store.DictStore"
SHELF = {"BACKEND": PATH, "SHELF": "north"}

named = override_settings(LEASING={"STORES": {"shelf": SHELF}})


# The contract


def tried(kind: type[DictStore]) -> unittest.TestResult:
    """Run the contract over stores of that kind."""

    class Tried(LeasingTestMixin, StoreContract, SimpleTestCase):
        def make_store(self) -> NamedStore:
            return kind(shelf="tried")

        def pass_time(self, seconds: float) -> None:
            self.lease_keeper.advance(seconds)

    names = [name for name in dir(Tried) if name.startswith("test_")]
    result = unittest.TestResult()
    unittest.TestSuite(map(Tried, names)).run(result)
    assert result.testsRun == len(names) > 25
    return result


def test_a_store_that_keeps_the_contract_passes() -> None:
    result = tried(DictStore)
    assert result.wasSuccessful(), result.failures + result.errors


def test_its_own_clock_may_be_an_hour_off() -> None:
    class Ahead(DictStore):
        def __init__(self, *, shelf: str) -> None:
            super().__init__(shelf=shelf, seconds_ahead=3600.0)

    result = tried(Ahead)
    assert result.wasSuccessful(), result.failures + result.errors


class EqualTokens(DictStore):
    def next_token(self) -> int:
        return 7


class KnowsTheHolderByName(DictStore):
    def grant(self, resource: str, terms: Any) -> Term:
        entry = self._entries.get(resource)
        if entry is not None and entry.holder == terms.holder:
            entry.ends_at = 0
        return super().grant(resource, terms)


class Revives(DictStore):
    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        for resource, grant_id in grants.items():
            entry = self._entries[resource]
            if entry.grant_id == grant_id and not entry.is_given_back:
                entry.ends_at = self.now + entry.ttl
        return super().renew(grants, timeout)


class RenewsAnybody(DictStore):
    def why_over(self, entry: Entry, grant_id: uuid.UUID) -> str:
        return super().why_over(entry, entry.grant_id)


class RefusesAllForOne(DictStore):
    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        answer = super().renew(grants, timeout)
        return Renewals(lost=dict.fromkeys(grants, "lost")) if answer.lost else answer


class RefusesASecondRelease(DictStore):
    def give_back(self, grant: Term) -> bool:
        self._entries[grant.key].is_given_back = False
        return super().give_back(grant)


class RevokesWithoutAToken(DictStore):
    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        ended = super().take_back(resource, reason, by)
        return None if ended is None else Incumbent(ended.holder, 0, ended.expires_at)


class RevokesWhatIsFree(DictStore):
    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        ended = super().take_back(resource, reason, by)
        return ended or Incumbent(
            "nobody", self.next_token(), self.moment(Entry("", uuid.uuid4(), 0, 0, 0))
        )


class ShowsWhoeverHadIt(DictStore):
    def current(self, resource: str) -> Incumbent | None:
        entry = self._entries.get(resource)
        if entry is None:
            return None
        return Incumbent(entry.holder, entry.token, self.moment(entry))


class IgnoresCase(DictStore):
    def grant(self, resource: str, terms: Any) -> Term:
        return super().grant(resource.lower(), terms)


class NeverMoves(DictStore):
    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        ends = {resource: self._entries[resource].ends_at for resource in grants}
        answer = super().renew(grants, timeout)
        for resource, ends_at in ends.items():
            self._entries[resource].ends_at = ends_at
        return answer


@pytest.mark.parametrize(
    "broken",
    [
        *(EqualTokens, KnowsTheHolderByName, Revives, RenewsAnybody, RefusesAllForOne),
        *(RefusesASecondRelease, RevokesWithoutAToken, RevokesWhatIsFree, ShowsWhoeverHadIt),
        *(IgnoresCase, NeverMoves),
    ],
)
def test_a_store_that_breaks_the_contract_fails_it(broken: type[DictStore]) -> None:
    assert not tried(broken).wasSuccessful()


# By alias


def test_rows_are_the_default_store_whatever_else_is_named() -> None:
    assert list(stores) == ["default"]
    with named:
        assert list(stores) == ["default", "shelf"]
        assert stores["default"] == Lease.objects.using("default").store()
        assert stores["shelf"] is stores["shelf"]
        assert stores["shelf"].shelf == "north"  # type: ignore[attr-defined]
        assert store_of("shelf") is store_of(stores["shelf"]) is stores["shelf"]


@pytest.mark.usefixtures("clocks")
def test_without_a_database_every_store_is_in_memory_and_each_for_itself() -> None:
    with named, in_memory():
        assert stores["default"] is memory
        assert isinstance(stores["shelf"], MemoryStore)
        with stores["default"].hold("berth:1"), stores["shelf"].hold("berth:1"):
            pass
        stores["shelf"].hold("berth:2").__enter__()
    with named, in_memory():
        assert stores["shelf"].current("berth:2") is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**SHELF, "SHELV": "x"}, "unexpected keyword argument 'shelv'"),
        ({"BACKEND": PATH}, "missing 1 required keyword-only argument: 'shelf'"),
        ({**SHELF, "SHELF": ""}, "makes no store: the SHELF has no name"),
        ({"BACKEND": "leasing.stores.memory.MemorStore"}, "cannot be imported"),
        ({"BACKEND": "leasing.stores.registry.stores"}, "which is no class"),
        (
            {"BACKEND": "leasing.stores.rows.RowStore", "MODEL": 1},
            "unexpected keyword argument 'model'",
        ),
        ({}, "must be a dictionary with a BACKEND, such as 'leasing.stores.rows.RowStore'"),
        (7, "must be a dictionary with a BACKEND"),
    ],
)
def test_a_bad_entry_is_told_by_the_check_and_by_its_use(entry: Any, message: str) -> None:
    with override_settings(LEASING={"STORES": {"central": entry}}):
        (found,) = check_stores()
        with pytest.raises(InvalidStore, match=r"LEASING\['STORES'\]\['central'\]"):
            stores["central"]
    assert found.id == "leasing.E031"
    assert message in found.msg


def test_good_entries_are_no_finding_and_an_unknown_alias_is_told() -> None:
    with named:
        assert list(check_stores()) == []
        with pytest.raises(InvalidStore, match="no store 'shelv'. Did you mean 'shelf'?"):
            stores["shelv"]
    with override_settings(LEASING={"STORES": [{"TOKEN": "leasing_secret"}]}):
        (found,) = check_stores()
        assert (found.id, "must be a dictionary of stores" in found.msg) == ("leasing.E031", True)
        assert "secret" not in found.msg


# Leaders and decorated functions


@named
def test_a_leader_leads_under_a_lease_of_its_store(clocks: ManualKeeper) -> None:
    leader = Leader("scheduler", holder="me", store="shelf")
    with leader as term:
        incumbent = leader.current()
        assert incumbent == stores["shelf"].current("scheduler")
        assert incumbent is not None
        assert (incumbent.holder, incumbent.fencing_token) == ("me", term.fencing_token)
    assert Leader("scheduler", store=stores["shelf"]).current() is None


@named
def test_a_decorated_function_runs_under_a_lease_of_its_store(clocks: ManualKeeper) -> None:
    @leased("report:{pk}", store="shelf", holder="me")
    def write(pk: int) -> str:
        incumbent = stores["shelf"].current(f"report:{pk}")
        return incumbent.holder if incumbent else "nobody"

    assert write(1) == "me"
    with stores["shelf"].hold("report:1"), pytest.raises(LeaseHeld):
        write(1)


@named
def test_once_keeps_its_results_in_rows_and_refuses_other_stores() -> None:
    once("charge:1", window=60, store="default")
    for store in ("shelf", DictStore(shelf="north")):
        with pytest.raises(UnsupportedByStore, match="keeps its results in rows"):
            once("charge:1", window=60, store=store)


# What wants a transaction


@pytest.mark.django_db
def test_it_is_not_taken_in_a_transaction_of_the_database(clocks: ManualKeeper) -> None:
    store = DictStore(shelf="north")
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        store.hold("berth:1").__enter__()
    with store.hold("berth:1") as hold, transaction.atomic():
        hold.ensure()


def test_what_writes_in_its_transaction_is_refused_in_a_sentence(clocks: ManualKeeper) -> None:
    store = DictStore(shelf="north")
    with store.hold("berth:1") as hold, pytest.raises(UnsupportedByStore) as refusal:
        hold.still_mine()
    assert str(refusal.value) == (
        "still_mine() needs the lease in the database that is written to, and the shelf north "
        "keeps it elsewhere. Pass the fencing token with each write instead."
    )
    with pytest.raises(UnsupportedByStore, match="before the transaction"):
        store.hold("berth:1", separate=True)
    with pytest.raises(UnsupportedByStore, match="the shelf north does not know the term 'grace'"):
        store.hold("berth:1", grace=3)
