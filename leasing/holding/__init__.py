"""A process's live grip on leases: ``Hold`` for users, ``HeldGrant`` for the keeper and runners."""

from leasing.holding.hold import Hold

__all__ = ["Hold"]
