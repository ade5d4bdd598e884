"""The first part of a lease's id, where several leasable models have one name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.signals import setting_changed
from django.http import Http404
from django.test.utils import isolate_apps

from leasing.models import Leasable, Lease, lease_kinds
from leasing.models import leasable as models_leasable
from leasing.models.kinds import find_row
from tasks.models import Task
from tests.shop.models import Order


def leasable(app_label: str) -> type[Any]:
    """A leasable model ``Task`` of the app ``app_label``."""
    meta = type("Meta", (Leasable.Meta,), {"app_label": app_label})
    with isolate_apps(f"tests.{app_label}"):
        made: type[Any] = type("Task", (Leasable,), {"Meta": meta, "__module__": __name__})
    return made


@pytest.fixture(scope="module")
def theirs() -> type[Any]:
    return leasable("shop")


@pytest.fixture
def kinds_afresh() -> Iterator[None]:
    lease_kinds.cache_clear()
    yield
    lease_kinds.cache_clear()


@pytest.mark.usefixtures("kinds_afresh")
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_task_keeps_its_name_whatever_app_comes_first(
    monkeypatch: pytest.MonkeyPatch, theirs: type[Any], ours_first: bool
) -> None:
    both: list[Any] = [Task, theirs] if ours_first else [theirs, Task]
    monkeypatch.setattr(models_leasable, "leasable_models", lambda: [Lease, *both, Order])

    assert lease_kinds() == {Task: "task", theirs: "shop.task", Order: "order"}
    assert (Task(pk=17).lease_id, theirs(pk=17).lease_id) == ("task:17", "shop.task:17")
    assert Lease(pk=17).lease_id == "17"


@pytest.mark.usefixtures("kinds_afresh")
def test_of_two_apps_of_a_project_the_first_installed_has_the_short_name(
    monkeypatch: pytest.MonkeyPatch, theirs: type[Any]
) -> None:
    another = leasable("press")
    monkeypatch.setattr(models_leasable, "leasable_models", lambda: [Lease, another, theirs])

    assert lease_kinds() == {another: "task", theirs: "shop.task"}


@pytest.mark.django_db
def test_no_row_has_two_ids() -> None:
    task = Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 1})

    assert find_row(f"task:{task.pk}") == task
    with pytest.raises(Http404):
        find_row(f"leasing_tasks.task:{task.pk}")


@pytest.mark.usefixtures("kinds_afresh")
def test_kinds_follow_the_apps_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Order in lease_kinds()
    monkeypatch.setattr(models_leasable, "leasable_models", lambda: [Lease, Task])

    setting_changed.send(sender=None, setting="INSTALLED_APPS", value=[], enter=True)

    assert lease_kinds() == {Task: "task"}
