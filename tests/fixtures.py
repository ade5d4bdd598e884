"""Fixtures for the tests of both packages; the conftest of each imports them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.pages import signed_in


def client_with(*permissions: str, **fields: Any) -> Any:
    """Return a fixture: a browser in which a user with ``permissions`` has signed in.

    ``operator = client_with("leasing.view_lease", "leasing.revoke_lease", name="olga")``
    """

    @pytest.fixture
    def client() -> Client:
        return signed_in(*permissions, **fields)

    return client
