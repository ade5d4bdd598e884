"""The contract of stores, as users run it on their own: over rows, memory and HTTP."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from django.test import SimpleTestCase, TestCase, TransactionTestCase

from leasing.holding.term import Term
from leasing.store import NamedStore
from leasing.stores import stores
from leasing.stores.memory import MemoryStore
from leasing.testing import LeasingTestMixin
from leasing.testing.contract import StoreContract, StoreRaces
from tests.leasing.stores.served import InProcess, store_of_api


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


class HttpStoreTest(_Stopped, StoreContract, TestCase):
    def make_store(self) -> NamedStore:
        self.network = InProcess()
        return store_of_api(self.network)

    def is_serving(self) -> bool:
        return self.network.is_serving

    def forged(self, grant: Term) -> tuple[Any, uuid.UUID]:
        return replace(grant.key, lease_key="x" * 43), grant.grant_id


class RowStoreRacesTest(StoreRaces, TransactionTestCase):
    def make_store(self) -> NamedStore:
        return stores["default"]


class MemoryStoreRacesTest(StoreRaces, SimpleTestCase):
    def make_store(self) -> NamedStore:
        return MemoryStore()
