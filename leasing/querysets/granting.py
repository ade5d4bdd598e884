"""Granting of rows: tried, waited for, in one statement or under a lock; one or many."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import Case, Value, When

from leasing.conf import Wait, leasing_settings
from leasing.db import joins, sql
from leasing.db.compiled_queries import query_instance
from leasing.db.dialects import durable, lock
from leasing.db.routing import kept_rows
from leasing.db.statements import Marker
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import DbNow
from leasing.holding import Hold, Term
from leasing.querysets.holder import HolderRows
from leasing.querysets.saving import Row
from leasing.querysets.states import LeaseState
from leasing.runtime.aio import Steps, Undoable
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from leasing.stores.memory import memory
from leasing.stores.rows import RowStore, row_store, term_of
from leasing.stores.separate import SeparateRowStore, taking_separately
from leasing.validation.terms import Terms
from leasing.waiting.notifier import taking, told

if TYPE_CHECKING:
    from leasing.models import Leasable

#: Tries of an acquisition while a row is free and another process is about to acquire it.
TRIES = 3


class GrantingRows(HolderRows[Row]):
    """Rows that can be leased, as they are granted."""

    def acquiring(
        self,
        resource: str,
        terms: Terms,
        wait: Wait,
        key: dict[str, Any],
        stopping: threading.Event | None = None,
    ) -> Steps[Row]:
        """The steps of ``acquire``, for a driver: try, and wait between tries, until
        ``stopping`` is set."""
        # A request that may be sent again keeps what it won: the one that repeats it finds it.
        undo = self.release if terms.request_id is None else _keep
        # What can be stopped may wait for days, and is a campaign.
        by = "" if stopping else terms.holder
        attempt = Undoable(partial(self._attempt, resource, terms, key), undo)
        steps = taking(
            self.db,
            resource,
            wait,
            attempt,
            say_wanted=partial(self._say_wanted, resource, by) if self.tells_waiters else None,
            stopping=stopping,
        )
        return told(self.model, resource, steps, is_campaign=stopping is not None)

    def holding_of(
        self,
        resource: str,
        terms: Terms,
        wait: Wait,
        key: dict[str, Any],
        *,
        separate: bool = False,
        stopping: threading.Event | None = None,
        on_lost: Callable[[Term], object] | None = None,
        on_yield: Callable[[Term], object] | None = None,
    ) -> Hold:
        """A hold on ``resource`` that is acquired when it is entered: on a row, or where the
        setting ENABLED is off, in the memory of this process."""
        if not leasing_settings.ENABLED:

            def take() -> Term:
                return memory.acquire_row(self.model(**key), terms)

            unless_in = None if separate else self.db
            steps = partial(memory.taking, take, resource, wait, stopping, unless_in)
            return Hold(memory, steps, resource=resource, on_lost=on_lost, on_yield=on_yield)

        acquire = Acquisition(
            type(self),
            self.model,
            self.db,
            self.all() if self.query.where else None,
            resource,
            terms,
            wait,
            *key.popitem(),
            separate,
            stopping,
        )
        store = self.store(terms)
        if separate:
            store = SeparateRowStore(store.model, store.using)
        return Hold(store, acquire, resource=resource, on_lost=on_lost, on_yield=on_yield)

    def store(self, terms: Terms) -> RowStore:
        """Return the store that renews the grants of these rows."""
        return row_store(self.model, self.db)

    def _attempt(self, resource: str, terms: Terms, key: dict[str, Any]) -> Row:
        """Acquire the row with ``key`` now. Raises LeaseHeld; LeaseLost when it is gone."""
        for number in range(TRIES):
            row = self._grant(terms, **key)
            if row is not None:
                return row
            current = self._standing(**key)
            if current is None:
                raise LeaseLost(resource, "its row is gone")
            if current.state == LeaseState.ACTIVE:
                raise LeaseHeld(resource, current.holder, current.expires_at)
            if number:
                pause_shortly()
        raise LeaseHeld(resource)

    def _standing(self, *, whole: bool = False, **key: Any) -> Any:
        """Return the row with ``key`` as it stands, ``with_state``; None if there is none. Unless
        ``whole``, with those columns alone by which a refusal is judged and told."""
        (column,) = key

        def compile() -> Any:
            model: Any = self.model.leased_model()
            field = model._meta.pk if column == "pk" else model._meta.get_field(column)
            rows: Any = self._everything().filter(**{column: Marker(column, field)})
            if not whole:
                rows = rows.only("pk", *model.refusal_columns)
            return rows.order_by("pk").with_state()[:1]

        about = (type(self), self.model, self.db, column, whole)
        return query_instance(about, compile, key)

    def _say_wanted(self, resource: str, by: str = "") -> None:
        """Note that somebody waits, and who: of rows whose class ``tells_waiters``."""
        raise NotImplementedError

    def _grant(self, terms: Terms, **key: Any) -> Row | None:
        """Grant the one available row with ``key``, or return None."""
        if not self.is_kept:
            joins.refuse_repeated(self)
        if sql.can_grant(self):
            granted = sql.grant(self, terms, *next(iter(key.items())))
        else:
            with durable(self.db):
                granted = self._grant_locked(terms, limit=1, **key)
        if not granted:
            return None
        row: Row
        ((row, kind),) = granted
        happened(f"lease.{kind}", [row])
        return row

    def _grant_locked(self, terms: Terms, limit: int | None, **key: Any) -> list[tuple[Row, str]]:
        """Grant up to ``limit`` available rows with ``key``, in the order of the queryset.
        Returns them with what happened to each; within the caller's transaction."""
        sent_at = clock()
        free = self.available().filter(**key)
        if terms.request_id is not None:
            # Its grant has ended, and is not made twice.
            free = free.exclude(grant_id__range=terms.grants_of_request)
        before = self._chosen(free, limit)
        if not before:
            return []
        grants = {pk: terms.new_grant() for pk in before}
        self._write_grants(before, grants, self.granting(terms))
        won = self._everything().filter(pk__in=list(before), grant_id__in=list(grants.values()))
        dated: Iterable[Any] = won.annotate(now=DbNow())
        rows: dict[Any, Row] = {row.pk: row for row in dated}
        granted: list[tuple[Row, str]] = []
        for old in before.values():
            if old.pk in rows:
                rows[old.pk].sent_at = sent_at
                kind = "taken_over" if old.grants and old.released_at is None else "acquired"
                expired_at = old.expires_at if kind == "taken_over" else None
                rows[old.pk].previous_expired_at = expired_at
                self.record(
                    kind, rows[old.pk], previous_holder=old.holder, previous_expired_at=expired_at
                )
                granted.append((rows[old.pk], kind))
        return granted

    def _chosen(self, free: Self, limit: int | None) -> dict[Any, Row]:
        """Lock up to ``limit`` of the rows of ``free``, passing over those that others have."""
        read = free.select_related(None).prefetch_related(None)
        term = read.only("pk", "holder", "grants", "grant_id", "released_at", "expires_at")
        of = joins.lock_of(self.model, self.db)
        return {row.pk: row for row in lock(term, skip_locked=True, of=of)[:limit]}

    def _write_grants(
        self, before: dict[Any, Row], grants: dict[Any, uuid.UUID], columns: dict[str, Any]
    ) -> None:
        """Write ``columns`` and its grant to each of the chosen rows that is still available."""
        chosen = [When(pk=pk, then=Value(grants[pk])) for pk in before]
        self._everything().filter(pk__in=list(before)).available().update(
            grant_id=Case(*chosen, output_field=models.UUIDField()), **columns
        )

    def _tell_granted(self, granted: list[tuple[Row, str]]) -> list[Row]:
        alike: dict[str, list[Row]] = {}
        for row, kind in granted:
            alike.setdefault(kind, []).append(row)
        for kind, rows in alike.items():
            happened(f"lease.{kind}", rows)
        return [row for row, _ in granted]


@dataclass(slots=True)
class Acquisition:
    """The work of a hold when it is entered. Small, because there may be thousands: a queryset
    weighs more than the rest of a hold, and is kept only where it has a filter."""

    kind: type[GrantingRows[Any]]
    model: type[Leasable]
    using: str
    filtered: GrantingRows[Any] | None
    resource: str
    terms: Terms
    wait: Wait
    column: str
    value: Any
    separate: bool
    stopping: threading.Event | None

    def __call__(self) -> Steps[Term]:
        """The steps of acquiring."""
        rows = self.filtered
        if rows is None:
            rows = kept_rows(self.kind, self.model, self.using)
        key = {self.column: self.value}
        steps = rows.acquiring(self.resource, self.terms, self.wait, key, self.stopping)
        if self.separate:
            steps = taking_separately(rows.db, steps)
        return term_of((yield from steps))


def _keep(row: Any) -> None:
    """Leave the lease to the caller."""


def pause_shortly() -> None:
    """While someone else is just about to take a free row."""
    time.sleep(random.uniform(0.002, 0.02))
