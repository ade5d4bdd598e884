"""After a restore every token rises above what the lost database may have granted."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from leasing import querysets as leasable_rows
from leasing.db.dialects import lock
from leasing.exceptions import LeaseLost
from leasing.functions import database_now
from leasing.models import AuditEntry, Lease, LeaseEvent
from tasks.models import Task
from tests.factories import make_lease, make_task
from tests.leasing.support import just_before_the_update
from tests.limits import Limits

pytestmark = pytest.mark.django_db

HOUR = 3600
STATES = ("active", "expired", "released", "revoked")


def floor() -> int:
    """An hour from now, as a token."""
    return int((database_now("default").timestamp() + HOUR) * 1_000_000)


def test_tokens_of_leases_rise_above_the_clock_as_it_will_be(
    limits: Limits,
) -> None:
    limits(raised_together=2)
    for state in STATES:
        make_lease(resource=f"crane:{state}", state=state)
    before = floor()

    assert Lease.objects.raise_tokens(HOUR) == len(STATES)

    assert min(Lease.objects.values_list("fencing_token", flat=True)) >= before


def test_a_token_that_is_higher_already_rises_by_one() -> None:
    make_lease(state="released")
    far = floor() * 2
    Lease.objects.update(fencing_token=far)

    Lease.objects.raise_tokens()

    assert Lease.objects.get().fencing_token == far + 1


@pytest.mark.parametrize("make", [make_task, lambda: make_lease(state="free")])
def test_a_row_that_was_never_granted_keeps_its_token(make: Any) -> None:
    row = make()

    assert type(row).objects.raise_tokens(HOUR) == 0

    assert type(row).objects.get().fencing_token == 0


def test_the_next_grant_is_above_what_was_raised() -> None:
    make_lease(resource="crane:1")
    Lease.objects.raise_tokens(HOUR)
    raised = Lease.objects.get().fencing_token

    assert Lease.objects.acquire("crane:1", holder="bob").fencing_token > raised


def test_a_holder_of_before_has_lost_its_lease() -> None:
    lease = make_lease(resource="crane:1", holder="ann")

    Lease.objects.raise_tokens(reason="restored", by="root")

    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)
    event = LeaseEvent.objects.get(kind="revoked")
    assert (event.reason, event.actor) == ("restored", "root")


def test_who_was_granted_one_meanwhile_keeps_the_token_that_they_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_lease(resource="crane:1", state="released")
    granted = Lease.objects.get().fencing_token + 1
    grantable = leasable_rows.LeasableQuerySet.grantable
    looks: list[int] = []

    def acquired_between(rows: Any) -> Any:
        looks.append(1)
        if len(looks) == 2:
            Lease.objects.update(released_at=None, fencing_token=granted)
        return grantable(rows)

    monkeypatch.setattr(leasable_rows.LeasableQuerySet, "grantable", acquired_between)

    assert Lease.objects.raise_tokens(HOUR) == 0

    assert len(looks) == 2
    assert Lease.objects.get().fencing_token == granted


def test_rows_are_locked_before_their_tokens_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of their keys: without, two of these could deadlock."""
    make_lease(state="released")
    steps: list[Any] = []

    def noted(rows: Any) -> Any:
        steps.append(rows.query.order_by)
        return lock(rows)

    monkeypatch.setattr(leasable_rows, "lock", noted)
    with just_before_the_update(lambda: steps.append("update")):
        assert Lease.objects.raise_tokens() == 1

    assert steps == [("pk",), ("pk",), "update"], "those to be revoked, and those to be raised"


def test_running_tasks_become_ready_and_tokens_of_those_to_come_rise() -> None:
    running = make_task(state="running", holder="ann")
    retrying = make_task(state="retrying")
    ended = make_task(state="succeeded")
    before = floor()

    assert Task.objects.raise_tokens(HOUR) == 2

    rows = Task.objects.in_bulk()
    assert rows[running.pk].status == "ready"
    assert rows[running.pk].fencing_token >= before
    assert rows[retrying.pk].fencing_token >= before
    assert rows[ended.pk].fencing_token == ended.fencing_token


# The command


def test_the_command_raises_the_tokens_of_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    make_lease(resource="crane:1")
    make_task(state="running")

    call_command("leases", "raise-tokens", "--ahead", "60", "--yes", "--by", "root")

    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "leasing.Lease: 1 token raised"
    assert "leasing_tasks.Task: 1 token raised" in printed
    assert {e.by for e in AuditEntry.objects.filter(verb="raise_tokens", changed=1)} == {"root"}


@pytest.mark.parametrize("arguments", [[], ["--yes", "--ahead", "-1"], ["--yes", "--ahead", "1e9"]])
def test_the_command_does_nothing_unasked(arguments: list[str]) -> None:
    lease = make_lease(resource="crane:1")

    with pytest.raises(CommandError):
        call_command("leases", "raise-tokens", *arguments)

    assert Lease.objects.get().fencing_token == lease.fencing_token
