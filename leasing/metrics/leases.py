"""Read figures of leases from the database."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from django.db import connections
from django.db.models import Count, Q

from leasing.conf import leasing_settings
from leasing.functions import DbNow
from leasing.metrics.database import Family, Figure, refuse_many
from leasing.models import Leasable, Lease, LeaseState, leasable_models
from leasing.models.kinds import rows_of
from leasing.stores import stores

_TABLES = """
SELECT s.relname, s.n_tup_upd, s.n_tup_hot_upd, s.n_live_tup, s.n_dead_tup,
    pg_total_relation_size(s.relid)
FROM pg_stat_user_tables s WHERE s.relid = ANY(%s::regclass[])
"""


@cache
def figures() -> Sequence[Figure]:
    """Of leases: one for each model, for a model of many rows must not cost us the others."""
    counts = [
        Figure(f"leases of {model._meta.label_lower}", partial(_count, model))
        for model in leasable_models()
    ]
    # Nor does a store that does not answer.
    kept = [Figure(f"store {alias}", partial(_store, alias)) for alias in stores]
    return [
        *counts,
        *kept,
        Figure("leaders", _leaders),
        Figure("tables", _tables),
    ]


def _count(model: type[Leasable]) -> list[Family]:
    found = Family(
        "leasing_leases", "Rows that were granted at least once, by state.", "model", "state"
    )
    label = model._meta.label_lower
    past = Q(expires_at__lte=DbNow())
    if model.listing.parts:
        # What is held has an index of its own; what is not is too much to count.
        held = rows_of(model).holding()
        counts = held.aggregate(
            active=Count("pk", filter=~past), expired=Count("pk", filter=past & Q(released_at=None))
        )
    else:
        rows = rows_of(model)
        refuse_many(rows)
        here = Q(released_at=None, grants__gt=0)
        counts = rows.aggregate(
            active=Count("pk", filter=here & ~past),
            expired=Count("pk", filter=here & past),
            released=Count("pk", filter=Q(released_at__isnull=False)),
        )
    for state in (LeaseState.ACTIVE, LeaseState.EXPIRED, LeaseState.RELEASED):
        if state.value in counts:
            found.add(counts[state.value], label, state.value)
    return [found]


def _leaders() -> list[Family]:
    names = list(leasing_settings.METRICS_LEADERS)
    wanted = Family("leasing_leaders_wanted", "Leaderships that METRICS_LEADERS names.")
    present = Family("leasing_leaders_present", "Of these, leaderships that have a leader now.")
    found = rows_of(Lease).filter(resource__in=names).active().count() if names else 0
    return [wanted.add(len(names)), present.add(found)]


def _store(alias: str) -> list[Family]:
    found = Family(
        "leasing_store_leases", "Leases held in a store of STORES that lists them.", "store"
    )
    held = stores.held(alias)
    if held is not None:
        found.add(len(held), alias)
    return [found]


def _tables() -> list[Family]:
    connection = connections[leasing_settings.DATABASE]
    if connection.vendor != "postgresql":
        return []
    labels: dict[Any, str] = {
        model._meta.db_table: model._meta.label_lower for model in leasable_models()
    }
    with connection.cursor() as cursor:
        cursor.execute(_TABLES, [[connection.ops.quote_name(name) for name in labels]])
        rows = cursor.fetchall()
    found = [
        Family(f"leasing_table_{name}", help, "model")
        for name, help in (
            ("updates_total", "Rows updated."),
            ("hot_updates_total", "Of these, updates that touched no index."),
            ("live_rows", "Rows, as PostgreSQL estimates."),
            ("dead_rows", "Dead rows, as PostgreSQL estimates."),
            ("size_bytes", "The table with its indexes."),
        )
    ]
    for name, *values in rows:
        for family, value in zip(found, values, strict=True):
            family.add(value, labels[name])
    return found
