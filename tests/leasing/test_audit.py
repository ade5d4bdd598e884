"""The audit: an entry for each action, whatever its outcome."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import Settings

from leasing import audit, pruning
from leasing.functions import after
from leasing.models import AuditEntry, Lease
from leasing.validation.names import recorded_name
from tasks.generator import start_generator
from tasks.models import Schedule, Task
from tests.api_calls import call
from tests.factories import make_task
from tests.pages import signed_in
from tests.press.models import Receipt

pytestmark = pytest.mark.django_db


def entry() -> AuditEntry:
    return AuditEntry.objects.get()


def test_a_user_is_recorded_by_a_name_that_no_token_has() -> None:
    user = User(username="token ci")
    audit.record(user, "retry", Task, changed=0)
    assert entry().by == "user token ci"


def test_an_action_says_who_did_what_to_which_rows_and_why() -> None:
    user = User(username="olga")
    with audit.recording(user, "retry", Task, keys=[3, 4], reason="mended", via="page") as act:
        act.changed = 2

    noted = entry()
    assert (noted.by, noted.verb, noted.via, noted.model) == (
        "olga",
        "retry",
        "page",
        "leasing_tasks.task",
    )
    assert (noted.target, noted.reason) == ({"keys": [3, 4]}, "mended")
    assert (noted.asked, noted.changed, noted.skipped, noted.error) == (2, 2, {}, "")
    assert noted.finished_at is not None


def test_the_intention_is_stored_before_anything_is_done() -> None:
    with audit.recording("olga", "retry", Task, keys=[3]):
        noted = entry()
        assert (noted.key, noted.asked, noted.finished_at) == ("3", None, None)


def test_what_was_not_changed_has_a_reason_and_the_rest_another_state() -> None:
    with audit.recording("olga", "retry", Task, keys=range(10)) as act:
        act.changed, act.skipped = 5, {"it is gone": 2}

    assert entry().skipped == {"it is gone": 2, audit.OTHER_STATE: 3}


def test_what_fails_is_noted_and_raised() -> None:
    with (
        pytest.raises(ValueError, match="no such queue"),
        audit.recording("olga", "move", Task, keys=[1]) as act,
    ):
        act.changed = 0
        raise ValueError("no such queue")

    assert entry().error == "ValueError: no such queue"
    assert entry().skipped == {}


def test_a_filter_is_kept_as_it_was_asked() -> None:
    audit.record(
        "olga", "cancel", Task, changed=7, filter={"queue": "mail", "since": timedelta(days=1)}
    )

    assert entry().target == {"filter": {"queue": "mail", "since": "1 day, 0:00:00"}}
    assert (entry().asked, entry().changed, entry().key) == (7, 7, "")


def test_an_entry_is_never_changed_and_its_outcome_told_once() -> None:
    with audit.recording("olga", "retry", Task, keys=[1]) as act:
        act.changed = 1
    act.changed = 0
    audit._finish(act)

    assert entry().changed == 1
    with pytest.raises(TypeError):
        entry().save()


def test_hostile_and_endless_texts_fit() -> None:
    audit.record("o" * 300, "retry", Task, changed=0, keys=["k" * 500], reason="r" * 900)

    assert (len(entry().by), len(entry().key), len(entry().reason)) == (200, 400, 500)


def test_an_anonymous_user_has_a_name_too() -> None:
    assert recorded_name(AnonymousUser()) == ""


def test_what_was_done_to_one_row_is_found_by_it() -> None:
    task = make_task()
    audit.record("olga", "cancel", Task, changed=1, keys=[task.pk])
    audit.record("olga", "cancel", Lease, changed=1, keys=[task.pk])

    with CaptureQueriesContext(connection) as queries:
        (found,) = AuditEntry.objects.about(task)

    assert found.model == "leasing_tasks.task" and len(queries) == 1


def test_entries_are_kept_for_a_year_or_as_the_settings_say(settings: Settings) -> None:
    for _ in range(3):
        audit.record("olga", "retry", Task, changed=0)
    old, *_ = AuditEntry.objects.order_by("pk").values_list("pk", flat=True)
    AuditEntry._base_manager.filter(pk=old).update(at=after(-timedelta(days=366)))

    settings.LEASING = {"AUDIT_RETENTION": None}
    assert pruning.prune_audit() == 0
    settings.LEASING = {}
    assert pruning.prune_audit(batch=1) == 1
    assert AuditEntry.objects.count() == 2


def test_an_entry_that_another_row_protects_keeps_no_other() -> None:
    entries = [audit.record("olga", "retry", Task, changed=0) for _ in range(4)]
    AuditEntry._base_manager.exclude(pk=entries[3].pk).update(at=after(-timedelta(days=366)))
    for each in entries[:2]:
        Receipt.objects.create(entry=each)

    assert pruning.prune_audit(batch=1) == 1
    assert not AuditEntry.objects.filter(pk=entries[2].pk).exists()


# Every way to do something


def test_the_admin_notes_what_its_actions_did() -> None:
    failed = make_task(state="failed")
    done = make_task(state="succeeded")
    olga = signed_in(
        "leasing_tasks.view_task", "leasing_tasks.retry_task", name="olga", is_staff=True
    )
    data = {"action": "retry", "_selected_action": [failed.pk, done.pk], "confirmed": "yes"}
    olga.post(reverse("admin:leasing_tasks_task_changelist"), data)

    noted = entry()
    assert (noted.by, noted.verb, noted.via) == ("olga", "retry", "admin")
    assert (noted.asked, noted.changed, noted.skipped) == (2, 1, {"succeeded": 1})


def test_start_and_stop_are_noted_whichever_way_they_come(admin_client: Client) -> None:
    call(admin_client, "POST", "/generator/start")
    start_generator(by="olga", via="page")

    second, first = AuditEntry.objects.all()
    assert (first.by, first.verb, first.via, first.changed) == ("admin", "start", "api", 1)
    assert (second.by, second.changed, second.skipped) == ("olga", 0, {"already in this state": 1})


# Nothing at all: read-only


@pytest.mark.parametrize("model", ["leasing_tasks_schedule", "leasing_apitoken"])
def test_what_can_be_added_in_the_admin_cannot_while_the_site_is_read_only(
    admin_client: Client, settings: Settings, model: str
) -> None:
    add = reverse(f"admin:{model}_add")
    assert admin_client.get(add).status_code == 200
    settings.LEASING = {"READ_ONLY": True}

    assert admin_client.get(add).status_code == admin_client.post(add).status_code == 403


def test_a_schedule_is_neither_changed_nor_deleted_while_the_site_is_read_only(
    admin_client: Client, settings: Settings
) -> None:
    row = Schedule.objects.create(name="nightly", task_name="jobs.echo", every=timedelta(hours=1))
    settings.LEASING = {"READ_ONLY": True}

    for verb in ("change", "delete"):
        url = reverse(f"admin:leasing_tasks_schedule_{verb}", args=[row.pk])
        assert admin_client.post(url, {"post": "yes", "name": "weekly"}).status_code == 403
    assert Schedule.objects.get().name == "nightly"


@pytest.mark.parametrize("access", ["closed", "compatible"])
def test_read_only_overrides_every_permission_in_the_api(
    admin_client: Client, client: Client, settings: Settings, access: str
) -> None:
    settings.LEASING = {"API_ACCESS": access, "READ_ONLY": True}
    caller = admin_client if access == "closed" else client

    answer = call(caller, "POST", "/generator/start")

    assert answer.status == 403 and "read-only" in answer.body["error"]
    assert call(caller, "GET", "/generator/status").body["status"] == "STOPPED"
