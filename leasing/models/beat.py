"""The slots that Celery's beat has sent: one row for each entry of a schedule, shared by all beats.

claim     the leader writes that it is about to send a slot, under its term: the row says from
          then on that this slot is taken, and by which message
confirm   the broker took the message. A claim that was never confirmed is sent again, by whoever
          leads then, with the id of the same message
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import Q

from leasing.db.routing import RoutedQuerySet
from leasing.functions import DbNow
from leasing.validation.names import MAX_NAME


class BeatEntryQuerySet(RoutedQuerySet["BeatEntry"]):
    """Entries of beats' schedules: ``BeatEntry.objects``."""

    def known(self, beat: str, names: Iterable[str], now: datetime) -> dict[str, BeatEntry]:
        """The rows of ``beat`` for the entries called ``names``, by name. What is new was last
        sent ``now``, as Celery has it: its first slot is yet to come."""
        keys = {key_of(name): name for name in names}
        rows = self.home().filter(beat=beat, name__in=keys)
        missing = keys.keys() - set(rows.values_list("name", flat=True))
        new = [self.model(beat=beat, name=key, last_run_at=now) for key in sorted(missing)]
        self.home().bulk_create(new, ignore_conflicts=True)
        return {keys[row.name]: row for row in rows.all()}

    def claim(self, row: BeatEntry, moment: datetime, token: int) -> BeatEntry | None:
        """Take the slot of ``moment``, as the leader whose term has ``token``; None when the row
        is not as it was read any more. Call it in a block that proves the term."""
        taken: dict[str, object] = {
            "last_run_at": moment,
            "runs": row.runs + 1,
            "task_id": uuid.uuid4(),
            "sent_at": None,
            "fencing_token": token,
        }
        same = self.home().filter(pk=row.pk, runs=row.runs, fencing_token__lte=token)
        if not same.update(**taken):
            return None
        return self.model(pk=row.pk, beat=row.beat, name=row.name, **taken)

    def confirm(self, row: BeatEntry) -> None:
        """Note that the message of ``row``'s slot was sent, by any beat."""
        sent = self.home().filter(pk=row.pk, task_id=row.task_id, sent_at=None)
        sent.update(sent_at=DbNow())


class BeatEntry(models.Model):
    """An entry of a beat's schedule, and its latest slot."""

    id = models.BigAutoField(primary_key=True)
    #: The resource for which the beats of this schedule compete.
    beat = models.CharField(max_length=MAX_NAME)
    name = models.CharField(max_length=MAX_NAME)
    #: The moment of the latest slot that was claimed, by the plan and not when it was sent.
    last_run_at = models.DateTimeField()
    #: The number of slots that were claimed: each number is of one slot.
    runs = models.PositiveBigIntegerField(default=0)
    #: The id of the latest slot's message.
    task_id = models.UUIDField(null=True, default=None)
    #: The moment at which the broker accepted it; null: it did not, or no process lived to record
    #: it.
    sent_at = models.DateTimeField(null=True, default=None)
    #: Of the term in which it was claimed.
    fencing_token = models.BigIntegerField(default=0)

    objects: ClassVar = BeatEntryQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name_plural = "beat entries"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["beat", "name"], name="leasing_beat_entry_once"),
            models.CheckConstraint(
                name="leasing_beat_entry_claimed",
                condition=Q(runs=0, task_id=None, sent_at=None)
                | Q(runs__gt=0, task_id__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.beat}"

    @property
    def is_unsure(self) -> bool:
        """Return True if no process has recorded that the latest slot was sent."""
        return self.runs > 0 and self.sent_at is None


def key_of(name: str) -> str:
    """Return the stored form of an entry's ``name``: a name may be longer than a column."""
    if len(name) <= MAX_NAME:
        return name
    return hashlib.sha256(name.encode()).hexdigest()
