"""The hub: what happens is said once, by ``happened``, and heard by those who have subscribed.

    log lines   of the tables ``leasing.runtime.event_lines`` and ``tasks.log``
    signals     of users: ``leasing.signals``, ``tasks.signals``
    the ledger  of losses and refusals, which no verb's statement records: ``leasing.stores.rows``
    metrics     ``leasing.metrics``, ``tasks.metrics``, in a process that counts
    traces      ``leasing.tracing``, ``tasks.tracing``, where the setting TRACES is on

An event has the name of its log line, as ``lease.acquired``. One that nobody hears costs its call:
``rows`` may be what stands for rows, which a subscriber that needs them makes, and ``details`` are
plain values, from which a subscriber computes what it tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

#: Called with the rows of an event, and its details by their names.
Subscriber = Callable[..., object]
#: Logs the current exception.
Failed = Callable[..., object]
#: Returns a block that follows what happens inside.
Follower = Callable[..., AbstractContextManager[object]]

# Replaced rather than changed: other threads may be calling them.
_subscribers: dict[str, tuple[tuple[Subscriber, Failed | None], ...]] = {}
#: What follows a block of ``during``, by the name of what happens in it.
followers: dict[str, Follower] = {}
_unfollowed = nullcontext()


def happened(name: str, rows: Sequence[Any] = (), /, **details: Any) -> None:
    """Tell the subscribers of ``name`` what has happened.

    Args:
        name: The name of the event.
        rows: The rows that it has happened to, or what stands for them.
        details: The further arguments of the subscribers.
    """
    for subscriber, failed in _subscribers.get(name, ()):
        try:
            subscriber(rows, **details)
        except Exception:
            if failed is None:
                raise
            failed(exc_info=True)


def during(name: str, *about: Any) -> AbstractContextManager[object]:
    """Return a block in which ``name`` happens, which its follower sees from now on."""
    follower = followers.get(name)
    return _unfollowed if follower is None else follower(*about)


def is_heard(name: str) -> bool:
    """Return True if ``name`` has a subscriber: for what costs a query or a column to find out."""
    return bool(_subscribers.get(name))


def subscribe(heard: Mapping[str, Subscriber], failed: Failed | None) -> None:
    """Call each subscriber when its event has happened, before those that have subscribed earlier:
    users' receivers, which may take long, come last.

    Args:
        heard: Subscribers by the names of events, called with the rows, and the details by their
            names.
        failed: Called with ``exc_info=True`` where one raises; None: the error is that of the code
            that told of the event, and nobody else hears of it.
    """
    unsubscribe(heard)
    for name, subscriber in heard.items():
        known = [(subscriber, failed), *_subscribers.get(name, ())]
        _subscribers[name] = tuple(sorted(known, key=lambda each: each[1] is not None))


def unsubscribe(heard: Mapping[str, Subscriber]) -> None:
    """Stop calling these subscribers."""
    for name, subscriber in heard.items():
        others = (each for each in _subscribers.get(name, ()) if each[0] != subscriber)
        _subscribers[name] = tuple(others)
