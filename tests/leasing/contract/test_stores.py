"""The contract of stores, as users run it on their own: over rows and over memory."""

from __future__ import annotations

from django.test import SimpleTestCase, TestCase, TransactionTestCase

from leasing.store import NamedStore
from leasing.stores import stores
from leasing.stores.memory import MemoryStore
from leasing.testing import LeasingTestMixin
from leasing.testing.contract import StoreContract, StoreRaces


class _Stopped(LeasingTestMixin):
    """Time stands still, and passes at once."""

    def pass_time(self, seconds: float) -> None:
        self.lease_keeper.advance(seconds)


class RowStoreTest(_Stopped, StoreContract, TestCase):
    def make_store(self) -> NamedStore:
        return stores["default"]


class MemoryStoreTest(_Stopped, StoreContract, SimpleTestCase):
    databases = {"default"}  # for still_mine()

    def make_store(self) -> NamedStore:
        return MemoryStore()


class RowStoreRacesTest(StoreRaces, TransactionTestCase):
    def make_store(self) -> NamedStore:
        return stores["default"]


class MemoryStoreRacesTest(StoreRaces, SimpleTestCase):
    def make_store(self) -> NamedStore:
        return MemoryStore()
