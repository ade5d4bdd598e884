"""Databases in which rows are leased: with replicas, with shards, with a database of the leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.db import router
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from leasing import once
from leasing.checks import settings as checks
from leasing.db.routing import OWN_APPS
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import database_now
from leasing.models import Lease, LeaseEvent
from leasing.querysets import LeasableQuerySet
from leasing.testing import assert_free, assert_held
from tests import databases
from tests.factories import make_lease
from tests.leasing.support import events
from tests.press.models import Report
from tests.shop.models import Order

pytestmark = pytest.mark.django_db

OWN_MODELS = [model for app in OWN_APPS for model in apps.get_app_config(app).get_models()]


class PrimaryAndReplica:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


class Pool(PrimaryAndReplica):
    """Of several replicas, as Django's documentation has it."""

    def __init__(self, reads: str) -> None:
        self.reads = reads

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return self.reads

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool | None:
        pool = {"default", "replica", "another"}
        return True if {one._state.db, other._state.db} <= pool else None


class Shards:
    """Sends each order to the shard that its article names."""

    def db_for_write(self, model: Any, instance: Any = None, **hints: Any) -> str | None:
        return instance.article if isinstance(instance, Order) else None

    db_for_read = db_for_write


class Fixed:
    """Knows one database, whatever row it is asked about."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "default"

    db_for_write = db_for_read


def routed(*routers: object) -> override_settings:
    return override_settings(DATABASE_ROUTERS=list(routers))


@pytest.fixture(scope="module")
def replica(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    with databases.made(django_db_blocker, databases.replica("replica")) as name:
        yield name


with_shard = pytest.mark.django_db(databases=["default", "shard"])


# A replica


@pytest.mark.django_db(transaction=True, databases=["default", "replica"])
@pytest.mark.parametrize(
    "router",
    [PrimaryAndReplica(), Pool("another"), Pool("default")],
    ids=["one replica", "several", "reads pinned to the primary"],
)
def test_a_row_read_from_a_replica_is_leased_in_its_primary(replica: str, router: object) -> None:
    Order.objects.create(article="anchor")

    with routed(router):
        order = Order.objects.using(replica).get()
        assert order._state.db == replica
        with order.hold(holder="ann"):
            assert_held(order, by="ann")
        assert Order.objects.release(Order.objects.acquire(order)).grants == 2
        assert_free(order)
        (claimed,) = Order.objects.claim(holder="bob")
        assert claimed._state.db == "default"
    assert [each.holder for each in Order.objects.all()] == ["bob"]


@pytest.mark.parametrize("model", OWN_MODELS, ids=lambda model: model.__name__)
def test_rows_of_ours_are_never_read_from_a_replica(model: Any) -> None:
    with routed(PrimaryAndReplica()):
        assert model._default_manager.all().db == "default"
        assert model._base_manager.all().db == "default"


def test_a_lease_is_looked_at_in_the_primary() -> None:
    with routed(PrimaryAndReplica()):
        lease = Lease.objects.acquire("crane:1")
        assert list(Lease.objects.active()) == [lease]
        lease.refresh_from_db()
        assert Lease.objects.defer("holder").get().holder == lease.holder
        assert LeaseEvent.objects.held_at("crane:1", database_now("default")).count() == 1
        assert once("import", window=60).run(lambda: 1) == 1


# Shards


@pytest.fixture
def order(shard: str) -> Order:
    """An order in the shard; one of the same key is in the other database."""
    elsewhere = Order.objects.create(article="default")
    order: Order = Order.objects.using(shard).create(pk=elsewhere.pk, article=shard)
    return order


@with_shard
@pytest.mark.parametrize("routers", [[], [Shards()]], ids=["no router", "router"])
def test_a_row_of_a_shard_is_leased_there_whoever_asks(order: Order, routers: list[Any]) -> None:
    with routed(*routers):
        with order.hold(holder="ann"):
            with pytest.raises(LeaseHeld, match="held by ann"):
                Order.objects.acquire(order)
            with pytest.raises(LeaseHeld, match="held by ann"), Order.objects.hold(order):
                pass
            assert_held(order, by="ann")
        lease = Order.objects.acquire(order, holder="bob")
        Order.objects.renew(lease)
        assert Order.objects.release_many([lease]) == {}
    assert list(Order.objects.values_list("grants", flat=True)) == [0]
    assert list(Order.objects.using("shard").values_list("holder", flat=True)) == ["bob"]


@with_shard
def test_each_shard_has_the_ledger_of_its_rows(order: Order) -> None:
    held = Order.objects.acquire(order, holder="ann")
    moment = database_now("shard")

    assert [event.holder for event in LeaseEvent.objects.held_at(held, moment)] == ["ann"]
    assert list(LeaseEvent.objects.using("shard").values_list("kind", flat=True)) == ["acquired"]
    assert events(held.lease_resource) == []


@with_shard
def test_a_claim_is_of_the_database_that_is_named_or_the_routers(order: Order) -> None:
    with routed(Shards()):
        (claimed,) = Order.objects.using("shard").claim(2)
        assert (claimed, claimed._state.db) == (order, "shard")
        (claimed,) = Order.objects.claim(2)
        assert claimed._state.db == "default"


@with_shard
def test_what_is_created_or_updated_is_where_rows_are_written(order: Order) -> None:
    Order.objects.using("shard").update_or_create(pk=order.pk, defaults={"article": "anchor"})
    with routed(PrimaryAndReplica()):
        made, is_new = Order.objects.update_or_create(article="anchor")

    assert (is_new, made._state.db) == (True, "default")
    assert Order.objects.using("shard").get().article == "anchor"


def test_fenced_rows_are_written_where_the_rows_are() -> None:
    assert Report.objects.using("shard").fenced(7).using == "shard"
    with routed(PrimaryAndReplica()):
        assert Report.objects.all().fenced(7).using == "default"


@with_shard
def test_a_router_is_believed_and_a_named_database_before_it(order: Order) -> None:
    """As Django's save() believes it: one that knows no shards has no rows in them."""
    with routed(Fixed()):
        assert Order.objects.acquire(order)._state.db == "default"
        there = Order.objects.using("shard")
        held = there.acquire(order)
        assert held._state.db == "shard"
        there.release(held)
        with there.hold(order):
            assert there.active().exists()


@with_shard
def test_a_grant_of_one_database_is_none_in_another(order: Order) -> None:
    held = Order.objects.acquire(order, holder="ann")
    rows = Order.objects.using("default")

    for verb in (rows.renew, rows.release):
        with pytest.raises(LeaseLost):
            verb(held)
    assert list(rows.release_many([held])) == [held.pk]
    assert list(Order.objects.values_list("grants", flat=True)) == [0]
    assert Order.objects.using("shard").get().holder == "ann"
    Order.objects.release(held)


@with_shard
def test_rows_that_were_never_read_are_where_the_router_says(order: Order) -> None:
    with routed(Shards()):
        assert Order.objects.acquire(Order(pk=order.pk, article="shard"))._state.db == "shard"


# A database of the leases


@pytest.fixture
def in_a_database_of_their_own(shard: str) -> Iterator[None]:
    with override_settings(LEASING={"DATABASE": shard}):
        yield


@with_shard
@pytest.mark.usefixtures("in_a_database_of_their_own")
def test_leases_are_written_and_read_where_the_setting_says() -> None:
    lease = Lease.objects.acquire("crane:1", holder="ann")

    assert Lease.objects.get() == lease
    assert Lease.objects.get()._state.db == "shard"
    assert Lease.objects.using("default").count() == 0
    assert events("crane:1") == ["acquired"]
    with Lease.objects.hold("crane:2") as hold, hold.still_mine():
        assert_held("crane:2")
    lease.refresh_from_db()
    assert Lease.objects.release(Lease.objects.renew(lease)).renewals == 1
    with lease.hold():
        assert Lease.objects.active().get() == lease
    Lease.objects.acquire("crane:1")
    assert Lease.objects.active().revoke() == 1


@with_shard
@pytest.mark.usefixtures("in_a_database_of_their_own")
def test_rows_of_the_projects_models_stay_where_they_are() -> None:
    order = Order.objects.create(article="anchor")

    assert Order.objects.acquire(order)._state.db == "default"
    assert events(order.lease_resource) == []
    assert LeaseEvent.objects.using("default").count() == 1


@with_shard
def test_a_lease_is_released_where_it_was_acquired(shard: str) -> None:
    lease = Lease.objects.using(shard).acquire("crane:1")

    assert Lease.objects.release(lease)._state.db == shard
    assert Lease.objects.using(shard).get().released_at


# Managers, which keep rows for their verbs


@with_shard
def test_a_manager_acquires_in_the_database_that_it_is_of(shard: str) -> None:
    assert Lease.objects.acquire("crane:1")._state.db == "default"
    assert Lease.objects.db_manager(shard).acquire("crane:1")._state.db == shard
    assert Lease.objects.acquire("crane:2")._state.db == "default"


@with_shard
def test_a_manager_acquires_near_the_row_that_it_is_given(shard: str) -> None:
    far = Lease.objects.using(shard).create(resource="crane:1")
    near: Any = Lease.objects.db_manager(hints={"instance": far})

    assert near.acquire("crane:2")._state.db == shard


@with_shard
def test_a_manager_does_not_follow_a_row_of_the_project(shard: str) -> None:
    elsewhere = Order.objects.using(shard).create(article="tea")
    near: Any = Lease.objects.db_manager(hints={"instance": elsewhere})

    assert near.acquire("crane:2")._state.db == "default"


def test_a_manager_with_fewer_rows_acquires_no_others() -> None:
    class Unpacked(type(Order.objects)):  # type: ignore[misc]
        def get_queryset(self) -> Any:
            return super().get_queryset().filter(packed=False)

    unpacked = Unpacked()
    unpacked.model = Order
    order, packed = [Order.objects.create(packed=packed) for packed in (False, True)]

    assert unpacked.acquire(order).grants == 1
    with pytest.raises(LeaseHeld):
        unpacked.acquire(packed)


def test_verbs_of_a_manager_read_rows_that_were_made_since() -> None:
    for number in range(2):
        order = Order.objects.create()
        with Order.objects.hold(order):
            assert Order.objects.count() == number + 1
        held = Order.objects.renew(Order.objects.acquire(order))
        assert Order.objects.release(held).grants == 2


def test_a_verb_that_a_queryset_replaces_remembers_no_rows() -> None:
    seen: list[int] = []

    class Counted(LeasableQuerySet[Order]):
        def acquire(self, row: Order, **terms: Any) -> Order:
            seen.append(len(self))
            return super().acquire(row, **terms)

    counted: Any = Counted.as_manager()
    counted.model = Order
    for _ in range(2):
        counted.acquire(Order.objects.create())

    assert seen == [1, 2]


@with_shard
@pytest.mark.usefixtures("in_a_database_of_their_own")
def test_a_router_that_sends_our_models_elsewhere_is_an_error() -> None:
    (message,) = checks.check_routers()

    assert (message.id, "leasing_tasks.Task" in message.msg) == ("leasing.E017", True)
    with routed("leasing.routers.LeasingRouter"):
        assert checks.check_routers() == []


@with_shard
@pytest.mark.usefixtures("in_a_database_of_their_own")
def test_our_router_sends_our_models_where_the_setting_says_and_no_others() -> None:
    with routed("leasing.routers.LeasingRouter"):
        lease = Lease(resource="crane:1")
        lease.save()
        assert lease._state.db == "shard"
        assert router.db_for_read(Order) == router.db_for_write(Order) == "default"


def test_our_router_keeps_a_row_where_it_was_read() -> None:
    with routed("leasing.routers.LeasingRouter"):
        lease = make_lease()
        lease._state.db = "shard"
        assert router.db_for_write(Lease, instance=lease) == "shard"


@pytest.mark.django_db(databases="__all__")  # some checks of Django's ask them
def test_the_check_of_routers_is_registered() -> None:
    with routed(type("Away", (), {"db_for_write": lambda *args, **hints: "away"})()):
        assert "leasing.E017" in [message.id for message in run_checks()]
