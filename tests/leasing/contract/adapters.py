"""Adapters of the contract suite: each kind of leasable object, behind one face."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import pytest

from leasing.holding import Hold
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.runtime.aio import drive
from leasing.testing import events_of, in_memory
from leasing.testing.subject import What, subject_of
from leasing.validation.terms import Terms
from tests.shop.models import Order


class Adapter:
    """One thing, free at first, and how to hold it."""

    name: ClassVar[str]
    #: True if holds of it know max_hold, grace, priority and metadata.
    has_terms: ClassVar[bool]
    in_database: ClassVar[bool]

    def __init__(self) -> None:
        self.what = self.make()

    def make(self) -> What:
        """Return the object to hold, for ``leasing.testing``."""
        raise NotImplementedError

    def hold(self, **options: Any) -> Hold:
        """A hold on it, not yet entered."""
        raise NotImplementedError

    @property
    def row(self) -> Any:
        """The row as it stands, with ``now``."""
        return subject_of(self.what).look()

    def take(self, holder: str = "rival", ttl: float = 60.0) -> Any:
        """Grant it to ``holder``, who never renews; returns the row."""
        row, _ = subject_of(self.what).acquire(Terms.check(holder=holder, ttl=ttl))
        return row

    def grant(self, hold: Hold) -> Term:
        """The term that ``hold`` would begin, which nobody keeps."""
        return drive(hold._acquire())

    @classmethod
    def environment(cls) -> AbstractContextManager[Any]:
        return nullcontext() if cls.in_database else in_memory()


class NamedLease(Adapter):
    name = "named lease"
    has_terms = True
    in_database = True

    def make(self) -> What:
        return "berth:1"

    def hold(self, **options: Any) -> Hold:
        return Lease.objects.hold("berth:1", **options)


class RowOfModel(Adapter):
    name = "row of a model"
    has_terms = False
    in_database = True

    def make(self) -> What:
        return Order.objects.create(article="anchor")

    def hold(self, **options: Any) -> Hold:
        assert isinstance(self.what, Order)
        return self.what.hold(**options)


class NameInMemory(NamedLease):
    name = "name in memory"
    in_database = False


class RowInMemory(RowOfModel):
    name = "row in memory"
    in_database = False

    def make(self) -> What:
        return Order(pk=1, article="anchor")


ADAPTERS: tuple[type[Adapter], ...] = (NamedLease, RowOfModel, NameInMemory, RowInMemory)


def over(*adapters: type[Adapter], **database: bool) -> pytest.MarkDecorator:
    """Run a test or a class once for each adapter. ``database`` goes to the mark ``django_db``
    of those that need one; the others run without, and fail when they touch it."""
    params = [
        pytest.param(
            adapter,
            id=adapter.name.replace(" ", "-"),
            marks=[pytest.mark.django_db(**database)] if adapter.in_database else [],
        )
        for adapter in adapters
    ]
    return pytest.mark.parametrize("adapter_class", params)


over_each = over(*ADAPTERS)
over_each_with_terms = over(*(adapter for adapter in ADAPTERS if adapter.has_terms))
#: For the real keeper: what the test writes is committed.
over_each_live = over(*ADAPTERS, transaction=True)


def kinds(thing: Adapter) -> list[str]:
    """Return what happened to ``thing``, oldest first."""
    return [event.kind for event in events_of(thing.what)]
