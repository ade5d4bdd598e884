"""A Celery worker and its row among the workers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker import state
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from tasks.celery import attendant
from tasks.celery import connect as connect_app
from tasks.models import Worker
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

SIGNALS = ("worker_init", "worker_ready", "worker_shutting_down", "worker_shutdown")
NODE = "celery@here"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No receivers of other tests, and none for them."""
    for name in SIGNALS:
        monkeypatch.setattr(getattr(signals, name), "receivers", [])
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(connection, "close", lambda: None)  # the test has it
    yield
    attendant._end()


class Sent:
    """The sender of Celery's signals."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes, hostname=NODE)


def connect(*, attend: bool = True) -> None:
    app = Celery("tests", set_as_current=False)
    signals.worker_init.receivers = []  # nor Celery's own, which wants more of its sender
    connect_app(app, attend=attend)


def start() -> None:
    signals.worker_init.send(sender=Sent())


def ready() -> None:
    consumer = Sent(queues=[SimpleNamespace(name="default")])
    signals.worker_ready.send(
        sender=Sent(task_consumer=consumer, controller=Sent(concurrency=3)),
    )


@pytest.mark.parametrize("attend", [True, False])
def test_without_the_tables_it_ends_with_the_sentence(attend: bool) -> None:
    forgotten = MigrationRecorder(connection).migration_qs.filter(app="leasing_tasks")
    names = list(forgotten.values_list("name", flat=True))
    connect(attend=attend)
    forgotten.delete()
    try:
        with pytest.raises(SystemExit, match=r"lacks migrations .* run `python manage.py migrate`"):
            start()
    finally:
        for name in names:
            MigrationRecorder(connection).record_applied("leasing_tasks", name)


def test_it_is_shown_once_it_has_its_broker() -> None:
    connect()
    start()
    assert not Worker.objects.present().exists()

    ready()

    wait_for(Worker.objects.present().exists)
    row = Worker.objects.get()
    assert (row.name, row.role) == (attendant.name_of(NODE), "celery")
    assert row.label == NODE
    assert (row.queues, row.slots) == (["default"], {"pool": 3})
