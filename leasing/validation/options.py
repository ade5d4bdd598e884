"""Arguments that a verb does not have, told by the one that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from leasing.runtime.terminal import closest
from leasing.store import HoldOptions

Verb = TypeVar("Verb", bound=Callable[..., Any])

_EXPIRY = "pass ttl=, the seconds until it expires without a renewal"
#: Clauses about what other libraries call them.
LEASE_HINTS: Mapping[str, str] = {
    "timeout": "pass wait=, the seconds to wait for the holder, or ttl=, the seconds that it lasts",
    "blocking": "pass wait=: 0 does not wait, None waits for ever",
    "blocking_timeout": "pass wait=, the seconds to wait for the holder",
    **dict.fromkeys(("expire", "expires", "lease_time"), _EXPIRY),
    "auto_renewal": "a hold is renewed while its block runs",
    "sleep": "those that wait are notified, or look after growing pauses",
    "thread_local": "a hold belongs to no thread",
    "owner": "pass holder=",
    "store": "leasing.stores.stores[alias].hold(...) holds a name in another store",
}


def refuse_unknown(verb: str, unknown: Collection[str]) -> None:
    """Raise TypeError if a call of ``verb``, which acquires a lease, has ``unknown`` arguments."""
    if unknown:
        # Verbs on rows have some of these.
        raise unexpected(verb, unknown, sorted(HoldOptions.__optional_keys__), LEASE_HINTS)


def unexpected(
    verb: str, unknown: Iterable[str], known: Iterable[str], hints: Mapping[str, str]
) -> TypeError:
    """Return the error of a call with arguments that ``verb`` does not have.

    Args:
        verb: The name that the caller used.
        unknown: The arguments.
        known: The optional arguments of the verb and its kin.
        hints: Clauses about arguments of other libraries; that about "" is for all others.
    """
    name = min(unknown)
    meant = closest(name, known)
    if name in hints:
        hint = f": {hints[name]}."
    elif meant == name:
        hint = ": other verbs have it."
    elif meant:
        hint = f": did you mean {meant!r}?"
    else:
        hint = f": {hints['']}." if "" in hints else "."
    return TypeError(f"{verb}() got an unexpected keyword argument {name!r}{hint}")


def spelled_out(of: Callable[..., Any]) -> Callable[[Verb], Verb]:
    """Show the keyword arguments of ``of`` in the signature of the decorated function, which takes
    them by its ``**``: for help(), and for editors that read it."""

    def spell(verb: Verb) -> Verb:
        own, more = inspect.signature(verb), inspect.signature(of).parameters.items()
        shown = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        shown += [
            each
            for name, each in more
            if each.kind is each.KEYWORD_ONLY and name not in own.parameters
        ]
        verb.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        return verb

    return spell


def option_names(of: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that can only be passed by name."""
    parameters = inspect.signature(of).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
