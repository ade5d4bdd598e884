"""Rows of your own that refuse writes under an older fencing token.

A process that was suspended until its lease expired may still write. The lease cannot stop it; the
target of the write can. A fenced row stores the greatest token it has seen, and accepts a write
only under that token or a greater one: ``WHERE fence <= token``, in the same statement as the
write. (A subquery on the lease's row would not do: it may see an older snapshot than the row.)

    class Report(FencedModel):
        text = models.TextField()

    with Lease.objects.hold("report:42") as hold:
        report = Report.objects.get(pk=42)
        report.advance_fence(hold)             # before the first read that matters
        report.text += "one line more"
        report.save_fenced(hold)

A new holder raises the fence before it reads. Otherwise the last write of the old holder could
arrive between that read and the first write of the new holder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from django.db import models, router, transaction

from leasing.conf import leasing_settings
from leasing.db.dialects import lock
from leasing.db.joins import is_joined
from leasing.exceptions import StaleToken
from leasing.functions import DbNow
from leasing.holding import Term
from leasing.models import MAX_KEY, Leasable, LeaseEvent
from leasing.runtime.events import happened
from leasing.stores.rows import write_apart

#: A proof: the term of a hold, a row just acquired, or the bare token.
Proof = Term | Leasable | int

#: The name of a fenced write in the record of its refusal.
GUARDED = "guarded write"


class FencedQuerySet(models.QuerySet[Any]):
    """Rows of a fenced model."""

    def fenced(self, proof: Proof, *, strictly: bool = False) -> FencedRows:
        """Return these rows, to be updated under the token of ``proof``: a term, a leased row, or
        the token itself. With ``strictly``, each token can write a row only once.

        Raises LeaseLost if ``proof`` is a term that is no longer valid.
        """
        if isinstance(proof, Term):
            proof.ensure()
        return FencedRows(self, proof, strictly)

    def update(self, **values: Any) -> int:
        if "fence" in values:
            raise TypeError("Only fenced() can change the fence of a row.")
        return super().update(**values)


class FencedRows:
    """Rows and the token under which they are written. Made by ``fenced()``.

    Args:
        rows: The rows that an update or a deletion covers.
        proof: A term, a granted row, or its token.
        strictly: True to refuse a row that has seen an equal token, too.
    """

    def __init__(self, rows: models.QuerySet[Any], proof: Proof, strictly: bool) -> None:
        self._rows = rows
        self._proof = proof
        self._strictly = strictly
        self.token = proof if isinstance(proof, int) else proof.fencing_token
        self.using: str = rows._db or router.db_for_write(rows.model)  # type: ignore[attr-defined]

    def update(self, **values: Any) -> int:
        """Update the rows as a queryset does, and raise the fence of each to the token. Returns how
        many rows were written. Raises StaleToken, and writes none, if one saw a greater token."""
        return self.write(values)

    def advance(self) -> int:
        """Raise the fence, and write nothing else. Raises StaleToken."""
        return self.write({})

    def write(self, values: dict[str, Any], then: Callable[[], object] = lambda: None) -> int:
        """``update`` with ``values``, and what is done ``then``, while the rows that were written
        are locked. Not called where none is there."""
        everything: models.QuerySet[Any] = models.QuerySet(self._rows.model, using=self.using)
        with transaction.atomic(using=self.using):
            chosen = self._rows.using(self.using)
            if is_joined(chosen):  # only rows of the model are locked
                chosen = everything.filter(pk__in=chosen.order_by().values("pk"))
            locked = lock(chosen.order_by("pk"))
            fences = dict(locked.values_list("pk", "fence"))
            keys = list(fences)
            below = {"fence__lt" if self._strictly else "fence__lte": self.token}
            written = everything.filter(pk__in=keys, **below).update(fence=self.token, **values)
            if written == len(keys):
                if written:
                    then()
                return written
            transaction.set_rollback(True, using=self.using)
        # Without row locks the fences may have been raised since: then name any row.
        refusing = [
            key for key, fence in fences.items() if fence >= self.token + (not self._strictly)
        ]
        raise self._refuse(len(keys) - written, (refusing or keys)[0])

    def _refuse(self, count: int, first: Any) -> StaleToken:
        """Record that ``count`` rows, ``first`` among them, were not written."""
        meta, proof = self._rows.model._meta, self._proof
        rows, have = ("a row", "has") if count == 1 else (f"{count} rows", "have")
        seen = "an equal or higher one" if self._strictly else "a higher one"
        reason = f"{rows} of {meta.label} refused the token {self.token} and {have} seen {seen}"
        if isinstance(proof, int):
            BareToken(proof, meta.label_lower, str(first)).note(reason)
            return StaleToken(f"the lease with token {proof}", reason)
        if isinstance(proof, Term):
            proof.refused(GUARDED, reason)
            return StaleToken(proof.resource, reason)
        type(proof).lease_rows().store(proof).refused(proof, GUARDED, reason)
        return StaleToken(proof.lease_resource, reason)


class FencedModel(models.Model):
    """A row that writers under an older token cannot change.

    ``save()`` and ``update()`` work as usual, for writers without a lease; they never lower the
    fence.
    """

    fence = models.BigIntegerField(default=0, db_default=0, editable=False)

    objects: ClassVar[models.Manager[Any]] = FencedQuerySet.as_manager()

    class Meta:
        abstract = True

    def _do_update(self, base_qs: Any, using: Any, pk_val: Any, values: Any, *rest: Any) -> Any:
        # Every update by save() ends here. To save a stale instance would lower the fence.
        kept = [value for value in values if value[0].name != "fence"]
        return super()._do_update(base_qs, using, pk_val, kept, *rest)

    def advance_fence(self, proof: Proof) -> Self:
        """Raise the fence of this row to the token of ``proof``, then read the row again.

        Raises StaleToken, and LeaseLost for a hold that is no longer valid.
        """
        rows = self._fenced(proof)
        rows.advance()
        self.refresh_from_db(using=rows.using)
        return self

    def save_fenced(self, proof: Proof, update_fields: Iterable[str] | None = None) -> Self:
        """``save()`` this row under the token of ``proof``: all of it, or ``update_fields``.

        Raises StaleToken, LeaseLost, and DoesNotExist if the row is gone.
        """
        rows = self._fenced(proof)
        save = partial(self.save, using=rows.using, update_fields=update_fields, force_update=True)
        if not rows.write({}, save):
            raise type(self).DoesNotExist("The row to save no longer exists.")
        self.fence = rows.token
        return self

    def _fenced(self, proof: Proof) -> FencedRows:
        using = router.db_for_write(type(self), instance=self)
        return FencedQuerySet(type(self), using=using).filter(pk=self.pk).fenced(proof)


@dataclass(frozen=True)
class BareToken:
    """Stands for the lease where a write came with nothing but a token: its holder is not
    known, so events name the row that refused."""

    fencing_token: int
    #: Of the row that refused; of the first, if several did.
    model: str
    key: str
    holder: str = ""
    grant_id: None = None

    @property
    def lease_resource(self) -> str:
        return f"{self.model}:{self.key}"

    def note(self, reason: str) -> None:
        """Write it to the ledger, and send the signal."""
        event = LeaseEvent(
            model=self.model,
            key=self.key[:MAX_KEY],
            resource=f"{self.model}:{self.key[:MAX_KEY]}",
            kind="refused",
            fencing_token=self.fencing_token,
            at=DbNow(),
            reason=f"{GUARDED}: {reason}"[:500],
        )
        using = leasing_settings.DATABASE
        write_apart(using, partial(event.save, using=using, force_insert=True))
        happened("lease.refused", [self], verb=GUARDED, reason=reason)
