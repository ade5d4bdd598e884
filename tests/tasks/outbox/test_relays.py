"""Several relays at once, as processes of a project without Celery, some of which die."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from tasks.models import OutboxMessage
from tasks.outbox import publish
from tests.conftest import Spawn
from tests.processes import Process, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

MESSAGES, KEYS = 2_000, 100
RELAY = ["manage.py", "run_relay", "--ttl", "2"]


class Receiver:
    """What the relays of a test have published."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "received"
        self.path.touch()
        self.env = {
            "DJANGO_SETTINGS_MODULE": "tests.outbox_settings",
            "RECEIVED": str(self.path),
        }

    @property
    def got(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver(tmp_path)


def test_relays_that_are_killed_and_stopped_lose_nothing_and_keep_the_order_of_each_key(
    spawn: Spawn, receiver: Receiver
) -> None:
    chance = random.Random(7)
    with transaction.atomic():
        publish("bad", 0, key="k0")
        sent = [publish("slow", n, key=f"k{n % KEYS}") for n in range(1, MESSAGES)]
    relays: list[Process] = [spawn(RELAY, **receiver.env) for _ in range(3)]

    def left() -> int:
        return OutboxMessage.objects.pending().exclude(key="k0").count()

    faults = [Process.kill, Process.terminate, Process.pause, Process.kill, Process.terminate]
    for number, fault in enumerate(faults, 1):
        wait_for(lambda: left() <= MESSAGES * (1 - number / 8), timeout=60)  # noqa: B023
        relay = relays.pop(chance.randrange(len(relays)))
        fault(relay)
        relays.append(spawn(RELAY, **receiver.env))
        if fault is Process.pause:
            relays.insert(0, relay)
            wait_for(lambda: left() <= MESSAGES / 2, timeout=60)
            relay.resume()
        elif fault is Process.terminate:
            assert relay.wait(30) == 0, relay.output
    wait_for(lambda: left() == 0, timeout=60)

    got = receiver.got
    uids = {str(message.uid): message.pk for message in sent if message.key != "k0"}
    assert {line["uid"] for line in got} == set(uids)
    assert all(uids[line["uid"]] == line["id"] for line in got)
    firsts: defaultdict[str, list[int]] = defaultdict(list)
    for uid in dict.fromkeys(line["uid"] for line in got):
        line = next(each for each in got if each["uid"] == uid)
        firsts[line["key"]].append(line["id"])
    assert len(firsts) == KEYS - 1
    assert all(ids == sorted(ids) for ids in firsts.values())
    assert len({line["by"] for line in got}) >= 3
    poisoned = OutboxMessage.objects.get(topic="bad")
    assert poisoned.failures >= 1 and "poisoned" in poisoned.last_error


def test_two_relays_publish_in_the_same_second(spawn: Spawn, receiver: Receiver) -> None:
    for _ in range(2):
        spawn(RELAY, **receiver.env)

    def both_publish() -> bool:
        with transaction.atomic():
            for number in range(200):
                publish("slow", number, key=f"k{number}")
        by_second = Counter((int(line["at"]), line["by"]) for line in receiver.got)
        seconds = Counter(second for second, _ in by_second)
        return max(seconds.values(), default=0) == 2

    wait_for(both_publish, timeout=60)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("shop.nothing.send", "cannot be loaded: No module named 'shop'"),
        ("tests.tasks.outbox.receiver.missing", 'does not define a "missing"'),
        ("tests.tasks.outbox.receiver.later", "later is a coroutine function"),
        ("tests.tasks.outbox.receiver.nothing", "nothing is not callable"),
        ("tests.tasks.outbox.receiver.lazily", "lazily is a generator function"),
    ],
)
def test_a_relay_whose_publisher_is_none_ends_with_a_sentence(
    spawn_cold: Spawn, receiver: Receiver, path: str, reason: str
) -> None:
    relay = spawn_cold([*RELAY, "--settings", "tests.outbox_settings"], OUTBOX_PUBLISHER=path)

    assert relay.wait(60) == 1
    assert "leasing_tasks.E033" in relay.output and reason in relay.output
    assert "Traceback" not in relay.output
