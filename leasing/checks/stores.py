"""System checks: the stores of LEASING["STORES"] can be made, send no token unencrypted, and have
servers that grant leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register

from leasing.conf import leasing_settings
from leasing.exceptions import StoreError
from leasing.stores import InvalidStore, stores
from leasing.validation.names import is_unencrypted


@register(Tags.compatibility)
def check_stores(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report backends that cannot be imported, and options that are missing or unknown."""
    try:
        aliases = list(stores)
    except InvalidStore as error:
        yield _error(error)
        return
    for alias in aliases:
        try:
            stores.check(alias)
        except InvalidStore as error:
            yield _error(error)


@register(Tags.security, deploy=True)
def check_addresses(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report tokens that are sent where others may read them."""
    entries = leasing_settings.STORES
    for alias, entry in entries.items() if isinstance(entries, Mapping) else ():
        url = entry.get("URL") if isinstance(entry, Mapping) else None
        if isinstance(url, str) and entry.get("TOKEN") and is_unencrypted(url):
            yield Warning(
                f"LEASING['STORES'][{alias!r}] sends its token unencrypted.",
                hint="Use an address with https.",
                id="leasing.W112",
            )


@register(Tags.database, deploy=True)
def check_servers(**kwargs: Any) -> Iterator[CheckMessage]:
    """Ask the servers of stores whether they grant leases, and whether they may forget some."""
    for alias in stores if leasing_settings.ENABLED else ():
        try:
            store: Any = stores[alias]
        except InvalidStore:
            continue  # leasing.E031 says so
        for server in getattr(store, "members", [store]):
            if hasattr(server, "examine"):
                yield from _examined(alias, server)


def _examined(alias: str, server: Any) -> Iterator[CheckMessage]:
    """Report what is wrong with a server of the store with ``alias``."""
    try:
        for weakness in server.examine():
            yield Warning(
                f"LEASING['STORES'][{alias!r}]: {server} {weakness}",
                hint="Pass the fencing token with each write. docs/stores.md says what a server in "
                "Redis does not promise.",
                id="leasing.W113",
            )
    except StoreError as error:
        yield Error(
            f"A server of LEASING['STORES'][{alias!r}] grants no lease: {error}",
            hint="Mend it, or admit it: manage.py leases stores admit. Until then leases of this "
            "store are refused, or rest on its other members.",
            id="leasing.E104",
        )


def _error(error: InvalidStore) -> CheckMessage:
    """A store of LEASING["STORES"] is not as its class demands."""
    return Error(str(error), id="leasing.E031")
