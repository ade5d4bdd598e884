"""System checks: the stores of LEASING["STORES"] can be made, and tell their tokens to nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register

from leasing.conf import leasing_settings
from leasing.stores import InvalidStore, stores
from leasing.validation.names import is_unencrypted


@register(Tags.compatibility)
def check_stores(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report backends that cannot be imported, and options that they lack or do not have."""
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
    given = leasing_settings.STORES
    for alias, entry in given.items() if isinstance(given, Mapping) else ():
        url = entry.get("URL") if isinstance(entry, Mapping) else None
        if isinstance(url, str) and entry.get("TOKEN") and is_unencrypted(url):
            yield Warning(
                f"LEASING['STORES'][{alias!r}] sends its token unencrypted.",
                hint="Use an address with https.",
                id="leasing.W112",
            )


def _error(error: InvalidStore) -> CheckMessage:
    """A store of LEASING["STORES"] is not as its class demands."""
    return Error(str(error), id="leasing.E031")
