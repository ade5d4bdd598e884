"""Rows for tests, brought into their state by the verbs: no test begins where no life leads.

Tests call ``make_lease``, ``make_task`` and ``make_worker``, or their plurals for several alike.
The factories behind them, which give names and defaults, are Any to mypy.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack
from uuid import UUID

import factory
from factory.django import DjangoModelFactory

from leasing.functions import DbNow, after, database_now
from leasing.models import Leasable, Lease, LeaseState
from leasing.runtime.clock import clock
from leasing.store import TermOptions
from tasks import registry
from tasks.exceptions import GiveUp
from tasks.models import Task, TaskStatus, Worker, WorkerState
from tasks.producer import EnqueueOptions
from tasks.querysets import recovery
from tasks.sample import SLEEP
from tests.leasing.support import expire


class LeaseOptions(TermOptions, total=False):
    """Properties of a lease, besides the terms of its only grant."""

    resource: str
    renewals: int
    #: A LeaseState, or "revoked" for one that an operator took back; active by default.
    state: str


def make_lease(**options: Unpack[LeaseOptions]) -> Lease:
    """Make a lease, and return it as the database has it."""
    lease: Lease = LeaseFactory(**options)
    return lease


def make_leases(count: int, **options: Unpack[LeaseOptions]) -> list[Lease]:
    """Make ``count`` leases alike."""
    return [make_lease(**options) for _ in range(count)]


def grant_id_of(row: Leasable) -> UUID:
    """Return the id of the grant of a row that was granted."""
    assert row.grant_id is not None
    return row.grant_id


class LeaseFactory(DjangoModelFactory[Lease]):
    class Meta:
        model = Lease

    resource = factory.Sequence(lambda n: f"berth:{n}")
    holder = factory.Sequence(lambda n: f"worker-{n}")
    ttl = 30.0
    metadata: dict[str, Any] = {}
    renewals = 0
    state: str = LeaseState.ACTIVE

    @classmethod
    def _create(cls, model_class: type[Lease], *args: Any, **kwargs: Any) -> Lease:
        state, renewals, resource = (kwargs.pop(k) for k in ("state", "renewals", "resource"))
        if state == LeaseState.FREE:
            return model_class.objects.create(resource=resource)
        lease = model_class.objects.acquire(resource, **kwargs)
        for _ in range(renewals):
            model_class.objects.renew(lease)
        _end(lease, state)
        lease.refresh_from_db()
        return lease


def _end(lease: Lease, state: str) -> None:
    match state:
        case LeaseState.ACTIVE:
            pass
        case LeaseState.EXPIRED:
            expire(lease)
        case LeaseState.RELEASED:
            Lease.objects.release(lease)
        case "revoked":
            Lease.objects.filter(pk=lease.pk).revoke("by the factory", "factory")
        case _:
            raise ValueError(f"A lease is never {state!r}.")


class TaskOptions(EnqueueOptions, total=False):
    """Properties of a task; those that are not here are the options of ``enqueue``."""

    name: str
    data: Any
    #: ready (the default), scheduled, running, stuck, succeeded, failed (attempts exhausted),
    #: given_up, cancelled, retrying (failed once, waits), recovered (lost once, ready), returned.
    state: str
    #: Of its only claim, as ``ttl`` is.
    holder: str
    ttl: float
    #: That of another handler than its own.
    kind: int


def make_task(**options: Unpack[TaskOptions]) -> Task:
    """Make a task, and return it as the database has it; a running one as its holder has it."""
    task: Task = TaskFactory(**options)
    return task


def make_tasks(count: int, **options: Unpack[TaskOptions]) -> list[Task]:
    """Make ``count`` tasks alike."""
    return [make_task(**options) for _ in range(count)]


class TaskFactory(DjangoModelFactory[Task]):
    class Meta:
        model = Task

    name = SLEEP
    data: Any = factory.LazyFunction(lambda: {"sleep_duration_seconds": 1})
    holder = factory.Sequence(lambda n: f"worker-{n}")
    ttl = 30.0
    state = "ready"

    @classmethod
    def _create(cls, model_class: type[Task], *args: Any, **kwargs: Any) -> Task:
        state, holder, ttl = (kwargs.pop(k) for k in ("state", "holder", "ttl"))
        kind = kwargs.pop("kind", None)
        if state == "scheduled":
            kwargs.setdefault("scheduled_at", database_now("default") + timedelta(hours=1))
        if state == "failed":
            kwargs["max_attempts"] = 1
        task = model_class.objects.enqueue(kwargs.pop("name"), kwargs.pop("data"), **kwargs)
        if kind is not None:
            model_class.objects.filter(pk=task.pk).update(kind=kind)
        if state not in ("ready", "scheduled", "cancelled"):
            task = claimed(task, holder, ttl)
        _bring(task, state)
        if state != "running":  # as its claim has read it
            task.refresh_from_db()
        return task


def claimed(task: Task, holder: str, ttl: float = 30.0) -> Task:
    """``task``, which is ready, as ``holder`` has claimed it."""
    # Or the claim would recover what the test has prepared.
    swept_at = recovery.swept_at
    swept_at["default"] = max(clock(), swept_at.get("default", 0.0))
    rows = Task.objects.all()
    if rows.ready().filter(queue=task.queue).count() > 1:
        rows = rows.filter(pk=task.pk)  # which costs many times the statement of a plain claim
    (mine,) = rows.claim(holder, queues=[task.queue], ttl=ttl)
    return mine


def _bring(task: Task, state: str) -> None:
    row = Task.objects.filter(pk=task.pk)
    match state:
        case "ready" | "scheduled" | "running":
            pass
        case "stuck":
            expire(task)
        case "succeeded":
            Task.objects.complete(task, {"slept_seconds": 1})
        case "failed" | "retrying":
            Task.objects.fail(task, ValueError("no luck"))
            # The pause is drawn, and may be next to nothing.
            row.filter(status=TaskStatus.READY).update(scheduled_at=after(timedelta(seconds=60)))
        case "given_up":
            Task.objects.fail(task, GiveUp("no hope"))
        case "cancelled":
            row.update(status=TaskStatus.CANCELLED, processed_at=DbNow())
        case "recovered":
            expire(task)
            row.recover()
            row.update(scheduled_at=DbNow())  # its pause is over
        case "returned":
            Task.objects.give_back(task, "its worker was stopped")
        case _:
            raise ValueError(f"A task is never {state!r}.")


class WorkerOptions(TypedDict, total=False):
    """Columns of a worker, and the state that its heartbeats tell."""

    name: str
    role: str
    hostname: str
    pid: int
    fleet: str
    fleet_index: int
    fleet_restarts: int
    queues: list[str]
    handlers: dict[str, str]
    slots: dict[str, int]
    blocked: dict[str, int]
    sweeps: bool
    started_at: datetime
    #: A WorkerState; live by default.
    state: str


def make_worker(**options: Unpack[WorkerOptions]) -> Worker:
    """Make the row of a worker, and return it as the database has it."""
    worker: Worker = WorkerFactory(**options)
    return worker


class WorkerFactory(DjangoModelFactory[Worker]):
    class Meta:
        model = Worker

    name = factory.Sequence(lambda n: f"worker-{n}")
    hostname = "host-1"
    pid = factory.Sequence(lambda n: 1000 + n)
    queues = factory.LazyFunction(lambda: ["default"])
    handlers = factory.LazyFunction(lambda: dict.fromkeys(registry.names(), "thread"))
    slots = factory.LazyFunction(lambda: {"thread": 4})
    started_at = factory.LazyFunction(lambda: after(timedelta(hours=-1)))
    state: str = WorkerState.LIVE

    @classmethod
    def _create(cls, model_class: type[Worker], *args: Any, **kwargs: Any) -> Worker:
        state = kwargs.pop("state")
        worker = model_class.objects.create(**kwargs)
        row = model_class.objects.filter(pk=worker.pk)
        age = {WorkerState.LATE: model_class.LATE_AFTER, WorkerState.GONE: model_class.GONE_AFTER}
        if state in age:
            row.update(last_seen_at=after(-age[state] - timedelta(seconds=1)))
        elif state == WorkerState.STOPPED:
            row.sign_off(worker.name)
        worker.refresh_from_db()
        return worker
