"""Bounds of the product that a test sets to what a few rows and a moment can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasing import leader, querysets
from leasing.admin import actions, changelist
from leasing.api import lists
from leasing.celery import task as celery_task
from leasing.dashboard import operator_actions
from leasing.db import connection_watchdog, row_locks, side_connection
from leasing.diagnosis import ttl as diagnosis_ttl
from leasing.management import suggested_ttl
from leasing.metrics import database
from leasing.runtime import services, shutdown, threads
from leasing.stores import rows
from leasing.waiting import listener, waiter
from leasing.web import paging
from tasks import backend, generator
from tasks.admin.tasks import TaskAdmin
from tasks.celery import consuming
from tasks.client import calls as client_calls
from tasks.client import completer as client_completer
from tasks.client import worker as client_worker
from tasks.dashboard import listing, queue_rows, selection
from tasks.diagnosis import reasons
from tasks.execution import chaos, runner
from tasks.fleet import child, hand_back, parent
from tasks.maintenance import counting, invariants, recovery, scheduler
from tasks.outbox import relay
from tasks.querysets import ends, operator, producer
from tasks.querysets import recovery as recovering
from tasks.querysets.sql import insert, plans
from tasks.runtime import connection, health
from tasks.views import actions as task_actions
from tasks.worker.threads import Threads

#: Sets bounds of the product, by their names in ``BOUNDS``.
Limits = Callable[..., None]

#: Where each bound is: a test knows its name alone.
BOUNDS: dict[str, list[tuple[Any, str]]] = {
    "arrival": [(listener, "ARRIVAL")],
    "ask_after": [(connection_watchdog, "ASK_AFTER")],
    "ask_every": [(connection_watchdog, "ASK_EVERY")],
    "buckets": [(relay, "CLAIMED")],
    "bulk_batch": [(operator, "BULK_BATCH")],
    "check_every": [(listener, "CHECK_EVERY")],
    "claim_pauses": [(consuming, "CLAIM_PAUSES")],
    "count_cap": [(changelist, "COUNT_CAP"), (queue_rows, "COUNT_CAP"), (counting, "COUNT_CAP")],
    "deafness": [(listener, "DEAFNESS")],
    "fewest": [(suggested_ttl, "FEWEST"), (diagnosis_ttl, "FEWEST")],
    "hangs_after": [(threads, "HANGS_AFTER")],
    "insert_batch": [(insert, "BATCH_ROWS"), (producer, "INSERT_BATCH")],
    "insert_text": [(insert, "BATCH_TEXT")],
    "kept": [(connection, "KEPT")],
    "largest": [(ends, "LARGEST")],
    "lateness": [(chaos, "LATENESS")],
    "list_per_page": [(TaskAdmin, "list_per_page")],
    "listener_patience": [(listener, "PATIENCE")],
    "longest_look": [(connection_watchdog, "LONGEST_LOOK")],
    "longest_tick": [(recovery, "LONGEST_TICK"), (services, "LONGEST_TICK")],
    "look_every": [(generator, "LOOK_EVERY"), (health, "LOOK_EVERY")],
    "looked_at": [(reasons, "LOOKED_AT")],
    "max_counted": [(invariants, "MAX_COUNTED")],
    "max_rows": [(database, "MAX_ROWS")],
    "max_selected": [
        (module, "MAX_SELECTED") for module in (actions, operator_actions, selection, task_actions)
    ],
    "max_tasks": [(client_calls, "MAX_TASKS")],
    "max_validated": [(backend, "MAX_VALIDATED")],
    "next_try": [(parent, "NEXT_TRY")],
    "pause": [(waiter, "FIRST_PAUSE"), (waiter, "MAX_PAUSE")],
    "prefetch": [(Threads, "prefetch")],
    "progress_silence": [(runner, "SILENCE")],
    "raised_together": [(querysets, "RAISED_TOGETHER")],
    "reach": [(changelist, "REACH"), (lists, "REACH"), (paging, "REACH")],
    "reading_reach": [(paging, "READING_REACH")],
    "ready_every": [(child, "READY_EVERY")],
    "release_patience": [(shutdown, "RELEASE_PATIENCE")],
    "search_cap": [(listing, "SEARCH_CAP")],
    "settling": [(celery_task, "SETTLING")],
    "short_lock": [(row_locks, "SHORT")],
    "resigned_for": [(leader, "RESIGNED_FOR")],
    "silence": [(rows, "SILENCE")],
    "slot_batch": [(scheduler, "SLOT_BATCH")],
    "slot_batches": [(scheduler, "BATCHES")],
    "slow": [(plans, "SLOW")],
    "stale_after": [(client_worker, "STALE_AFTER")],
    "stop_timeout": [(connection, "STOP_TIMEOUT"), (side_connection, "STOP_TIMEOUT")],
    "strike_every": [(client_completer, "STRIKE_EVERY")],
    "suspects_read": [(recovering, "SUSPECTS_READ")],
    "sweep_batch": [(invariants, "SWEEP_BATCH")],
    "together": [(hand_back, "TOGETHER")],
    "waits": [(counting, "WAITS")],
}


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Set bounds of the product that a test would not reach: ``limits(reach=2)``."""

    def set_to(**bounds: Any) -> None:
        for name, bound in bounds.items():
            for place, constant in BOUNDS[name]:
                monkeypatch.setattr(place, constant, bound)

    return set_to
