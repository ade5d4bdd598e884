"""System check: the stores of LEASING["STORES"] can be made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register

from leasing.stores import InvalidStore, stores


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


def _error(error: InvalidStore) -> CheckMessage:
    return Error(error.message, hint=error.hint or None, id="leasing.E031")
