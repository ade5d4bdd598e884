"""Judge names, durations and addresses: what clients check too, without Django."""

from __future__ import annotations

import inspect
import ipaddress
import os
import re
import secrets
import socket
import string
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from leasing.conf import leasing_settings
from leasing.exceptions import InvalidResource, InvalidTTL

MAX_NAME = 200
#: The beginnings of the names under which ledgers record clients of the API that are no users.
TOKEN, STRANGER = "token ", "a client at "
_USER = "user "
LONGEST_DURATION = 10 * 365 * 86_400

# Bounds of requests of the HTTP API, which the service keeps and its clients know.
#: The greatest size of a body, in bytes, and of one that renews leases.
MAX_BODY: Final = 64 * 1024
MAX_RENEWAL_BODY: Final = 1024 * 1024
#: Tasks of one request.
MAX_TASKS: Final = 100

_process_name: tuple[int, str] | None = None


def check_name(value: object, what: str) -> str:
    """Return ``value`` if it can name something: 1 to 200 printable characters, no space at
    either end. ``what`` names it in the error.

    Raises InvalidResource.
    """
    if not isinstance(value, str):
        raise InvalidResource(f"The {what} must be a string, not {type(value).__name__}.")
    if not 1 <= len(value) <= MAX_NAME:
        raise InvalidResource(f"The {what} must have 1 to {MAX_NAME} characters.")
    if not value.isprintable():
        raise InvalidResource(f"The {what} must not contain control characters.")
    if value != value.strip():
        raise InvalidResource(f"The {what} must not begin or end with a space.")
    return value


def recorded_name(user: Any) -> str:
    """Return the name under which ledgers record ``user``: the username, as long as no client of
    another kind could have that name."""
    name = str(user.get_username())
    if name.startswith((TOKEN, STRANGER, _USER)):
        name = f"{_USER}{name}"
    return name[:MAX_NAME]


def check_ttl(ttl: float | timedelta | None) -> timedelta:
    """Return ``ttl`` (seconds, a timedelta, or None for the setting TTL) as a timedelta.

    Raises InvalidTTL when it is no number or lies outside MIN_TTL and MAX_TTL.
    """
    if ttl is None:
        ttl = leasing_settings.TTL
    if isinstance(ttl, timedelta):
        ttl = ttl.total_seconds()
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise InvalidTTL("The ttl must be a number of seconds.")
    lowest, highest = leasing_settings.MIN_TTL, leasing_settings.MAX_TTL
    # NaN, the infinities and whole numbers too large for a float fail this comparison too.
    if not lowest <= ttl <= highest:
        raise InvalidTTL(f"The ttl must be between {lowest:.12g} and {highest:.12g} seconds.")
    return timedelta(seconds=ttl)


def check_duration(value: float | timedelta, what: str) -> timedelta:
    """Return ``value`` (seconds or a timedelta) as a timedelta of 0 s to ten years. ``what``
    names it in the error.

    Raises InvalidTTL.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidTTL(f"The {what} must be a number of seconds.")
    if not 0 <= seconds <= LONGEST_DURATION:
        raise InvalidTTL(f"The {what} must be from 0 to {LONGEST_DURATION} seconds (ten years).")
    return timedelta(seconds=seconds)


def default_holder() -> str:
    """The name of this process as a holder.

    Its program, host and process id, for people; and a random part, since a process id may come
    again. A forked child gets a name of its own.
    """
    custom = leasing_settings.HOLDER
    if custom is not None:
        return check_name(custom(), "holder")
    global _process_name
    if _process_name is None or _process_name[0] != os.getpid():
        host = "".join(c for c in socket.gethostname() if c.isprintable()).strip() or "host"
        place = f"{_program()}@{host[:100]}"
        _process_name = os.getpid(), f"{place}:{os.getpid()}:{secrets.token_hex(4)}"
    return _process_name[1]


def unique_name(label: str | None = None) -> str:
    """Return a name for one process alone: its ``label``, by default what ``default_holder`` begins
    with, and eight random hex digits.

    Raises InvalidResource.
    """
    if label is None:
        label = default_holder()
        if leasing_settings.HOLDER is None:
            label = label.rpartition(":")[0]
    return check_name(f"{label}:{secrets.token_hex(4)}", "name")


def _program() -> str:
    """Return the name of the program that this process runs: "run_worker", "gunicorn"."""
    path, argument = map(Path, [*sys.argv[:2], "", ""][:2])
    name = path.parent.name if path.name == "__main__.py" else path.name
    if name in ("manage.py", "django", "django-admin"):
        name = argument.name
    name = "".join(c for c in name[:50] if c.isprintable()).strip()
    return "python" if name in ("", "-c") else name


@contextmanager
def process_named(name: str) -> Iterator[None]:
    """A block in which ``name`` is the name of this process as a holder: leases of its own services
    and of its handlers then show who has them. LEASING["HOLDER"] has precedence."""
    global _process_name
    before = _process_name
    _process_name = os.getpid(), check_name(name, "name")
    try:
        yield
    finally:
        _process_name = before


def fields_of(template: str) -> Iterator[str]:
    """The names of the arguments that ``template`` is formatted with; empty or a number for those
    that have only a position. Raises ValueError if it is not a format string."""
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is not None:
            yield re.split(r"[.\[]", field, maxsplit=1)[0]
            yield from fields_of(spec or "")


def unknown_fields(template: str, signature: inspect.Signature) -> list[str]:
    """The fields of ``template`` that no call of a function with ``signature`` has a value for.
    Raises ValueError if it is not a format string."""
    parameters = signature.parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    known = {each.name for each in parameters}
    return sorted(
        {
            field
            for field in fields_of(template)
            if not (field in known or takes_any and field.isidentifier())
        }
    )


def is_unencrypted(url: str) -> bool:
    """Return True if what is sent to ``url`` crosses a network that others may read."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
