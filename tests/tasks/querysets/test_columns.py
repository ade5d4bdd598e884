"""The places of a task's columns in PostgreSQL."""

from __future__ import annotations

import pytest
from django.db import connection

from tasks.models import Task

pytestmark = pytest.mark.django_db


@pytest.mark.skipif(connection.vendor != "postgresql", reason="PostgreSQL's alone")
def test_columns_of_a_fixed_size_come_first_and_those_of_few_tasks_last() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT CASE WHEN attlen < 0 THEN 'text' ELSE 'fixed' END, attnotnull"
            " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            [Task._meta.db_table],
        )
        places = cursor.fetchall()
    order = {("fixed", True): 0, ("text", True): 1}
    kinds = [order.get(place, 2) for place in places]
    assert kinds == sorted(kinds)
