"""Errors of tasks travel: between a handler's process and its worker, and through Celery."""

from __future__ import annotations

import pickle

import pytest

from tasks.exceptions import (
    GiveUp,
    InvalidOutput,
    KeyBusy,
    Snooze,
    TaskError,
    TaskFailed,
    WaitInTransaction,
    WaitTimeout,
)
from tasks.models import Task

TASK = Task(pk=7, name="invoices.send", last_error="no paper")
ERRORS = [
    GiveUp("no such printer"),
    InvalidOutput("The output is not JSON."),
    KeyBusy("invoice:7"),
    Snooze(60),
    Snooze(60, "not now"),
    TaskFailed(TASK),
    WaitInTransaction(TASK),
    WaitTimeout(TASK, 3, "Nobody serves it."),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_every_error_survives_pickling(error: TaskError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (str(copy), copy.args) == (str(error), error.args)
    assert vars(copy) == vars(error)
