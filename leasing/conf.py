"""Settings with their types and defaults, read live from ``settings.LEASING``.

``override_settings`` works at once, because nothing is copied at import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, ClassVar, TypeGuard, get_type_hints

from leasing.runtime.framework import settings

#: In place of a network: connections over a socket of this machine, which have no address.
UNIX_SOCKET = "unix:"


class Default(Enum):
    """The value of an argument that was left out, where None has a meaning of its own."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return self.name


DEFAULT = Default.DEFAULT
#: Time to wait for a lease that is held: seconds, or None for ever. DEFAULT is the setting WAIT.
Wait = float | timedelta | Default | None


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a finite number; True and False are none."""
    # Not math.isfinite(), which raises for a whole number that is too large for a float.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -math.inf < value < math.inf
    )


#: The settings that the project has loaded, which its lazy ones stand before and take long to look
#: through. Those that nobody has loaded are not loaded: in a program of the clients the environment
#: may name another project's, which cannot even be imported. Whatever needs Django has loaded them.
_loaded = partial(object.__getattribute__, settings, "_wrapped")


class _Setting:
    """The attribute of one setting: what the project has set now, or the default."""

    __slots__ = ("default", "key")

    def __init__(self, key: str, default: Any) -> None:
        self.key = key
        self.default = default

    def __get__(self, read: AppSettings | None, kind: type[AppSettings]) -> Any:
        if read is None:
            return self.default
        # Not ``read.given()``, for every verb reads several.
        given = getattr(_loaded(), read.name, None)
        return given[self.key] if given and self.key in given else self.default


class AppSettings:
    """The upper-case attributes of a subclass are the defaults of one settings dictionary."""

    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def __init_subclass__(cls) -> None:
        own = {key: default for key, default in vars(cls).items() if key.isupper()}
        cls.defaults = {**cls.defaults, **own}
        for key, default in own.items():
            setattr(cls, key, _Setting(key, default))

    def given(self) -> Mapping[str, Any]:
        """Return the settings that the project has set."""
        return getattr(_loaded(), self.name, None) or {}

    @classmethod
    def known(cls) -> dict[str, Any]:
        """Every setting's name with its type."""
        return {key: hint for key, hint in get_type_hints(cls).items() if key.isupper()}


class LeasingSettings(AppSettings):
    """``settings.LEASING``. Times are in seconds."""

    #: Seconds that a lease lasts, unless the caller passes a ttl.
    TTL: float = 30.0
    #: The shortest ttl that a caller may pass.
    MIN_TTL: float = 1.0
    #: The longest.
    MAX_TTL: float = 86_400.0
    #: Seconds between renewals of a hold; None is a third of its ttl.
    RENEW_EVERY: float | None = None
    #: Each renewal comes earlier or later by up to this share, so that processes spread out.
    JITTER: float = 0.15
    #: Seconds before the database's expiry at which a holder stops trusting its lease; None is the
    #: larger of 0.2 s (a round trip) and 2 % of the ttl (clocks that run at different rates).
    MARGIN: float | None = None
    #: Seconds to wait for a lease that is held, unless the caller passes ``wait``; None: forever.
    WAIT: float | None = 0.0
    #: Seconds after an expiry (not a release) during which nobody else gets a lease, unless its
    #: holder gave another number: time for writes of a crashed holder to arrive.
    GRACE: float = 0.0
    #: The database of leases.
    DATABASE: str = "default"
    #: The address of the PostgreSQL server itself, to listen for releases if DATABASE is a pooler
    #: that drops notifications. None is the address of DATABASE.
    LISTEN_URL: str | None = None
    #: False keeps leases in the memory of each process instead of the database: for tests, and
    #: for sites of one process. See ``leasing.stores.memory``.
    ENABLED: bool = True
    #: Places in which leases are kept, by alias, as CACHES names caches: each has a BACKEND and the
    #: options of that. "default" is that of leaders and decorated functions: rows, if it
    #: is not named. See ``leasing.stores``.
    STORES: Mapping[str, Mapping[str, Any]] = {}
    #: Returns the holder name of this process; None is ``program@host:pid:random``.
    HOLDER: Callable[[], str] | None = None
    #: "closed": the API requires a signed-in user with permission, or a token with scopes.
    #: "compatible": as well, clients of the public sample service, without credentials, from
    #: API_COMPATIBLE_HOSTS only.
    API_ACCESS: str = "closed"
    #: Networks from which the compatible mode answers.
    API_COMPATIBLE_HOSTS: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    #: Seconds that a request to the API may wait, at most.
    API_MAX_WAIT: float = 30.0
    #: Requests that may wait at the same time in one process of a WSGI server with several threads;
    #: the others are answered at once. In a process with one thread none waits.
    API_WAITING_THREADS: int = 1
    #: Requests that may wait at the same time in one process of an ASGI server; the others are
    #: answered at once.
    API_WAITING_REQUESTS: int = 400
    #: The number of these that may be of one user, token or address.
    API_WAITING_PER_CLIENT: int = 200
    #: Networks of the proxies whose X-Forwarded-For is believed; UNIX_SOCKET is that of a proxy
    #: which connects over a socket of this machine.
    API_TRUSTED_PROXIES: tuple[str, ...] = ()
    #: True to refuse changes by pages, admin and API, to every user.
    READ_ONLY: bool = False
    #: True to count, for metrics, in every process of this site. Processes with a
    #: ``--metrics-port`` count anyway.
    METRICS: bool = False
    #: The bearer token that permits to read the metrics; None: no token does. Users with
    #: ``leasing.view_metrics`` may read them too.
    METRICS_TOKEN: str | None = None
    #: The names of leaderships that should always have a leader, for an alert.
    METRICS_LEADERS: tuple[str, ...] = ()
    #: True to trace leases and tasks with OpenTelemetry. Read as the apps start.
    TRACES: bool = False
    #: Seconds for which audit entries are kept, by default a year; None: without limit.
    AUDIT_RETENTION: float | None = 365 * 86_400.0


leasing_settings = LeasingSettings("LEASING")
