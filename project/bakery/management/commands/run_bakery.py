"""What the demo's application does with leases and tasks: something on each page all the time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand
from django.db import Error, connections

from leasing.exceptions import LeaseError
from leasing.models import Lease
from leasing.runtime.shutdown import on_stop_signal
from project.bakery.models import Oven
from tasks.models import Task


class Command(BaseCommand):
    help = "Run the demo's application: a report, two bakers at one oven, a printer, and orders."

    def handle(self, **options: Any) -> None:
        stopping = threading.Event()
        Oven.objects.get_or_create(name="oven-1")
        roles = [write_report, bake("anna"), bake("boris"), print_archive, print_labels, order]
        threads = [threading.Thread(target=_repeat, args=(role, stopping)) for role in roles]
        with on_stop_signal(stopping.set):
            for thread in threads:
                thread.start()
            stopping.wait()
        for thread in threads:
            thread.join()


Role = Callable[[threading.Event], object]


def _repeat(role: Role, stopping: threading.Event) -> None:
    """Play ``role`` again and again. What a lease or the database refuses is part of the demo."""
    try:
        while not stopping.is_set():
            try:
                role(stopping)
            except (LeaseError, Error):
                stopping.wait(2)
    finally:
        connections.close_all()


def write_report(stopping: threading.Event) -> None:
    """Hold a lease for a minute, which is renewed all the time."""
    with Lease.objects.hold("bakery.report:daily", holder="office"):
        stopping.wait(60)
    stopping.wait(5)


def bake(baker: str) -> Role:
    """Return the role of a baker: two want the same oven, and one of them waits."""
    turns = itertools.count(1)

    def role(stopping: threading.Event) -> None:
        oven = Oven.objects.get(name="oven-1")
        with Lease.objects.hold("bakery.oven:1", holder=baker, wait=30, stopping=stopping) as hold:
            oven.advance_fence(hold)
            oven.loaves += 10
            oven.save_fenced(hold)
            stopping.wait(4)
        stopping.wait(1)
        if next(turns) % 4 == 0:
            _write_late(oven, baker, stopping)

    return role


def _write_late(oven: Oven, baker: str, stopping: threading.Event) -> None:
    """Write as one who was suspended: the other has had the oven since, so the row refuses it."""
    term = Lease.objects.acquire("bakery.oven:1", holder=baker, wait=30)
    Lease.objects.release(term)
    stopping.wait(6)
    oven.save_fenced(term)


def print_archive(stopping: threading.Event) -> None:
    """Hold the printer for long, with a low priority, until somebody more urgent asks for it."""
    asked = threading.Event()
    terms: dict[str, Any] = {"holder": "archive", "priority": 1, "ttl": 6}
    with Lease.objects.hold("bakery.printer", on_yield=lambda _: asked.set(), wait=30, **terms):
        while not (stopping.wait(0.5) or asked.is_set()):
            pass
    stopping.wait(3)  # or it would be back before the other has looked again


def print_labels(stopping: threading.Event) -> None:
    """Preempt the archive at the printer."""
    stopping.wait(30)
    terms: dict[str, Any] = {"holder": "labels", "priority": 9, "preempt_after": 3}
    with Lease.objects.hold("bakery.printer", wait=30, stopping=stopping, **terms):
        stopping.wait(8)


_orders = itertools.count(1)


def order(stopping: threading.Event) -> None:
    """Enqueue the tasks of an order."""
    number = next(_orders)
    Task.objects.enqueue("bakery.receipt", {"order": number})
    Task.objects.enqueue("bakery.charge", {"order": number})
    if number % 4 == 1:
        Task.objects.enqueue("bakery.bake", {"loaves": 12})
    stopping.wait(5)
