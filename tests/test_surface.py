"""What users see of both packages is what the list of it says."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.fixtures import registry
from tests.surface import reading

__all__ = ["registry"]

pytestmark = pytest.mark.django_db


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
def test_pages_commands_logs_metrics_and_signals_show_what_the_list_says() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has figures of tables")
    found, listed = set(reading.lines()), set(reading.LIST.read_text().splitlines())

    added, gone = sorted(found - listed), sorted(listed - found)
    assert (added, gone) == ([], []), "`make surface` writes the list anew"


def test_the_list_is_sorted_and_names_each_thing_once() -> None:
    listed = reading.LIST.read_text().splitlines()

    assert listed == sorted(set(listed))
