"""Each page and each list of the admin opens on this database, with a row of each kind there."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import models
from django.test import Client
from django.urls import reverse

from tasks.models import Queue, Schedule
from tasks.sample import SLEEP
from tests.factories import make_lease, make_task, make_worker
from tests.test_hostile_requests import EACH_MODEL, PAGES, page

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _rows() -> None:
    make_lease()
    make_task()
    make_worker()
    Queue.objects.pause("default", by="olga", reason="Moved.")
    Schedule.objects.create(
        name="nightly", task_name=SLEEP, cron="0 3 * * *", task_data={"sleep_duration_seconds": 1}
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_or_takes_a_post_alone(admin_client: Client, name: str) -> None:
    answer: Any = admin_client.get(page(name))

    if answer.status_code == 405:
        assert answer.headers["Allow"].split(", ")[0] == "POST"
    else:
        assert answer.status_code == 200
        assert b"".join(answer)


@EACH_MODEL
def test_a_list_of_the_admin_opens(admin_client: Client, model: type[models.Model]) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"

    assert admin_client.get(reverse(name)).status_code == 200
    assert admin_client.get(reverse(name), {"q": "a"}).status_code == 200
