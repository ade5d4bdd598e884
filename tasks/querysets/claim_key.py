"""The memory of claims that may be sent again: each key claims once in ten minutes.

A repetition may arrive after the tasks of the first have ended: a proxy has sent it twice, or it
waited in the queue of a server. It would claim other tasks, for nobody.

A lease remembers the request of its latest grant in its own row. Tasks cannot: a claim may find
none, and what it found may be deleted, or granted again. So each claim that was answered has a row
of its own, written in the transaction of the claim.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from leasing.db.dialects import lock
from leasing.db.routing import RoutedQuerySet
from leasing.functions import after

if TYPE_CHECKING:
    from tasks.models import ClaimKey

#: The time for which a key is remembered, at least.
REMEMBERED_FOR: Final = timedelta(minutes=10)
#: One of so many claims forgets old keys, up to FORGOTTEN of them: more than have come meanwhile.
FORGET_EVERY: Final = 16
FORGOTTEN: Final = 64


class ClaimKeyQuerySet(RoutedQuerySet["ClaimKey"]):
    """Keys of claims: ``ClaimKey.objects``."""

    def remember(self, request_id: uuid.UUID) -> None:
        """Note that the claim was answered, in the caller's transaction."""
        key: ClaimKey = self.model(request_id=request_id)
        self.bulk_create([key])
        if request_id.int % FORGET_EVERY == 0:  # a digest, in which every end is as frequent
            old = self.filter(answered_at__lte=after(-REMEMBERED_FOR)).order_by("answered_at")
            # Those that another claim is about to delete are left to it.
            gone = lock(old, skip_locked=True).values_list("pk", flat=True)[:FORGOTTEN]
            self.filter(pk__in=list(gone)).delete()
