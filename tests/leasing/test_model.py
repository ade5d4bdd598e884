"""Leases against a model: a dictionary and a clock. Any order of events, on any database."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.models import Lease, LeaseEvent
from leasing.store import Renewal
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import grants

RESOURCES = st.sampled_from(["crane:1", "crane:2"])
HOLDERS = st.sampled_from(["ann", "bob"])
TTLS = st.sampled_from([1, 10, 30])
SECONDS = st.sampled_from([0.000001, 0.999999, 1, 5, 10, 29.999999, 60])

#: Rows are pruned no sooner than this after their last grant or revocation.
RETENTION = timedelta(days=1)


@dataclass
class Term:
    """The model's knowledge of one grant."""

    holder: str
    ttl: timedelta
    expires_at: datetime
    token: int
    released: bool = False
    revoked: bool = False


@dataclass
class Row:
    """The model's knowledge of one row."""

    current: Term | None = None
    grants: int = 0
    tokens: list[int] = field(default_factory=list)


class Leases(RuleBasedStateMachine):
    """The verbs, in any order, by holders old and new."""

    held = Bundle("held")
    clock: DatabaseClock

    @initialize()
    def begin(self) -> None:
        LeaseEvent._base_manager.all().delete()
        Lease.objects.all().delete()
        self.rows: dict[str, Row] = {}
        self.all_tokens: dict[str, list[int]] = {"crane:1": [], "crane:2": []}
        self.terms: dict[Any, Term] = {}

    def state(self, resource: str) -> str:
        row = self.rows.get(resource)
        if row is None or row.current is None:
            return "free"
        if row.current.released or row.current.revoked:
            return "released"
        return "active" if row.current.expires_at > self.clock.now else "expired"

    def is_current(self, lease: Lease, term: Term) -> bool:
        row = self.rows.get(lease.resource)
        return row is not None and row.current is term

    # What holders do

    @rule(target=held, resource=RESOURCES, holder=HOLDERS, ttl=TTLS)
    def acquire(self, resource: str, holder: str, ttl: float) -> Any:
        if self.state(resource) == "active":
            current = self.rows[resource].current
            assert current is not None
            with pytest.raises(LeaseHeld) as refusal:
                Lease.objects.acquire(resource, holder=holder, ttl=ttl)
            assert refusal.value.holder == current.holder
            assert refusal.value.expires_at == current.expires_at
            return multiple()
        kind = "taken_over" if self.state(resource) == "expired" else "acquired"
        lease = Lease.objects.acquire(resource, holder=holder, ttl=ttl)
        row = self.rows.setdefault(resource, Row())
        row.grants += 1
        row.current = Term(
            holder,
            timedelta(seconds=ttl),
            self.clock.now + timedelta(seconds=ttl),
            lease.fencing_token,
        )
        self._token_rises(resource, lease.fencing_token)
        self.terms[lease.grant_id] = row.current
        assert LeaseEvent.objects.values_list("kind", flat=True)[0] == kind
        return lease

    @rule(lease=held)
    def renew(self, lease: Lease) -> None:
        term = self.terms[lease.grant_id]
        if self.is_current(lease, term) and self.state(lease.resource) == "active":
            Lease.objects.renew(lease)
            term.expires_at = max(term.expires_at, self.clock.now + term.ttl)
        else:
            with pytest.raises(LeaseLost):
                Lease.objects.renew(lease)

    @rule(leases=st.lists(held, max_size=4, unique_by=lambda lease: lease.pk))
    def renew_many(self, leases: list[Lease]) -> None:
        answer = Lease.objects.renew_many(grants(*leases))
        for lease in leases:
            term = self.terms[lease.grant_id]
            if self.is_current(lease, term) and self.state(lease.resource) == "active":
                term.expires_at = max(term.expires_at, self.clock.now + term.ttl)
                remaining = (term.expires_at - self.clock.now).total_seconds()
                assert answer.renewed.pop(lease.pk) == Renewal(term.expires_at, remaining)
            else:
                assert answer.lost.pop(lease.pk)
        assert (answer.renewed, answer.lost) == ({}, {})

    @rule(lease=held)
    def release(self, lease: Lease) -> None:
        term = self.terms[lease.grant_id]
        current = self.is_current(lease, term)
        if current and self.state(lease.resource) == "active":
            Lease.objects.release(lease)
            term.released = True
            term.expires_at = self.clock.now
        elif current and term.released:
            Lease.objects.release(lease)
        else:
            with pytest.raises(LeaseLost):
                Lease.objects.release(lease)

    @rule(lease=held)
    def use_a_proof_with_the_key_of_another(self, lease: Lease) -> None:
        for other in Lease.objects.exclude(pk=lease.pk):
            forged = copy.copy(other)
            forged.grant_id = lease.grant_id
            for verb in (Lease.objects.renew, Lease.objects.release):
                with pytest.raises(LeaseLost):
                    verb(forged)

    @rule(lease=held)
    def save_what_is_remembered(self, lease: Lease) -> None:
        if Lease.objects.filter(pk=lease.pk).exists():
            lease.save()

    @rule(lease=consumes(held))
    def forget(self, lease: Lease) -> None:
        """A holder that is never heard of again."""

    # What others do

    @rule(resource=RESOURCES)
    def revoke(self, resource: str) -> None:
        taken = Lease.objects.filter(resource=resource).revoke("by the model")
        assert taken == (self.state(resource) in ("active", "expired"))
        if taken:
            term = self.rows[resource].current
            assert term is not None
            term.revoked = True
            term.expires_at = min(term.expires_at, self.clock.now)
            self._token_rises(resource, Lease.objects.get(resource=resource).fencing_token)

    @rule(resource=RESOURCES)
    def prune(self, resource: str) -> None:
        if self.state(resource) != "active":
            self.clock.now += RETENTION
            Lease.objects.filter(resource=resource).delete()
            self.rows.pop(resource, None)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(resource=RESOURCES)
    def time_passes_to_exactly_the_expiry(self, resource: str) -> None:
        if self.state(resource) == "active":
            current = self.rows[resource].current
            assert current is not None
            self.clock.now = current.expires_at

    def _token_rises(self, resource: str, token: int) -> None:
        seen = self.all_tokens[resource]
        assert token > max(seen, default=0)
        seen.append(token)

    # What always holds

    @invariant()
    def the_rows_are_as_the_model_has_them(self) -> None:
        rows = {row.resource: row for row in Lease.objects.with_state()}
        assert set(rows) == set(self.rows)
        for resource, model in self.rows.items():
            row, term = rows[resource], model.current
            assert term is not None
            assert (row.state, row.grants) == (self.state(resource), model.grants)
            assert (row.holder, row.expires_at) == (term.holder, term.expires_at)
            assert row.fencing_token == self.all_tokens[resource][-1]


@pytest.mark.django_db
def test_leases_behave_as_their_model(database_clock: DatabaseClock) -> None:
    Leases.clock = database_clock
    run_state_machine_as_test(
        Leases,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
