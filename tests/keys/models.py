"""Leasable models, one for each kind of key, and of table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

from django.db import connections, models

from leasing.models import Leasable
from leasing.querysets import LeasableQuerySet

#: A schema other than the one that PostgreSQL looks into first.
ELSEWHERE = "elsewhere"


class Code:
    """A key in Python, where the field says so."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __str__(self) -> str:
        return f"code-{self.number}"


class CodeField(models.BigIntegerField):  # type: ignore[type-arg]
    """A number in the database, and a Code in Python, as a hashid is."""

    validators: ClassVar[list[Any]] = []  # numbers have bounds

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return self.to_python(value)

    def to_python(self, value: Any) -> Any:
        if value is None or isinstance(value, Code):
            return value
        return Code(int(str(value).removeprefix("code-")))

    def get_prep_value(self, value: Any) -> Any:
        return value.number if isinstance(value, Code) else super().get_prep_value(value)


class UlidField(models.CharField):  # type: ignore[type-arg]
    """A UUID in PostgreSQL, and 32 digits of text in Python."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "max_length": 32})

    def db_type(self, connection: Any) -> Any:
        return "uuid" if connection.vendor == "postgresql" else super().db_type(connection)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return value.hex if isinstance(value, uuid.UUID) else value


class Place(models.Model):
    """Something that is not leasable, by whose key others go."""

    slug = models.SlugField(primary_key=True)

    class Meta:
        app_label = "keys"

    def __str__(self) -> str:
        return self.slug


def _keyed(name: str, key: models.Field[Any, Any], **options: Any) -> type[Any]:
    """Return a leasable model whose primary key is ``key``."""
    meta = type("Meta", (Leasable.Meta,), {"app_label": "keys", **options})
    fields = {"key": key, "Meta": meta, "__module__": __name__, "note": models.TextField()}
    return type(name, (Leasable,), fields)


BySmallAuto = _keyed("BySmallAuto", models.SmallAutoField(primary_key=True))
ByPositive = _keyed("ByPositive", models.PositiveBigIntegerField(primary_key=True))
BySlug = _keyed("BySlug", models.SlugField(primary_key=True))
ByDecimal = _keyed(
    "ByDecimal", models.DecimalField(primary_key=True, max_digits=8, decimal_places=2)
)
ByDate = _keyed("ByDate", models.DateField(primary_key=True))
ByMoment = _keyed("ByMoment", models.DateTimeField(primary_key=True))
ByDuration = _keyed("ByDuration", models.DurationField(primary_key=True))
ByUuid = _keyed("ByUuid", models.UUIDField(primary_key=True, default=uuid.uuid4))
ByAddress = _keyed("ByAddress", models.GenericIPAddressField(primary_key=True))
ByCode = _keyed("ByCode", CodeField(primary_key=True))
ByUlid = _keyed("ByUlid", UlidField(primary_key=True))
ByLongText = _keyed("ByLongText", models.CharField(primary_key=True, max_length=300))
ByPlace = _keyed("ByPlace", models.OneToOneField(Place, models.CASCADE, primary_key=True))
ByRow = _keyed("ByRow", models.OneToOneField(BySlug, models.CASCADE, primary_key=True))
OfCode = _keyed("OfCode", models.OneToOneField(ByCode, models.CASCADE, primary_key=True))
Elsewhere = _keyed(
    "Elsewhere", models.BigAutoField(primary_key=True), db_table=f'{ELSEWHERE}"."orders'
)


class Parcel(Leasable):
    """A row of the plainest kind."""

    note = models.TextField()

    class Meta(Leasable.Meta):
        app_label = "keys"

    def __str__(self) -> str:
        return self.note


class Customer(models.Model):
    """Whom parcels belong to."""

    name = models.TextField()
    is_vip = models.BooleanField(default=False)

    class Meta:
        app_label = "keys"

    def __str__(self) -> str:
        return self.name


class Item(models.Model):
    """One of several of a shipment."""

    weight = models.IntegerField()

    class Meta:
        app_label = "keys"

    def __str__(self) -> str:
        return str(self.weight)


class Shipment(Leasable):
    """A row that refers to others, and of which some are several."""

    customer = models.ForeignKey(Customer, models.CASCADE)
    payer = models.ForeignKey(Customer, models.CASCADE, null=True, related_name="paid")
    items = models.ManyToManyField(Item)

    class Meta(Leasable.Meta):
        app_label = "keys"

    def __str__(self) -> str:
        return f"shipment {self.pk}"


#: Whose letters a request may see; None: outside of requests.
tenant: ContextVar[str | None] = ContextVar("tenant", default=None)


class LetterQuerySet(LeasableQuerySet["Letter"]):
    """Letters with a state of their own."""

    def holding(self) -> Self:
        return super().holding().filter(is_open=True)


class LetterManager(models.Manager.from_queryset(LetterQuerySet)):  # type: ignore[misc]
    """The letters of a request's tenant, as a library for tenants has it."""

    def get_queryset(self) -> Any:
        if tenant.get() is None:
            raise LookupError("there is no tenant outside of requests")
        return super().get_queryset().filter(owner=tenant.get())


class Letter(Leasable):
    """A row that the default manager, and the base manager, show to its owner alone."""

    owner = models.TextField()
    is_open = models.BooleanField(default=True)

    objects = LetterManager()

    class Meta(Leasable.Meta):
        app_label = "keys"
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.owner


JOINED: tuple[type[models.Model], ...] = (Customer, Item, Shipment, Parcel)

TABLES: tuple[type[models.Model], ...] = (
    *(Place, BySmallAuto, ByPositive, BySlug, ByDecimal, ByDate, ByMoment, ByDuration),
    *(ByUuid, ByAddress, ByCode, ByUlid, ByLongText, ByPlace, ByRow, OfCode),
    *(Parcel, Elsewhere),
)


@contextmanager
def tables(using: str = "default", made: Sequence[type[models.Model]] = TABLES) -> Iterator[None]:
    """Make the tables for as long as the block runs."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE SCHEMA {ELSEWHERE}")
    else:
        made = [model for model in made if model is not Elsewhere]
    with connection.schema_editor() as editor:
        for model in made:
            editor.create_model(model)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            for model in reversed(made):
                editor.delete_model(model)
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"DROP SCHEMA {ELSEWHERE}")
