"""Stores of leases: rows of the database, rows over a separate connection, memory, and those that
LEASING["STORES"] names, by alias::

    from leasing.stores import stores

    with stores["central"].hold("report:42", ttl=30) as hold:
        ...
"""

from __future__ import annotations

from leasing.stores.registry import DEFAULT_STORE, InvalidStore, store_of, stores

__all__ = ["DEFAULT_STORE", "InvalidStore", "store_of", "stores"]
