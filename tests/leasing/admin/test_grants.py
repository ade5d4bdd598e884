"""The id of a grant proves its holder's term: pages show it to those who may end terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

import leasing
from leasing.models import LeaseEvent, OnceKey
from tasks.models import TaskAttempt
from tests.factories import make_lease, make_task
from tests.pages import get, signed_in

pytestmark = pytest.mark.django_db

VIEW = (
    *("leasing.view_lease", "leasing.view_leaseevent", "leasing.view_oncekey"),
    *("leasing_tasks.view_task", "leasing_tasks.view_taskattempt"),
)


def change(row: Any) -> tuple[str, UUID]:
    name = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
    return reverse(name, args=[quote(row.pk)]), row.grant_id


def once() -> OnceKey:
    leasing.once("invoice 7", window=60)(lambda: None)()
    return OnceKey.objects.get()


def attempt() -> TaskAttempt:
    make_task(state="recovered")
    return TaskAttempt.objects.get()


def event() -> LeaseEvent:
    make_lease()
    return LeaseEvent.objects.get()


def page() -> tuple[str, UUID]:
    lease = make_lease()
    assert lease.grant_id is not None
    return f"/ops/leases/{lease.pk}/", lease.grant_id


SHOWN: dict[str, Callable[[], tuple[str, UUID]]] = {
    "lease": lambda: change(make_lease()),
    "task": lambda: change(make_task(state="running")),
    "once key": lambda: change(once()),
    "event": lambda: change(event()),
    "attempt": lambda: change(attempt()),
    "page": page,
}


@pytest.mark.parametrize("kind", SHOWN)
def test_a_grant_is_shown_to_those_alone_who_may_end_it(kind: str) -> None:
    url, grant = SHOWN[kind]()
    viewer = get(signed_in(*VIEW, is_staff=True), url)
    assert viewer.status == 200
    assert str(grant) not in viewer.html and grant.hex not in viewer.html
    operator = signed_in(*VIEW, "leasing.revoke_lease", name="olga", is_staff=True)
    assert str(grant) in get(operator, url).html
