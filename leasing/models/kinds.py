"""Rows of every leasable model, found and listed without knowing the model."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from django.db import models
from django.db.models import Q
from django.http import Http404

from leasing.models import Leasable, Lease, lease_kinds
from leasing.validation.values import key_of

#: Columns of these kinds may be large; lists do without them.
_LARGE = (models.JSONField, models.TextField, models.BinaryField)


def find_row(lease_id: str) -> Leasable:
    """The row whose ``lease_id`` that is, with ``state`` and ``now``: "17" is a named lease,
    "task:17" a task, "shop.task:17" a row of another model of that name: see ``lease_kinds``. Else
    the lease of that name. Raises Http404."""
    kind, _, key = lease_id.partition(":") if ":" in lease_id else ("", "", lease_id)
    row: Leasable | None = None
    if model := _model_of(kind):
        with suppress(ValueError):
            row = rows_of(model).with_state().filter(pk=key_of(model, unquote(key))).first()
    if row is None and "\0" not in lease_id:
        row = rows_of(Lease).with_state().filter(resource=unquote(lease_id)).first()
    if row is None:
        raise Http404("There is no such lease.")
    return row


def _model_of(kind: str) -> type[Leasable] | None:
    if not kind:
        return Lease
    return next((model for model, each in lease_kinds().items() if each == kind), None)


def rows_of(model: type[Leasable]) -> Any:
    """Every row of ``model`` in the database of leases."""
    return model.lease_rows().home()


def listed(model: type[Leasable]) -> Any:
    """Return the rows of ``model`` that have a lease, without their large columns.

    Every named lease is listed; of other models only the rows that somebody has held.
    """
    rows = rows_of(model)
    if model is not Lease:
        # One says as much as the other; an index may have either as its condition. One by moments
        # of grants knows without the row that there was a grant.
        rows = rows.filter(acquired_at__isnull=False)
        if not model.listing.by:
            rows = rows.filter(grants__gt=0)
    return rows.defer(*[field.name for field in model._meta.concrete_fields if is_large(field)])


def is_large(field: object) -> bool:
    """Return True if a column may be so large that lists leave it out."""
    return isinstance(field, _LARGE)


def matching(model: type[Leasable], name: str) -> Q:
    """The rows of ``model`` that a search for ``name`` finds: named leases by how their name
    begins, others by their key ("17", "task:17" or "/api/tasks/17")."""
    if model is Lease:
        return Q(resource__startswith=name)
    # A key may have the signs in it that stand between the parts of a name.
    meant = {name, name.partition(":")[2], name.rpartition(":")[2].rpartition("/")[2]}
    keys = []
    for text in sorted(meant - {""}):
        with suppress(ValueError):
            keys.append(key_of(model, text))
    return Q(pk__in=keys)
