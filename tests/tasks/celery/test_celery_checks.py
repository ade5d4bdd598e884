"""System checks of what is said of Celery and the outbox."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from tasks.checks import settings as checks
from tasks.checks.settings import check_settings

APP = {"CELERY_APP": "project.celery.app"}


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        ({**APP, "CELERY_QUEUES": ["default"], "OUTBOX_RETENTION": None}, []),
        ({**APP, "CELERY_QUEUES": "default"}, ["leasing_tasks.E015"]),
        ({**APP, "CELERY_QUEUES": ["mail"]}, ["leasing_tasks.E015"]),
        ({**APP, "CELERY_QUEUES": None}, ["leasing_tasks.E015"]),
        ({"CELERY_QUEUES": ["default"]}, ["leasing_tasks.E016"]),
        ({"CELERY_WINDOW": 0}, ["leasing_tasks.E018"]),
        ({"CELERY_WINDOW": True}, ["leasing_tasks.E018"]),
        ({"CELERY_PATIENCE": 0}, ["leasing_tasks.E019"]),
        ({"OUTBOX_RETENTION": -1}, ["leasing_tasks.E026"]),
        ({"OUTBOX_EXCHANGE": ""}, ["leasing_tasks.E027"]),
    ],
)
def test_a_setting_of_celery_that_is_out_of_bounds_is_an_error(
    settings: Settings, said: dict[str, Any], codes: list[str]
) -> None:
    settings.TASK_QUEUE = said

    assert [message.id for message in check_settings()] == codes


def test_queues_over_celery_want_it_installed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    settings.TASK_QUEUE = {**APP, "CELERY_QUEUES": ["default"]}

    assert [message.id for message in check_settings()] == ["leasing_tasks.E017"]
