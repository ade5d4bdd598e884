"""Terms that a caller asks for a lease: checked once, before anything is sent."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from leasing.conf import leasing_settings
from leasing.exceptions import InvalidTTL
from leasing.validation.names import check_duration, check_name, check_ttl, default_holder
from leasing.validation.values import check_json

LOWEST_PRIORITY, HIGHEST_PRIORITY = -32768, 32767


@dataclass(frozen=True, slots=True)
class Terms:
    """The holder of a lease, its duration and its conditions, as a caller asks for them."""

    holder: str
    ttl: timedelta
    priority: int = 0
    #: Renewals end this long after the grant; None is never.
    max_hold: timedelta | None = None
    #: The time after an expiry (not a release) during which nobody else gets it.
    grace: timedelta = timedelta(0)
    #: The time for which a holder of lower priority may go on after it was asked to yield; None:
    #: not asked.
    preempt_after: timedelta | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    #: The request of the caller, if it may be sent again: the ids of its grants begin with a digest
    #: of it, so that it finds them, and end at random, so that no two are the same.
    request_id: uuid.UUID | None = None

    def new_grant(self) -> uuid.UUID:
        """Return the id of a grant. No two grants have the same."""
        if self.request_id is None:
            return uuid.uuid4()
        return uuid.UUID(bytes=self.begin_of_grants + uuid.uuid4().bytes[8:])

    def granted(self, row: Any) -> bool:
        """Return True if the latest grant of ``row`` was made for the same request."""
        if self.request_id is None or row.grant_id is None:
            return False
        return bool(row.grant_id.bytes[:8] == self.begin_of_grants)

    @property
    def begin_of_grants(self) -> bytes:
        """The first half of the id of a grant that is made for the request: a digest of all of the
        request's, for UUIDs that are made of the time begin alike within a millisecond."""
        assert self.request_id is not None
        return blake2b(self.request_id.bytes, digest_size=8).digest()

    @property
    def grants_of_request(self) -> tuple[uuid.UUID, uuid.UUID]:
        """The lowest and the highest id of a grant that is made for the request."""
        begin = self.begin_of_grants
        return uuid.UUID(bytes=begin + bytes(8)), uuid.UUID(bytes=begin + b"\xff" * 8)

    @classmethod
    def check(
        cls,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        priority: int = 0,
        max_hold: float | timedelta | None = None,
        grace: float | timedelta | None = None,
        preempt_after: float | timedelta | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Terms:
        """Return checked terms, with their defaults. The arguments are the terms that
        ``LeaseQuerySet`` describes. Times are in seconds.

        Raises InvalidResource (the holder), InvalidTTL, ValueError.
        """
        lasting = check_ttl(ttl)
        longest = None if max_hold is None else check_duration(max_hold, "max_hold")
        if longest is not None and longest < lasting:
            raise InvalidTTL("max_hold must not be shorter than the ttl.")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValueError("The priority must be a whole number.")
        if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
            raise ValueError(f"The priority must be from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}.")
        if metadata is not None and not isinstance(metadata, dict):
            raise ValueError("The metadata must be a dictionary.")
        process = default_holder()
        holder = process if holder is None else check_name(holder, "holder")
        # A name that the caller has chosen says nothing of its program.
        known = NO_METADATA if holder == process else {"process": process}
        return cls(
            holder=holder,
            ttl=lasting,
            priority=priority,
            max_hold=longest,
            grace=check_duration(leasing_settings.GRACE if grace is None else grace, "grace"),
            preempt_after=(
                None if preempt_after is None else check_duration(preempt_after, "preempt_after")
            ),
            metadata=known if metadata is None else check_json(metadata, "metadata"),
        )


#: One for all that need none; nobody writes to it.
NO_METADATA: dict[str, Any] = {}
