"""The outbox: writers that change what a key stands for before they publish, and three relays.

The receiver is a line in the history of the relay that publishes. It fails at times, and takes its
time at others, so that relays are stopped and killed in the midst of a message.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

from django.db import Error, transaction

from tasks.outbox import publish
from tests.chaos.faults import FAULTS as ALL
from tests.chaos.faults import TTL
from tests.chaos.history import FAILED, UNKNOWN, Operation, recorder
from tests.chaos.task_rules import again_after_faults, published_in_order
from tests.chaos.workload import WORKER, Actor, Part, Run, Violation, calls

SETTLE = 120.0
FIRST = ("kill-holding", "stop", "kill-worker")
FAULTS = [
    name for name in ALL if name not in ("stop-inside", "kill-web", "kill-child", "kill-parent")
]
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.chaos.task_settings", "LEASING_TTL": str(TTL)}
KEYS = 12
#: Messages that may wait before a writer pauses.
BACKLOG = 200


class Refused(Exception):
    """The receiver did not take a message."""


def actors(run: Run) -> list[Actor]:
    relay = ["manage.py", "run_relay", "--skip-checks", "--ttl", str(TTL)]
    relays = [Actor(f"relay-{n}", relay, kind=WORKER, lasts=True) for n in range(3)]
    return [calls(write, 0), calls(write, 1), *relays]


def prepare(run: Run) -> None:
    from django.contrib.auth.models import Group

    Group.objects.bulk_create([Group(name=f"key:{number}") for number in range(KEYS)])


def write(part: Part) -> None:
    """Publish messages, in transactions that are rolled back at times."""
    from django.contrib.auth.models import Group

    for number in range(1_000_000):
        if part.stop.wait(part.random.uniform(0.0, 0.05)):
            return
        key = part.random.choice(["", *(f"key:{number}" for number in range(KEYS))])
        tag = f"{part.recorder.process}-{number}"
        with part.recorder.call("publish", key, passes=(Error,), tag=tag) as call:
            try:
                with transaction.atomic():
                    if key:
                        Group.objects.select_for_update().get(name=key).save()
                    publish("chaos", {"tag": tag}, key=key)
                    if part.random.random() < 0.1:
                        raise Refused
            except Refused:
                call.failed(error="RolledBack")
        if call.outcome == UNKNOWN:  # the database is away
            part.stop.wait(0.3)
        with part.recorder.call("backlog", passes=(Error,)):
            while number % 20 == 0 and _messages().pending().count() > BACKLOG:
                if part.stop.wait(0.2):
                    break


def receive(message: Any) -> None:
    """Take a message: TASK_QUEUE["OUTBOX_PUBLISHER"]."""
    chance = zlib.crc32(f"{message.uid}{time.monotonic()}".encode()) % 100
    if chance < 2:
        recorder().note("refuse", message.key)
        raise Refused
    time.sleep(0.5 if chance < 4 else 0.0)
    recorder().note("receive", message.key, sequence=message.pk, tag=message.payload["tag"])
    if chance > 95:  # ``kill-holding`` waits for it: what is killed here must be sent again
        recorder().note("linger", message.key)
        time.sleep(0.5)
        recorder().note("return", message.key)


def _messages() -> Any:
    from tasks.models import OutboxMessage

    return OutboxMessage.objects


def is_settled(run: Run) -> bool:
    return not _messages().pending().exists()


def facts(run: Run) -> list[int]:
    """Return the messages that no relay has marked as published."""
    return [*_messages().pending().values_list("pk", flat=True)]


def check(operations: Sequence[Operation], facts: list[int]) -> list[Violation]:
    first: dict[str, int] = {}
    for each in operations:
        if each.name == "receive":
            first.setdefault(each.value["tag"], each.began)

    def waiting(since: int, until: int) -> list[str]:
        return [
            each.value["tag"]
            for each in operations
            if each.name == "publish" and each.is_ok and (each.ended or 0) < since
            if first.get(each.value["tag"], until) >= until
        ]

    unmarked = [Violation("published", f"message {key} was never published") for key in facts]
    again = again_after_faults(operations, "receive", waiting)
    return [*published_in_order(operations), *unmarked, *again]


def must_happen(operations: Sequence[Operation], facts: list[int]) -> dict[str, int]:
    received = [each.value["tag"] for each in operations if each.name == "receive"]
    published = [each for each in operations if each.name == "publish"]
    return {
        "messages received": len(received),
        "received again": len(received) - len(set(received)),
        "refused by the receiver": sum(each.name == "refuse" for each in operations),
        "rolled back": sum(each.outcome == FAILED for each in published),
    }
