"""A broker for the tests of the relay, and what is done to rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from leasing.functions import after
from tasks.models import OutboxMessage, Task
from tasks.outbox.relay import BrokerAway, Relay


class FakeBroker:
    """Keeps what it is sent. ``before`` is called with each before it is taken."""

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.messages: list[OutboxMessage] = []
        self.before: Callable[[Any], object] = lambda sent: None
        self.count: int | None = 0
        self.closed = 0

    @property
    def topics(self) -> list[str]:
        return [message.topic for message in self.messages]

    def topics_of(self, key: str) -> list[str]:
        """Return the topics of the messages of ``key``, in their order."""
        return [message.topic for message in self.messages if message.key == key]

    def send_task(self, key: int, queue: str) -> None:
        self.before(key)
        self.tasks.append(key)

    def send_message(self, message: OutboxMessage) -> None:
        self.before(message)
        self.messages.append(message)

    def waiting(self, queue: str) -> int | None:
        return self.count

    def close(self) -> None:
        self.closed += 1

    def taken(self) -> list[int]:
        """Return the tasks that were sent since the last call."""
        sent, self.tasks = self.tasks, []
        return sent


def published(relay: Relay) -> float | None:
    """Let ``relay`` look until no message of the outbox is due. Returns what the last look did."""
    while (pause := relay.look()) == 0:
        pass
    return pause


def away(sent: object) -> None:
    """Raise the error of a broker that is down."""
    raise BrokerAway("nobody there")


def away_after(count: int) -> Callable[[object], None]:
    """Return a broker that goes down after it has taken ``count``."""
    left = iter(range(count))

    def before(sent: object) -> None:
        if next(left, None) is None:
            away(sent)

    return before


def enqueue(count: int = 1, **options: Any) -> list[int]:
    """Keys of as many new tasks."""
    made = Task.objects.enqueue_many("jobs.echo", [{"n": n} for n in range(count)], **options)
    return [task.pk for task in made]


def age(keys: list[int], seconds: float) -> None:
    """Move the publication of these tasks' messages so far back, and their due time before it."""
    moved = {"scheduled_at": after(timedelta(seconds=-seconds - 1))}
    Task.objects.filter(pk__in=keys).update(
        published_at=after(timedelta(seconds=-seconds)), **moved
    )
