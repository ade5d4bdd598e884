"""The ledger of what operators did."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Self

from django.db import models
from django.db.models import F

from leasing.db.deletion import delete_all
from leasing.db.routing import RoutedManager
from leasing.functions import DbNow, after
from leasing.models.event import MAX_KEY, MAX_LABEL
from leasing.models.ledger import Ledger, LedgerQuerySet


class AuditEntryQuerySet(LedgerQuerySet["AuditEntry"]):
    """The actions of operators: ``AuditEntry.objects``. Entries are written by
    ``leasing.audit``."""

    def about(self, row: models.Model) -> Self:
        """Return the entries about ``row`` alone; not those of actions on many rows."""
        return self.filter(model=row._meta.label_lower, key=str(row.pk))

    def prune(self, age: timedelta, batch: int = 500) -> int:
        """Delete the entries that are older than ``age``, ``batch`` rows in a transaction.
        Returns how many. Any number may prune at once."""
        using = self.db
        entries = AuditEntry.objects.using(using)
        # By key, which follows the time: what is younger is not looked at any further.
        younger = entries.filter(at__gt=after(-age)).order_by("pk").values_list("pk", flat=True)
        first = younger.first()
        old = entries if first is None else entries.filter(pk__lt=first)
        return delete_all(old, batch, lambda keys: entries.filter(pk__in=keys)._forget())


class AuditEntry(Ledger):
    """Something that a person did to leases, tasks, queues or the generator.

    It is written before anything is changed, and its outcome once, afterwards: one without an
    outcome is of an action that was broken off, and nobody knows how much it had changed.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=DbNow())
    #: The name of the user, or of the command's.
    by = models.CharField("user", max_length=200)
    #: The action: retry, cancel, discard, reschedule, revoke, pause, resume, start, stop, run.
    verb = models.CharField("action", max_length=50)
    #: The way it was requested: page, admin, api or command.
    via = models.CharField(max_length=20, blank=True, default="")
    #: The model of the rows ("leasing_tasks.task").
    model = models.CharField(max_length=MAX_LABEL)
    #: The key of the row, when it was one.
    key = models.CharField(max_length=MAX_KEY, blank=True, default="")
    #: The target of the action: {"keys": [...]}, {"filter": {...}}, or both; {"names": {key:
    #: name}} beside keys that say nothing to people.
    target = models.JSONField(default=dict)
    reason = models.CharField(max_length=500, blank=True, default="")
    #: The numbers of rows that were asked for and that changed; null without an outcome.
    asked = models.PositiveIntegerField(null=True, default=None)
    changed = models.PositiveIntegerField(null=True, default=None)
    #: Why the others were not: {"it was not failed or cancelled": 3}.
    skipped = models.JSONField(default=dict)
    #: The error that was raised, when the action failed.
    error = models.CharField(max_length=500, blank=True, default="")
    finished_at = models.DateTimeField(null=True, default=None)

    objects: ClassVar = AuditEntryQuerySet.as_manager()
    #: For Django itself, and for code that has to change rows of the ledger.
    base_objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "base_objects"
        verbose_name_plural = "audit entries"
        # The only permission is to view: nobody adds, changes or deletes.
        default_permissions = ("view",)
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index("model", "key", F("id").desc(), name="leasing_audit_of_row"),
            models.Index("by", F("id").desc(), name="leasing_audit_by_whom"),
            models.Index("verb", F("id").desc(), name="leasing_audit_of_verb"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} by {self.by}"

    def name_of(self, key: str) -> str:
        """Return the name of the row with that ``key`` when it was acted on; the key, if it had
        none, or if the target was not read."""
        target = self.__dict__.get("target")  # which a list of entries leaves out
        names = target.get("names") if isinstance(target, dict) else None
        return str(names.get(key, key)) if isinstance(names, dict) else key
