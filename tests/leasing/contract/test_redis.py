"""The contract of stores over a real Redis, in real time."""

from __future__ import annotations

import pytest

from leasing.testing.contract import StoreRaces
from tests.leasing.stores import redis_cases

pytestmark = pytest.mark.slow


class RedisStoreTest(StoreRaces, redis_cases.ContractCases):
    pass
