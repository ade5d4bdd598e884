"""Leases of rows by keys of every kind, and in tables of every kind, through every verb."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pytest
from django.db import connection, transaction
from django.urls import resolve, reverse

from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.models import LeaseEvent, leasable
from leasing.models import kinds as leasable_kinds
from leasing.testing.keeper import ManualKeeper
from leasing.web.paging import chunks_of
from tests.keys import models as keys
from tests.leasing.support import grants, stored, usurp

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("tables", "form")]

MOMENT = datetime(2030, 1, 1, 12, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), keys.tables():
        yield


def by(model: type[Any], key: Callable[[int], Any] = lambda n: n) -> Any:
    """A case: three rows of ``model``."""

    def make(number: int) -> Any:
        return model.objects.create(pk=key(number))

    return pytest.param(make, id=model.__name__)


def by_place(number: int) -> Any:
    return keys.ByPlace.objects.create(
        key=keys.Place._default_manager.create(slug=f"place-{number}")
    )


def by_row(number: int) -> Any:
    return keys.ByRow.objects.create(key=keys.BySlug.objects.create(pk=f"row-{number}"))


def of_code(number: int) -> Any:
    return keys.OfCode.objects.create(key=keys.ByCode.objects.create(pk=keys.Code(number)))


def elsewhere(number: int) -> Any:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no schemas")
    return keys.Elsewhere.objects.create(pk=number)


CASES = [
    by(keys.BySmallAuto),
    by(keys.ByPositive, lambda n: 2**40 + n),
    by(keys.BySlug, "slug-{}".format),
    by(keys.ByDecimal, lambda n: Decimal(n) / 4),
    by(keys.ByDate, lambda n: date(2030, 1, n)),
    by(keys.ByMoment, lambda n: MOMENT + timedelta(microseconds=n)),
    by(keys.ByDuration, lambda n: timedelta(hours=n)),
    by(keys.ByUuid, lambda n: uuid.UUID(int=n)),
    by(keys.ByAddress, "10.0.0.{}".format),
    by(keys.ByCode, keys.Code),
    by(keys.ByUlid, "{:032x}".format),
    by(keys.ByLongText, lambda n: f'"{n}", \\ {{}} %s /:?#' + "é" * 280),
    pytest.param(by_place, id="ByPlace"),
    pytest.param(by_row, id="ByRow"),
    pytest.param(of_code, id="OfCode"),
    pytest.param(elsewhere, id="Elsewhere"),
    by(keys.Parcel),
]


@pytest.fixture(params=CASES)
def rows(request: pytest.FixtureRequest) -> list[Any]:
    """Three free rows, in the order of their keys, as they are read."""
    made = [request.param(number) for number in (1, 2, 3)]
    return list(type(made[0]).objects.order_by("pk"))


def kinds(row: Any) -> list[str]:
    """Return the ledger's events of ``row``, under its name and its key."""
    of_row = LeaseEvent.objects.filter(resource=row.lease_resource, key=str(row.pk))
    return list(of_row.order_by("id").values_list("kind", flat=True))


def test_a_row_is_taken_renewed_and_given_back(rows: list[Any]) -> None:
    row, other, _ = rows
    objects = type(row).objects
    mine = objects.acquire(row, holder="ann", ttl=10)
    assert (type(mine), mine.pk, mine.holder, mine.renewals) == (type(row), row.pk, "ann", 0)
    with pytest.raises(LeaseHeld, match="is held by ann"):
        objects.acquire(row)
    objects.acquire(other)

    objects.renew(mine)
    assert stored(row)["renewals"] == mine.renewals == 1
    (term,) = LeaseEvent.objects.held_at(row, mine.acquired_at + timedelta(seconds=1))
    assert (term.holder, term.held_until) == ("ann", mine.expires_at)
    with transaction.atomic():
        objects.prove(mine)
    objects.release(mine)
    objects.release(mine)
    assert list(objects.active()) == [other]
    assert kinds(row) == ["acquired", "released"]


def test_a_late_verb_changes_nothing(rows: list[Any]) -> None:
    row, *_ = rows
    objects = type(row).objects
    late = objects.acquire(row)
    usurp(row, "eve")
    before = stored(row)

    for verb in (objects.renew, objects.release, objects.prove):
        with pytest.raises(LeaseLost, match="eve has held it"):
            verb(late)
    assert stored(row) == before
    assert kinds(row) == ["acquired", "refused", "refused", "refused"]


def test_rows_are_kept_past_their_ttl(rows: list[Any], clocks: ManualKeeper) -> None:
    held, *others = rows
    model = type(held)
    with held.hold(ttl=10) as hold, model.objects.claim(2, ttl=10) as claimed:
        assert list(claimed) == others
        clocks.advance(15)
        hold.ensure()
        claimed.ensure()
        assert (hold.key, hold.resource) == (held.pk, held.lease_resource)
        assert model.objects.active().count() == 3

    assert not model.objects.active().exists()
    assert [kinds(row) for row in rows] == [["acquired", "released"]] * 3
    assert list(model.objects.order_by("-pk").claim(2)) == others[::-1]


def test_those_of_several_that_were_lost_are_told_apart(rows: list[Any]) -> None:
    objects = type(rows[0]).objects
    mine = [objects.acquire(row) for row in rows]
    usurp(mine[1], "eve")

    answer = objects.renew_many(grants(*mine))
    assert list(answer.lost) == [rows[1].pk]
    assert answer.renewed.keys() == {rows[0].pk, rows[2].pk}
    assert [stored(row)["renewals"] for row in rows] == [1, 0, 1]

    assert objects.filter(pk=rows[0].pk).revoke("enough", "root") == 1
    assert list(objects.release_many(mine)) == [rows[0].pk, rows[1].pk]
    assert list(objects.active()) == [rows[1]]
    assert objects.raise_tokens(60) == 3
    assert kinds(rows[0]) == ["acquired", "revoked", "refused"]


def test_pages_list_and_find_rows_by_their_keys(
    rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = rows[0].leased_model()
    for row in rows:
        model.objects.acquire(row)
    kinds = {model: "row"}
    monkeypatch.setattr(leasable_kinds, "lease_kinds", lambda: kinds)
    monkeypatch.setattr(leasable, "lease_kinds", lambda: kinds)
    listed = leasable_kinds.listed(model)

    every = [row.pk for chunk in chunks_of(listed, size=1) for row in chunk]
    assert every == [row.pk for row in reversed(rows)]
    for row in rows:
        address = reverse("leasing:detail", args=[row.lease_id])
        found = resolve(unquote(address)).kwargs["lease_id"]
        assert leasable_kinds.find_row(found).pk == row.pk
        for name in (str(row.pk), row.lease_resource):
            assert listed.get(leasable_kinds.matching(model, name)).pk == row.pk
