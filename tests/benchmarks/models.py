"""A user's model that is leased, without migrations: ``migrate --run-syncdb`` makes its table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from leasing.models import Leasable
from leasing.querysets import LeasableQuerySet


class UnpackedManager(models.Manager.from_queryset(LeasableQuerySet)):  # type: ignore[misc]
    """Parcels that are not packed: the manager hides the others."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(packed=False)


class Parcel(Leasable):
    """A parcel that one packer at a time works on."""

    article = models.CharField(max_length=100)
    packed = models.BooleanField(default=False)

    objects: ClassVar[Any] = LeasableQuerySet.as_manager()
    unpacked: ClassVar[Any] = UnpackedManager()

    class Meta(Leasable.Meta):
        app_label = "benchmarks"

    def __str__(self) -> str:
        return self.article
