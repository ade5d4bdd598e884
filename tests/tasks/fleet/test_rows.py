"""The rows of workers that have a parent."""

from __future__ import annotations

import socket

import pytest

from tasks.models import Worker
from tasks.worker.process import Until
from tests.factories import make_worker
from tests.processes import wait_for
from tests.tasks.workers import ended, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]


def test_a_worker_says_its_parent_and_takes_the_place_of_its_predecessor() -> None:
    """Of which there may be many a minute. One that is not known to have stopped stays."""
    before, late, beside, own = (
        f"fleet:{place}" for place in ("1:0000000a", "1:0000000b", "2:0000000c", "1:0000000d")
    )
    host = socket.gethostname()
    for name, index, state in ((before, 1, "stopped"), (late, 1, "late"), (beside, 2, "stopped")):
        make_worker(name=name, fleet="fleet", fleet_index=index, state=state, hostname=host)
    make_worker(name="other", fleet="another", fleet_index=1, state="stopped", hostname=host)

    with working(name=own, fleet=("fleet", 1, 3), until=Until.ONCE) as worker:
        wait_for(ended(worker))

    names = {late, own, beside, "other"}
    assert set(Worker.objects.values_list("name", flat=True)) == names
    row = Worker.objects.get(name=own)
    assert (row.fleet, row.fleet_index, row.fleet_restarts) == ("fleet", 1, 3)
