"""Statements that are compiled once: each call brings its own values, and its own filter."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import CharField
from django.db.models.signals import post_init
from django.db.models.sql import compiler as sql_compiler
from django.db.models.sql.compiler import SQLCompiler
from django.test.utils import CaptureQueriesContext

from leasing.db import statements as made
from leasing.db.statements import type_of
from leasing.exceptions import LeaseHeld
from leasing.models import Lease
from leasing.querysets import LeasableQuerySet
from leasing.testing.keeper import manual_keeper
from leasing.validation.terms import Terms
from tests.leasing.support import events, expire, grants, stored
from tests.shop.models import Order

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def cached_statement(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """The statements of one test alone."""
    statements: dict[Any, Any] = {}
    monkeypatch.setattr(made, "_cache", statements)
    return statements


def order(**fields: Any) -> Order:
    made: Order = Order.objects.create(article="tea", **fields)
    return made


@pytest.mark.usefixtures("on_postgresql")
def test_what_was_compiled_once_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def verbs(*names: str) -> None:
        for name in names:
            lease = Lease.objects.acquire(name)
            Lease.objects.renew(lease)
            Lease.objects.release(lease)
        Lease.objects.acquire_many(names).give_back()
        row = Order.objects.acquire(order())
        Order.objects.release(Order.objects.renew(row))
        Order.objects.order_by("pk").claim(0)

    def no_more(compiler: Any, **how: Any) -> Any:
        if "UPDATE" in type(compiler).__name__.upper():
            pytest.fail("an update was compiled")
        return plain(compiler, **how)

    Lease.objects.bulk_create([Lease(resource=name) for name in "abcd"])
    verbs("a", "b")
    plain = SQLCompiler.as_sql
    monkeypatch.setattr(sql_compiler.SQLUpdateCompiler, "as_sql", no_more)

    with pytest.raises(pytest.fail.Exception):
        Lease.objects.filter(resource="a").update(holder="")
    Lease.objects.acquire("c")
    Lease.objects.release(Lease.objects.renew(Lease.objects.acquire("d")))
    Lease.objects.acquire_many(["a", "b"]).give_back()
    Order.objects.renew(Order.objects.acquire(order()))


@pytest.mark.usefixtures("on_postgresql")
def test_a_statement_is_made_once() -> None:
    """A cursor knows the statement again that it has sent before by its text."""
    Lease.objects.create(resource="a")

    def sent() -> list[str]:
        texts: list[str] = []

        def note(execute: Any, sql: str, *rest: Any) -> Any:
            if "SKIP LOCKED" in sql:
                texts.append(sql)
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            lease = Lease.objects.renew(Lease.objects.acquire("a"))
            Lease.objects.renew_many(grants(lease))
            Lease.objects.release(lease)
            Lease.objects.acquire_many(["a"]).give_back()
        return texts

    first, second = sent(), sent()

    assert [id(text) for text in first] == [id(text) for text in second]
    assert len(first) == 6


@pytest.mark.usefixtures("on_postgresql")
def test_a_refusal_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = order()
    held = [Lease.objects.acquire("a"), Order.objects.acquire(mine)]

    def refused() -> list[str]:
        with pytest.raises(LeaseHeld) as lease:
            Lease.objects.acquire("a")
        with pytest.raises(LeaseHeld) as row:
            Order.objects.acquire(mine)
        return [lease.value.holder, row.value.holder]

    assert refused() == [each.holder for each in held]
    monkeypatch.setattr(SQLCompiler, "as_sql", lambda *how, **more: pytest.fail("compiled"))

    assert refused() == [each.holder for each in held]


@pytest.mark.usefixtures("on_postgresql")
def test_a_verb_on_one_row_is_planned_for_one_row() -> None:
    # For the several that an array may bring, a table of a hundred is read from end to end.
    Lease.objects.bulk_create([Lease(resource=f"{number}") for number in range(100)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE leasing_lease")
        with CaptureQueriesContext(connection) as queries:
            Lease.objects.release(Lease.objects.renew(Lease.objects.acquire("17")))
        updates = [each["sql"] for each in queries if "UPDATE" in each["sql"]]
        expected = []
        for update in updates:
            cursor.execute(f"EXPLAIN (FORMAT JSON) {update}")
            expected += [scan["Plan Rows"] for scan in scans_of(cursor.fetchone()[0][0]["Plan"])]

    assert (len(updates), set(expected)) == (3, {1})


def scans_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of ``plan`` that read the table of leases."""
    if plan.get("Relation Name") == "leasing_lease" and plan["Node Type"] != "ModifyTable":
        yield plan
    for part in plan.get("Plans", []):
        yield from scans_of(part)


def test_each_call_brings_its_own_values() -> None:
    ann = Lease.objects.acquire("a", holder="ann", ttl=10, metadata={"n": 1}, max_hold=60)
    bob = Lease.objects.acquire("b", holder="bob", ttl=20, metadata={"n": 2}, max_hold=70)
    eve = Lease.objects.acquire("c", holder="eve", ttl=30, priority=3, grace=5, metadata={})

    for lease in (ann, bob, eve):
        assert stored(lease) == {name: getattr(lease, name) for name in lease.verb_columns}
    assert [lease.holder for lease in (ann, bob, eve)] == ["ann", "bob", "eve"]
    assert [lease.metadata for lease in (ann, bob, eve)] == [{"n": 1}, {"n": 2}, {}]
    assert [lease.ttl for lease in (ann, bob, eve)] == [
        timedelta(seconds=seconds) for seconds in (10, 20, 30)
    ]
    assert [lease.ends_at is None for lease in (ann, bob, eve)] == [False, False, True]
    assert (eve.priority, eve.grace) == (3, timedelta(seconds=5))


@pytest.mark.parametrize("packed", [True, False])
def test_the_filter_of_a_queryset_counts(packed: bool) -> None:
    mine, other = order(packed=packed), order(packed=not packed)
    Order.objects.release(Order.objects.acquire(order()))

    with pytest.raises(LeaseHeld):
        Order.objects.filter(packed=packed).acquire(other)
    assert Order.objects.filter(packed=packed).acquire(mine) == mine
    assert Order.objects.filter(packed=not packed).claim(1) == [other]


def test_a_key_is_no_part_of_the_text() -> None:
    first, second = order(), order()

    assert [Order.objects.acquire(row).pk for row in (first, second)] == [first.pk, second.pk]


@pytest.mark.parametrize(
    "judging",
    [
        lambda terms: "long" if terms.ttl > timedelta(seconds=60) else "short",
        lambda terms: "long" if terms.ttl == timedelta(seconds=90) else "short",
        lambda terms: "long" if terms.ttl and terms.ttl.total_seconds() == 90 else "short",
        lambda terms: {90: "long"}.get(terms.ttl.seconds, "short"),
    ],
    ids=["order", "equality", "truth", "attribute"],
)
def test_columns_that_python_chooses_by_the_terms_are_chosen_at_each_call(
    judging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LeasableQuerySet.granting

    def granting(rows: Any, terms: Terms) -> dict[str, Any]:
        return plain(rows, terms) | {"article": judging(terms)}

    monkeypatch.setattr(LeasableQuerySet, "granting", granting)
    kinds = [Order.objects.acquire(order(), ttl=ttl).article for ttl in (30, 90, 30)]
    claimed = [Order.objects.filter(pk=order().pk).claim(1, ttl=ttl) for ttl in (90, 30)]

    assert kinds == ["short", "long", "short"]
    assert [rows[0].article for rows in claimed] == ["long", "short"]


def test_terms_that_are_left_out_are_written_as_their_defaults() -> None:
    terms: list[dict[str, Any]] = [
        {},
        {"priority": 2, "grace": 5, "metadata": {"n": 1}},
        {"priority": 3, "grace": 6, "metadata": {"n": 2}},
        {"priority": 0, "grace": 0, "metadata": {}},
    ]
    granted = []
    for each in terms:
        lease = Lease.objects.acquire("crane", **each)
        lease.refresh_from_db()
        granted.append((lease.priority, lease.grace.total_seconds(), lease.metadata))
        Lease.objects.release(lease)

    assert granted == [(0, 0, {}), (2, 5, {"n": 1}), (3, 6, {"n": 2}), (0, 0, {})]


def test_nothing_is_kept_while_a_test_has_the_time_in_its_hands(
    cached_statement: dict[Any, Any],
) -> None:
    with manual_keeper() as clocks:
        first = Order.objects.acquire(order(), ttl=10)
        clocks.advance(60)
        second = Order.objects.acquire(order(), ttl=10)

    assert second.expires_at - first.expires_at == timedelta(seconds=60)
    assert cached_statement == {}


def test_a_row_that_names_its_resource_itself_is_noted_by_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Order, "lease_resource", property(lambda row: f"desk of {row.article}"))
    mine = Order.objects.acquire(order())
    expire(mine)
    (again,) = Order.objects.claim(1)
    Order.objects.release(again)

    assert events("desk of tea") == ["acquired", "taken_over", "released"]


def test_a_granted_row_stands_as_it_is_read() -> None:
    terms: dict[str, Any] = {
        "holder": "ann",
        "ttl": 10,
        "metadata": {"n": [1]},
        "max_hold": 60,
        "priority": 2,
    }
    granted = [
        Lease.objects.acquire("a", **terms),
        *Lease.objects.acquire_many(["b", "c"], ttl=20),
        Order.objects.acquire(order()),
        *Order.objects.claim(3),
    ]

    for row in granted:
        read = type(row)._default_manager.get(pk=row.pk)
        names = [field.attname for field in row._meta.concrete_fields]
        assert {name: row.__dict__[name] for name in names} == {
            name: read.__dict__[name] for name in names
        }
        assert (row._state.db, row._state.adding) == (read._state.db, read._state.adding)
        assert row.expires_at.tzinfo is read.expires_at.tzinfo


def test_a_holder_is_read_as_text_whatever_kind_of_text_it_was() -> None:
    class Name(str):
        __slots__ = ()

    lease = Lease.objects.acquire("a", holder=Name("ann"))

    assert type(lease.holder) is str


def test_what_is_granted_without_metadata_shares_none() -> None:
    first, second = Lease.objects.acquire_many(["a", "b"])
    first.metadata["n"] = 1

    assert second.metadata == Lease.objects.acquire("c").metadata == {}


def test_whoever_listens_for_instances_hears_of_granted_rows() -> None:
    made: list[Any] = []

    def hear(instance: Any, **named: Any) -> None:
        made.append(instance)

    post_init.connect(hear, sender=Lease)
    try:
        lease = Lease.objects.acquire("a")
    finally:
        post_init.disconnect(hear, sender=Lease)

    assert any(each is lease for each in made)


@pytest.mark.usefixtures("on_postgresql")
def test_a_text_in_an_array_is_longer_than_its_column_and_stays_so() -> None:
    kind = type_of(CharField(max_length=3), connection)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 'abc' = ANY(%s::{kind}[])", ["{abcd}"])
        assert cursor.fetchone() == (False,)
