"""The two roles of docs/deployment.md: the application cannot rewrite its own ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from django.core.management import call_command
from django.db import ProgrammingError, connection
from django.urls import reverse

from leasing import audit
from leasing.models import AuditEntry, Lease, LeaseEvent
from tasks.models import Task
from tests.conftest import Spawn
from tests.deployed import block_of
from tests.factories import make_task
from tests.pages import signed_in

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no roles"),
]


class Roles:
    """The roles of the page, under names of this database's own: a server's tests share them."""

    def __init__(self) -> None:
        self.shop = f"{connection.settings_dict['NAME']}_shop"
        self.owner = connection.settings_dict["OPTIONS"].copy()

    def make(self) -> None:
        statements = block_of("A ledger that the application cannot rewrite", "sql").text
        with connection.cursor() as cursor:
            cursor.execute(f'CREATE ROLE "{self.shop}"; CREATE ROLE "{self.shop}_prune"')
            cursor.execute(
                statements.replace("TO shop_prune", f'TO "{self.shop}_prune"')
                .replace("TO shop;", f'TO "{self.shop}";')
                .replace("FROM shop;", f'FROM "{self.shop}";')
                .replace("GRANT shop ", f'GRANT "{self.shop}" ')
            )

    def drop(self) -> None:
        self.become(None)
        with connection.cursor() as cursor:
            for role in (f"{self.shop}_prune", self.shop):
                cursor.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')

    def become(self, role: str | None) -> None:
        """Connect as ``role`` from now on; None: as who owns the tables."""
        connection.close()
        options = {} if role is None else {"options": f"-c role={role}"}
        connection.settings_dict["OPTIONS"] = {**self.owner, **options}


@pytest.fixture
def roles() -> Iterator[Roles]:
    roles = Roles()
    roles.make()
    try:
        yield roles
    finally:
        roles.drop()


def refused(statement: str) -> str:
    with pytest.raises(ProgrammingError) as raised, closing(connection.cursor()) as cursor:
        cursor.execute(statement)
    return str(raised.value)


def test_the_application_holds_and_acts_but_cannot_rewrite_what_it_did(roles: Roles) -> None:
    task = make_task(state="failed")
    operator = signed_in("leasing_tasks.view_task", "leasing_tasks.retry_task", name="olga")
    roles.become(roles.shop)

    with Lease.objects.hold("crane:1", holder="ann") as hold:
        hold.renew()
    answer = operator.post(reverse("leasing_tasks:act", args=[task.pk, "retry"]))

    assert answer.status_code == 302
    task.refresh_from_db()
    assert task.status == "ready"
    assert [each.kind for each in LeaseEvent.objects.order_by("pk")] == ["acquired", "released"]
    assert AuditEntry.objects.get().changed == 1
    for statement in (
        "UPDATE leasing_leaseevent SET holder = 'erased'",
        "DELETE FROM leasing_leaseevent",
        "TRUNCATE leasing_leaseevent",
        "UPDATE leasing_auditentry SET reason = 'none'",
        "UPDATE leasing_auditentry SET by = 'nobody'",
        "DELETE FROM leasing_auditentry",
    ):
        assert "permission denied for table" in refused(statement), statement
    assert AuditEntry.objects.get().by == "olga"


@pytest.mark.slow
def test_a_worker_of_the_application_runs_tasks(roles: Roles, spawn: Spawn) -> None:
    task = make_task(data={"sleep_duration_seconds": 0})

    worker = spawn(["manage.py", "run_worker", "--drain"], PGOPTIONS=f"-c role={roles.shop}")

    assert worker.wait(60) == 0
    task.refresh_from_db()
    assert task.status == "succeeded"
    assert "WARNING" not in worker.output and "permission" not in worker.output


def test_only_the_role_that_prunes_deletes_what_is_old(roles: Roles) -> None:
    with Lease.objects.hold("crane:1"):
        pass
    audit.record("olga", "retry", Task, keys=[1], changed=1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE leasing_leaseevent SET at = at - interval '400 days'")
        cursor.execute("UPDATE leasing_auditentry SET at = at - interval '400 days'")

    roles.become(roles.shop)
    with pytest.raises(ProgrammingError, match="permission denied for table"):
        call_command("prune_leases")
    assert LeaseEvent.objects.count() == 2

    roles.become(f"{roles.shop}_prune")
    call_command("prune_leases")
    assert not LeaseEvent.objects.exists()
    assert not AuditEntry.objects.exists()
