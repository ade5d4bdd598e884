"""The contract of stores over a majority of three real Redis servers, in real time."""

from __future__ import annotations

import pytest
from django.test import SimpleTestCase

from leasing.store import NamedStore
from leasing.stores.majority import MajorityStore
from leasing.testing.contract import StoreContract, StoreRaces
from tests.brokers import Broker
from tests.leasing.stores.redis_servers import served

pytestmark = pytest.mark.slow


class MajorityStoreTest(StoreContract, StoreRaces, SimpleTestCase):
    renewed_ttl = 3.0  # three servers and their clients are on one machine
    servers: list[Broker]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.servers = cls.enterClassContext(served(3))

    def make_store(self) -> NamedStore:
        store = MajorityStore(members=[each.url for each in self.servers], timeout=5)
        self.addCleanup(store.disconnect)
        store.admit(is_nothing_held=True)
        return store
