"""The rows of workers that have a parent."""

from __future__ import annotations

import pytest

from tasks.models import Worker
from tasks.worker.process import Until
from tests.factories import make_worker
from tests.processes import wait_for
from tests.tasks.workers import ended, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]


def test_a_worker_says_its_parent_and_takes_the_place_of_its_predecessor() -> None:
    """Of which there may be many a minute. One that is not known to have stopped stays."""
    for name, index, state in (
        ("fleet:1:before", 1, "stopped"),
        ("fleet:1:late", 1, "gone"),
        ("fleet:2:beside", 2, "stopped"),
    ):
        make_worker(name=name, fleet="fleet", fleet_index=index, state=state)
    make_worker(name="other", fleet="another", fleet_index=1, state="stopped")
    make_worker(name="bare", state="stopped")

    with working(name="fleet:1:x", fleet=("fleet", 1, 3), until=Until.ONCE) as worker:
        wait_for(ended(worker))

    names = ["bare", "fleet:1:late", "fleet:1:x", "fleet:2:beside", "other"]
    assert list(Worker.objects.order_by("name").values_list("name", flat=True)) == names
    row = Worker.objects.get(name="fleet:1:x")
    assert (row.fleet, row.fleet_index, row.fleet_restarts) == ("fleet", 1, 3)
