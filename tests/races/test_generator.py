"""Two generators: one generates, a stop stops it, and one that dies is replaced."""

from __future__ import annotations

import pytest

from leasing.models import Lease
from tasks.generator import generator_status, start_generator, stop_generator
from tasks.models import GeneratorDesiredState, Task
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.races.support import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

RESOURCE = "leasing_tasks.generator"
ROUNDS = 10
TTL = 4


@pytest.fixture
def generators(spawn: Spawn) -> dict[str, Process]:
    options = ["--rate", "200", "--ttl", str(TTL)]
    return {
        name: spawn(["-m", "tests.races.generate", "--name", name, *options])
        for name in ("ann", "bob")
    }


def holder() -> str:
    return str(Lease.objects.active().filter(resource=RESOURCE).values_list("holder").first())


def runs() -> bool:
    return generator_status().status == "RUNNING"


def produces() -> None:
    """Wait until there are more tasks than there were."""
    begun = Task.objects.count()
    wait_for(lambda: Task.objects.count() > begun, timeout=PATIENCE)


def lease() -> Lease:
    return Lease.objects.get(resource=RESOURCE)


def desired() -> GeneratorDesiredState:
    return GeneratorDesiredState.objects.get()


@pytest.mark.usefixtures("generators")
def test_after_a_stop_nothing_is_generated_ten_times_of_ten() -> None:
    for round_number in range(1, ROUNDS + 1):
        start_generator(by="alice")
        produces()

        stop_generator(by="bob")
        made = Task.objects.count()

        assert generator_status().status == "STOPPED"
        # Its holder has seen the stop and left: whatever it would have made was made by now.
        wait_for(lambda: holder() == "None")
        assert Task.objects.count() == made, f"round {round_number}"
        assert desired().acknowledged_revision == 2 * round_number


def test_when_the_holder_is_killed_the_other_takes_over(generators: dict[str, Process]) -> None:
    start_generator()
    wait_for(runs, timeout=PATIENCE)
    first = lease()
    doomed = generators[first.holder.partition(":")[0]]

    doomed.kill()
    doomed.wait()
    wait_for(lambda: runs() and lease().holder != first.holder, timeout=PATIENCE)

    produces()
    assert lease().fencing_token > first.fencing_token
    assert desired().acknowledged_by == lease().holder
