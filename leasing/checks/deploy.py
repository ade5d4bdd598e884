"""Check the settings of a production for what is unsafe: ``manage.py check --deploy``.

The checks report only what loses leases, or opens them to strangers. With ``--database`` they also
query the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections

from leasing.checks.settings import network_of, postgresql_of
from leasing.conf import leasing_settings
from leasing.waiting.listener import notifications_arrive

#: In seconds. With a shorter ttl, a pause of a virtual machine or a failover takes longer than the
#: time that is left when a renewal is due.
SHORTEST_TTL = 5
#: Characters of a token that nobody guesses: 128 bits in hexadecimal digits.
SHORTEST_TOKEN = 32
#: Names that a message has, at most.
NAMED = 5


@register(Tags.security, deploy=True)
def check_strangers(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report an API that accepts calls without credentials."""
    if leasing_settings.API_ACCESS != "compatible":
        return
    public = [each for each in leasing_settings.API_COMPATIBLE_HOSTS if _is_public(each)]
    if public:
        yield Error(
            "The API lets clients at public addresses acquire and complete without "
            f"credentials: {', '.join(public)}.",
            hint="Set LEASING['API_ACCESS'] = 'closed', or list only private networks in "
            "LEASING['API_COMPATIBLE_HOSTS'].",
            id="leasing.E101",
        )
    if "*" in settings.ALLOWED_HOSTS:
        yield Error(
            "The API answers without credentials under any host name: any web page can call it "
            "from its visitors' browsers.",
            hint="List this site in ALLOWED_HOSTS, or set LEASING['API_ACCESS'] = 'closed'.",
            id="leasing.E102",
        )


def _is_public(text: str) -> bool:
    network = network_of(text)
    return network is not None and not network.is_private


@register(Tags.security, deploy=True)
def check_metrics(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report metrics that strangers could read by guessing."""
    token = leasing_settings.METRICS_TOKEN
    if token is None or len(str(token)) >= SHORTEST_TOKEN:
        return
    yield Warning(
        "LEASING['METRICS_TOKEN'] is short enough to be guessed.",
        hint=f"Use at least {SHORTEST_TOKEN} characters, for example from "
        "secrets.token_hex(), or None to accept no token.",
        id="leasing.W108",
    )


@register(Tags.security, deploy=True)
def check_enabled(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report that leases are kept in the memory of each process, unknown to other processes."""
    if leasing_settings.ENABLED:
        return
    yield Warning(
        "Leases are kept in the memory of each process: two processes can hold the same one.",
        hint="LEASING['ENABLED'] = False is only for tests and for a single process.",
        id="leasing.W007",
    )


@register(Tags.compatibility, deploy=True)
def check_times(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report times that are too short for a holder to survive a delay."""
    if _is_below(leasing_settings.TTL, SHORTEST_TTL):
        yield Warning(
            f"LEASING['TTL'] is {leasing_settings.TTL:.12g} s: a short pause of a process or of "
            "the database loses its leases.",
            hint=f"Use at least {SHORTEST_TTL} s; pass `ttl` where a shorter one is needed.",
            id="leasing.W101",
        )
    if leasing_settings.MARGIN == 0:
        yield Warning(
            "LEASING['MARGIN'] is 0: a holder whose clock runs slower than the database's "
            "still trusts its lease when another already holds it.",
            hint="Remove the setting: the default is the larger of 0.2 s and 2 % of the ttl.",
            id="leasing.W102",
        )


def _is_below(value: object, bound: float) -> bool:
    return isinstance(value, int | float) and value < bound


@register(Tags.compatibility, deploy=True)
def check_connections(**kwargs: Any) -> Iterator[CheckMessage]:
    """Check the settings of the database of leases, without a query."""
    database = connections.settings.get(leasing_settings.DATABASE, {})
    engine = database.get("ENGINE", "")
    if "sqlite" in engine:
        yield Warning(
            "Leases and tasks are stored in SQLite, which has one writer at a time: behind a "
            "long transaction, renewals come too late and leases are lost.",
            hint="Use PostgreSQL with more than one worker or machine.",
            id="leasing.W103",
        )
    elif "postgresql" in engine:
        yield from _check_patience(database)


def _check_patience(database: dict[str, Any]) -> Iterator[CheckMessage]:
    options = database.get("OPTIONS", {})
    host = database.get("HOST") or options.get("host", "")
    if not host or host.startswith("/"):
        return  # a Unix socket: no network drops packets
    ttl = leasing_settings.TTL
    timeout = options.get("connect_timeout")
    # Zero means for ever, as in libpq.
    if timeout and _is_below(float(timeout), ttl):
        return
    yield Warning(
        "Connecting to the database of leases may take longer than a lease lasts.",
        hint=f'Set OPTIONS["connect_timeout"] to a few seconds, below the ttl of {ttl:.12g} s, '
        'and likewise OPTIONS["tcp_user_timeout"] (milliseconds) and "keepalives_idle". '
        "Otherwise a network that drops packets blocks a worker for minutes.",
        id="leasing.W104",
    )


@register(Tags.security, deploy=True)
def check_proxies(**kwargs: Any) -> Iterator[CheckMessage]:
    """Report trusted networks that are too wide, and sessions that a TLS-terminating proxy
    breaks."""
    trusted = leasing_settings.API_TRUSTED_PROXIES
    if not trusted:
        return
    crowds = [each for each in trusted if _is_crowd(each)]
    if crowds and leasing_settings.API_ACCESS == "compatible":
        yield Warning(
            "Clients without credentials can claim any address in X-Forwarded-For if they are in "
            f"{', '.join(crowds)}.",
            hint="List the addresses of the proxies in LEASING['API_TRUSTED_PROXIES'], not a "
            "network that has other hosts too.",
            id="leasing.W109",
        )
    knows_https = settings.SECURE_PROXY_SSL_HEADER or settings.CSRF_TRUSTED_ORIGINS
    if settings.CSRF_COOKIE_SECURE and not knows_https:
        yield Warning(
            "Behind a proxy that terminates TLS, Django treats requests as plain HTTP and refuses "
            "changes by signed-in users over the API.",
            hint='Set SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if the proxy '
            "sets that header itself, or name the site in CSRF_TRUSTED_ORIGINS.",
            id="leasing.W110",
        )


def _is_crowd(text: str) -> bool:
    network = network_of(text)
    return network is not None and network.num_addresses > 256


# Checks that query the database


@register(Tags.database, deploy=True)
def check_tokens(databases: Sequence[str] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Report tokens that never expire, if the database of leases is checked."""
    if leasing_settings.DATABASE not in (databases or ()):
        return
    tokens: Any = apps.get_model("leasing", "ApiToken")._default_manager
    endless = tokens.home().usable().filter(expires_at=None)
    try:
        names = list(endless.values_list("name", flat=True)[: NAMED + 1])
    except DatabaseError:
        return  # before the first migration
    if not names:
        return
    listed = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
    yield Warning(
        f"These API tokens never expire: {listed}.",
        hint="A leaked token works until someone revokes it. Replace it by one that expires: "
        "manage.py api_tokens create.",
        id="leasing.W111",
    )


@register(Tags.database, deploy=True)
def check_server(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the configuration of PostgreSQL."""
    using = postgresql_of(databases)
    return [*check_role(using), *check_pooler(using)] if using else []


def check_role(using: str) -> Iterator[CheckMessage]:
    """Ask whether the role of this site can hold leases."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('transaction_read_only'), current_setting("
            "'default_transaction_isolation'), current_setting('autovacuum')"
        )
        read_only, isolation, autovacuum = cursor.fetchone()
    if read_only == "on":
        yield Error(
            "The database of leases is read-only: no lease can be granted.",
            hint="LEASING['DATABASE'] points to a standby server, or "
            "default_transaction_read_only is on.",
            id="leasing.E103",
        )
    if isolation != "read committed":
        yield Warning(
            f"The default isolation level of the database is {isolation}.",
            hint="The loser of a race for a lease gets a serialization error instead of "
            "LeaseHeld, and claims that may be repeated are refused. Set "
            "default_transaction_isolation to read committed, at least for this role.",
            id="leasing.W105",
        )
    if autovacuum != "on":
        yield Warning(
            "Autovacuum is off: every renewal leaves a dead row version behind.",
            hint="Turn it on. Otherwise claims get slower by the hour.",
            id="leasing.W106",
        )


def check_pooler(
    using: str, arrive: Callable[[str], bool] = notifications_arrive
) -> Iterator[CheckMessage]:
    """Check whether connections keep state that a pooler in transaction mode would mix up."""
    database = connections.settings[using]
    threshold = database.get("OPTIONS", {}).get("prepare_threshold")
    if database.get("DISABLE_SERVER_SIDE_CURSORS") and threshold is None:
        return
    if leasing_settings.LISTEN_URL or arrive(using):
        return  # LISTEN_URL may bypass a pooler, so notifications do not reveal one
    yield Warning(
        "The database seems to be behind a pooler in transaction mode, but connections keep "
        "server-side cursors or prepared statements.",
        hint="Set DISABLE_SERVER_SIDE_CURSORS to True, and remove "
        'OPTIONS["prepare_threshold"] unless the pooler supports prepared statements '
        "(PgBouncer does from 1.21).",
        id="leasing.W107",
    )
