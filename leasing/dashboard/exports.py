"""Columns that the lists of leases, their events and the audit export."""

from __future__ import annotations

from typing import Final

from leasing.web.export import Column, plain

LEASES: Final = [
    Column("id", lambda row: row.lease_id),
    Column("resource", lambda row: row.lease_resource),
    Column("state", lambda row: row.state),
    *plain("holder", "acquired_at", "renewed_at", "renewals", "released_at"),
    Column("expires_at", lambda row: row.expires_at if row.grants else None),
    Column("ttl_seconds", lambda row: row.ttl.total_seconds()),
    *plain("fencing_token", "grants"),
]
EVENTS: Final = plain(
    *("id", "at", "resource", "kind", "holder", "previous_holder", "fencing_token"),
    *("previous_expired_at", "reason", "actor"),
)
AUDIT: Final = plain(
    *("id", "at", "by", "verb", "via", "model", "target", "reason"),
    *("asked", "changed", "skipped", "error", "finished_at"),
)
