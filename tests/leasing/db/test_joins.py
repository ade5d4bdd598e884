"""Querysets whose rows can be locked, and come once."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.contenttypes.fields import GenericForeignKey, GenericRelation
from django.contrib.contenttypes.models import ContentType
from django.db import models
from django.test.utils import isolate_apps

from leasing.db import joins
from leasing.models import Leasable
from tests.keys.models import Shipment as KeysShipment

Shipment: Any = KeysShipment


def is_refused(rows: Any) -> bool:
    try:
        joins.refuse_repeated(rows)
    except ValueError:
        return True
    return False


def test_rows_come_once_but_where_several_rows_of_another_table_belong_to_them() -> None:
    rows = Shipment.objects.all()

    assert not is_refused(rows)
    assert not is_refused(rows.filter(customer__name="ann", payer=None))
    assert is_refused(rows.filter(items__weight=1))
    assert is_refused(rows.distinct())
    assert not is_refused(rows.order_by("-customer__name", "?", "payer", "pk"))
    assert is_refused(rows.order_by("pk", "-items__weight"))
    assert is_refused(rows.order_by("items"))


def test_rows_may_be_ordered_by_many_as_their_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shipment._meta, "ordering", ["items__weight"])

    assert is_refused(Shipment.objects.all())
    assert not is_refused(Shipment.objects.order_by("pk"))
    assert not is_refused(Shipment.objects.order_by())


def test_rows_are_joined_that_another_table_chooses() -> None:
    rows = Shipment.objects.all()

    assert not joins.is_joined(rows.filter(customer=1, pk__in=rows.filter(items__weight=1)))
    assert joins.is_joined(rows.filter(customer__name="ann"))
    assert joins.is_joined(rows.alias(count=models.Count("pk")).filter(count=1))
    assert joins.is_joined(rows.distinct())


@isolate_apps("tests.leasing", "django.contrib.contenttypes")
def test_rows_of_a_generic_relation_are_several() -> None:
    class Note(models.Model):
        of = models.ForeignKey(ContentType, models.CASCADE)
        key = models.BigIntegerField()
        row = GenericForeignKey("of", "key")

        class Meta:
            app_label = "leasing"

    class Boat(Leasable):
        notes = GenericRelation(Note, "key", "of")

        class Meta(Leasable.Meta):
            app_label = "leasing"

    boats: Any = Boat.objects
    assert is_refused(boats.filter(notes__key=1))
