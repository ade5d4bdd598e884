"""The stores of LEASING["STORES"], by alias."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from leasing.conf import leasing_settings
from leasing.runtime.terminal import suggestion
from leasing.store import Incumbent, NamedStore

#: The alias of the store in which leaders and decorated functions have their leases.
DEFAULT_STORE = "default"
#: The store of leases in rows of the database.
ROWS = "leasing.stores.rows.RowStore"


class InvalidStore(ImproperlyConfigured):
    """An entry of LEASING["STORES"] makes no store, or there is none of that alias."""


class Stores:
    """Stores by alias: ``stores["central"]``. Each is made when it is first asked for, and is the
    same for all threads. Where the setting ENABLED is off, all are in the memory of this process.
    """

    def __init__(self) -> None:
        # Taken again by a store that is made of others.
        self._lock = threading.RLock()
        self._made: dict[tuple[str, bool], NamedStore] = {}

    def __getitem__(self, alias: str) -> NamedStore:
        """Return the store with ``alias``. Raises InvalidStore."""
        key = alias, leasing_settings.ENABLED
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(*key)
            return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_entries())

    def kind_of(self, alias: str) -> type[Any]:
        """Return the class of the store with ``alias``, whatever ENABLED says. Raises
        InvalidStore."""
        return _entry(alias)[0]

    def check(self, alias: str) -> None:
        """Raise InvalidStore unless the settings make a store with ``alias``."""
        self._make(alias, is_enabled=True)

    def held(self, alias: str) -> Mapping[str, Incumbent] | None:
        """Return who holds what in the store with ``alias``, by name; None if it lists nothing.
        Raises InvalidStore, StoreError."""
        held = getattr(self[alias], "held", None)
        return None if held is None else held()

    def forget(self) -> None:
        """Make all stores again when they are next asked for: the settings have changed."""
        with self._lock:
            made, self._made = self._made, {}
        for store in made.values():
            getattr(store, "disconnect", lambda: None)()

    def _make(self, alias: str, is_enabled: bool) -> NamedStore:
        backend, options = _entry(alias)
        if not is_enabled:
            return _in_memory(backend)
        make: Any = getattr(backend, "from_settings", backend)
        try:
            store: NamedStore = make(**{key.lower(): value for key, value in options.items()})
        except InvalidStore:
            raise
        except (ImproperlyConfigured, ValueError, TypeError) as error:
            raise InvalidStore(f"{_named(alias)} makes no store: {error}") from error
        return store


def store_of(store: str | NamedStore) -> NamedStore:
    """Return ``store``, or the one with that alias. Raises InvalidStore."""
    return stores[store] if isinstance(store, str) else store


def _in_memory(backend: type[Any]) -> NamedStore:
    from leasing.stores.memory import MemoryStore, memory
    from leasing.stores.rows import RowStore

    return memory if issubclass(backend, RowStore) else MemoryStore()


def _entries() -> Mapping[str, Any]:
    given = leasing_settings.STORES
    if not isinstance(given, Mapping):
        raise InvalidStore(
            "LEASING['STORES'] must be a dictionary of stores by alias, not "
            f"{type(given).__name__}."  # its values may be secrets
        )
    return {DEFAULT_STORE: {"BACKEND": ROWS}, **given}


def _entry(alias: str) -> tuple[type[Any], dict[str, Any]]:
    """Return the class of the store with ``alias``, and its options. Raises InvalidStore."""
    entries = _entries()
    if alias not in entries:
        known = suggestion(alias, map(str, entries))
        raise InvalidStore(f"LEASING['STORES'] has no store {alias!r}. {known}")
    entry = entries[alias]
    if not isinstance(entry, Mapping) or not isinstance(entry.get("BACKEND"), str):
        raise InvalidStore(
            f"{_named(alias)} must be a dictionary with a BACKEND, such as {ROWS!r}."
        )
    options = dict(entry)
    path = options.pop("BACKEND")
    try:
        backend = import_string(path)
    except ImportError as error:
        raise InvalidStore(
            f"{_named(alias)} has the BACKEND {path!r}, which cannot be imported: {error}."
        ) from error
    if not isinstance(backend, type):
        raise InvalidStore(f"{_named(alias)} has the BACKEND {path!r}, which is no class.")
    return backend, options


def _named(alias: str) -> str:
    return f"LEASING['STORES'][{alias!r}]"


stores = Stores()


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "LEASING":
        stores.forget()


setting_changed.connect(_forget, dispatch_uid="leasing.stores.registry")
