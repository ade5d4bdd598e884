"""A process's live grip on leases: a ``Hold`` is entered, a ``Term`` is held, the keeper renews."""

from leasing.holding.hold import Hold
from leasing.holding.term import Term

__all__ = ["Hold", "Term"]
