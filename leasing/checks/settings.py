"""System checks: invalid settings, and databases configured to lose acknowledged writes."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import global_settings, settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, models, router
from django.urls import URLPattern, URLResolver, get_resolver

from leasing.conf import UNIX_SOCKET, AppSettings, is_number, leasing_settings
from leasing.db.dialects import READ_COMMITTED
from leasing.db.routing import is_ours
from leasing.runtime.terminal import suggestion
from leasing.waiting.listener import notifications_arrive

if TYPE_CHECKING:
    from leasing.models import Leasable

#: Views that a message names, at most.
MAX_NAMED = 5
#: The least similarity at which one name counts as a misspelling of the other.
LIKE = 0.6
#: Names that Django's backends give to databases; the last is that of a project without a database.
SUPPORTED = ("postgresql", "sqlite", "unknown")
#: Attributes that verbs set on the rows that they return, or annotate.
SET_ON_ROWS = frozenset({"now", "previous_expired_at", "sent_at", "state"})


NUMBERS = (
    *("TTL", "MIN_TTL", "MAX_TTL", "RENEW_EVERY", "JITTER", "MARGIN", "WAIT", "GRACE"),
    *("AUDIT_RETENTION", "API_MAX_WAIT"),
)


def unknown_settings(app_settings: AppSettings, code: str) -> list[CheckMessage]:
    """Return an error for each key that is not a setting, with the setting that was probably
    meant."""
    known, given = app_settings.known(), app_settings.given()
    if not isinstance(given, Mapping):
        text = f"{app_settings.name} must be a dictionary of settings, not {given!r}."
        return [Error(text, id=code)]
    return [
        Error(
            f"{app_settings.name} has no setting {key!r}.",
            hint=suggestion(key, known, len(known)),
            id=code,
        )
        for key in given
        if key not in known
    ]


def misnamed_settings(app_settings: AppSettings, code: str) -> list[CheckMessage]:
    """Return an error for each dictionary in the project's settings that has our settings under a
    name similar to ours: nothing would read the dictionary."""
    known = app_settings.known()
    return [
        Error(
            f"The setting {name} is ignored: these settings belong in {app_settings.name}.",
            hint=f"Rename {name} to {app_settings.name}.",
            id=code,
        )
        for name in dir(settings)
        if name.isupper()
        and name != app_settings.name
        and not hasattr(global_settings, name)
        and difflib.SequenceMatcher(None, name, app_settings.name).ratio() > LIKE
        and isinstance(given := getattr(settings, name), Mapping)
        and known.keys() & given.keys()
    ]


@register(Tags.compatibility)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """LEASING: names, types and bounds."""
    messages = unknown_settings(leasing_settings, "leasing.E001")
    messages += misnamed_settings(leasing_settings, "leasing.E019")
    messages += [
        Error(f"LEASING[{key!r}] must be a number of seconds, not {value!r}.", id="leasing.E002")
        for key in NUMBERS
        if not _is_number(value := getattr(leasing_settings, key), key)
    ]
    return messages or [*_check_bounds(), *_check_metrics(), *_check_hosts()]


def _is_number(value: object, key: str) -> bool:
    if value is None:
        return key in ("RENEW_EVERY", "MARGIN", "WAIT", "AUDIT_RETENTION")
    return is_number(value) and value >= 0


def _check_bounds() -> Iterator[CheckMessage]:
    conf = leasing_settings
    if not 0 < conf.MIN_TTL <= conf.TTL <= conf.MAX_TTL:
        yield Error("LEASING must satisfy 0 < MIN_TTL <= TTL <= MAX_TTL.", id="leasing.E003")
    if conf.RENEW_EVERY is not None and conf.RENEW_EVERY > conf.TTL / 2:
        yield Error(
            "LEASING['RENEW_EVERY'] is more than half of TTL.",
            hint="A single late renewal would lose the lease.",
            id="leasing.E004",
        )
    if conf.JITTER > 0.5:
        yield Error("LEASING['JITTER'] must be at most 0.5.", id="leasing.E005")
    if conf.DATABASE not in connections.settings:
        yield Error(
            f"LEASING['DATABASE'] is not in DATABASES: {conf.DATABASE!r}.", id="leasing.E006"
        )
    elif (vendor := connections[conf.DATABASE].vendor) not in SUPPORTED:
        yield Error(
            f"Leases and tasks cannot be stored in this database: {vendor}.",
            hint="Use PostgreSQL or SQLite. LEASING['DATABASE'] can name another database of "
            "DATABASES than the default.",
            id="leasing.E033",
        )
    if not settings.USE_TZ:
        yield Error(
            "Leases need time-zone-aware timestamps (USE_TZ = True).",
            hint="Local times repeat when daylight saving time ends. Set USE_TZ = True.",
            id="leasing.E015",
        )
    yield from (
        Error(f"LEASING[{key!r}] must be True or False.", id="leasing.E011")
        for key in ("ENABLED", "READ_ONLY", "METRICS")
        if not isinstance(getattr(conf, key), bool)
    )
    if not isinstance(conf.LISTEN_URL, str | None):
        yield Error("LEASING['LISTEN_URL'] must be a URL or None.", id="leasing.E012")
    yield from (
        Error(f"LEASING[{key!r}] must be a whole number, 0 or more.", id="leasing.E030")
        for key in ("API_WAITING_THREADS", "API_WAITING_REQUESTS", "API_WAITING_PER_CLIENT")
        if type(number := getattr(conf, key)) is not int or number < 0
    )
    if conf.API_ACCESS not in ("closed", "compatible"):
        yield Error("LEASING['API_ACCESS'] must be 'closed' or 'compatible'.", id="leasing.E007")


def _check_metrics() -> Iterator[CheckMessage]:
    conf = leasing_settings
    if not isinstance(conf.METRICS_TOKEN, str | None):
        yield Error("LEASING['METRICS_TOKEN'] must be a string or None.", id="leasing.E013")
    names = conf.METRICS_LEADERS
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        yield Error("LEASING['METRICS_LEADERS'] must be a tuple of names.", id="leasing.E014")


def _check_hosts() -> Iterator[CheckMessage]:
    for key, more in (("API_COMPATIBLE_HOSTS", ()), ("API_TRUSTED_PROXIES", (UNIX_SOCKET,))):
        networks = getattr(leasing_settings, key)
        wrong = [each for each in networks if each not in more and network_of(each) is None]
        yield from (
            Error(
                f"LEASING[{key!r}] must be a tuple of networks; {each!r} is not one.",
                id="leasing.E008",
            )
            for each in ([networks] if isinstance(networks, str) else wrong)
        )


def network_of(text: Any) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return ``text`` as a network; None if it is not one, which leasing.E008 reports."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


@register(Tags.security)
def check_api_access(**kwargs: Any) -> Iterator[CheckMessage]:
    """Warn if the API answers without credentials."""
    if leasing_settings.API_ACCESS != "compatible":
        return
    hosts = ", ".join(leasing_settings.API_COMPATIBLE_HOSTS)
    proxies = ", ".join(leasing_settings.API_TRUSTED_PROXIES)
    behind = f", judged behind {proxies} by X-Forwarded-For" if proxies else ""
    yield Warning(
        f"The lease and task API answers without credentials to {hosts}{behind}.",
        hint="Set LEASING['API_ACCESS'] = 'closed' to require a session or a token.",
        id="leasing.W001",
    )


@register(Tags.models)
def check_leasable_models(**kwargs: Any) -> list[CheckMessage]:
    """Check that every leasable model has the constraints, a queryset with the verbs, and primary
    keys that can name a lease."""
    from leasing.models import Leasable

    models = [model for model in apps.get_models() if issubclass(model, Leasable)]
    return [message for model in models if not model._meta.proxy for message in _check_model(model)]


def _check_model(model: type[Leasable]) -> Iterator[CheckMessage]:
    from leasing.querysets import LeasableQuerySet, verbs_of

    if reason := _unfit_key(model):
        yield Error(
            f"Rows of {model._meta.label} cannot be leased: {reason}.",
            hint="Lease a name instead: Lease.objects.hold(...).",
            obj=model,
            id="leasing.E018",
        )
        return
    if clashing := sorted({field.name for field in model._meta.get_fields()} & SET_ON_ROWS):
        yield Error(
            f"{model._meta.label} has fields with names that verbs set on its rows: "
            f"{', '.join(clashing)}.",
            hint="Rename them; with db_column= the columns keep their names.",
            obj=model,
            id="leasing.E032",
        )
    owner = model.leased_model()
    names = {constraint.name for constraint in owner._meta.constraints}
    if f"{owner._meta.app_label}_{owner._meta.model_name}_granted" not in names:
        yield Error(
            f"{model._meta.label} lacks the constraints of Leasable.",
            hint="Write `class Meta(Leasable.Meta):`.",
            obj=model,
            id="leasing.E009",
        )
    if not issubclass(verbs_of(model), LeasableQuerySet):
        yield Error(
            f"The default manager of {model._meta.label} lacks the lease methods.",
            hint="Derive its queryset from leasing.models.LeasableQuerySet.",
            obj=model,
            id="leasing.E010",
        )


def _unfit_key(model: type[Leasable]) -> str:
    """Return why the primary key of ``model`` cannot name a lease; empty if it can."""
    from leasing.models import MAX_KEY

    if isinstance(model._meta.pk, models.CompositePrimaryKey):
        return "their primary key is composite"
    if parents := [parent._meta.label for parent, link in model._meta.parents.items() if link]:
        return f"they are in the table of {parents[0]} too, by multi-table inheritance"
    field: Any = model._meta.pk
    while field.remote_field:
        field = field.target_field
    if isinstance(field, models.BinaryField | models.JSONField):
        return f"a {type(field).__name__} cannot name a row"
    is_text = isinstance(field, models.CharField | models.TextField)
    if is_text and (field.max_length is None or field.max_length > MAX_KEY):
        return f"their primary key may exceed the {MAX_KEY} characters that the ledger stores"
    return ""


@register(Tags.models)
def check_routers(**kwargs: Any) -> list[CheckMessage]:
    """Check that the project's routers send our models to LEASING["DATABASE"]: otherwise ``save()``
    and the admin would write to another database than the verbs."""
    kept = leasing_settings.DATABASE
    found: dict[str, list[str]] = {}
    for model in filter(is_ours, apps.get_models()):
        found.setdefault(router.db_for_write(model), []).append(model._meta.label)
    return [
        Error(
            f"Database routers send {', '.join(models)} to {using!r}, but LEASING['DATABASE'] is "
            f"{kept!r}.",
            hint="Put 'leasing.routers.LeasingRouter' first in DATABASE_ROUTERS.",
            id="leasing.E017",
        )
        for using, models in found.items()
        if using != kept
    ]


@register
def check_sqlite_mode(**kwargs: Any) -> Iterator[CheckMessage]:
    """SQLite takes its write lock at BEGIN, or fails under load with "database is locked"."""
    database = connections.settings.get(leasing_settings.DATABASE, {})
    if "sqlite3" not in database.get("ENGINE", ""):
        return
    if database.get("OPTIONS", {}).get("transaction_mode") == "IMMEDIATE":
        return
    yield Warning(
        "The SQLite database of leases does not use IMMEDIATE transactions.",
        hint='Transactions that read first fail with "database is locked" under load. '
        'Set OPTIONS["transaction_mode"] = "IMMEDIATE", and '
        'OPTIONS["init_command"] = "PRAGMA journal_mode=WAL;". If that cannot be, silence this '
        "check: SILENCED_SYSTEM_CHECKS = ['leasing.W002'].",
        id="leasing.W002",
    )


@register
def check_transactions(**kwargs: Any) -> Iterator[CheckMessage]:
    """Check the use of transactions: leases are acquired outside of them, under READ COMMITTED."""
    database = connections.settings.get(leasing_settings.DATABASE, {})
    if database.get("ATOMIC_REQUESTS") and (names := _views_in_transactions()):
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        yield Warning(
            "ATOMIC_REQUESTS puts views in transactions, where no lease can be acquired: "
            f"{', '.join(names[:MAX_NAMED])}{more}.",
            hint="Mark those that acquire leases with @transaction.non_atomic_requests. If none of "
            "the others does, silence this check: SILENCED_SYSTEM_CHECKS = ['leasing.W004'].",
            id="leasing.W004",
        )
    level = database.get("OPTIONS", {}).get("isolation_level")
    if "postgresql" in database.get("ENGINE", "") and level not in (None, READ_COMMITTED):
        yield Warning(
            "The database of leases does not use READ COMMITTED.",
            hint="Transactions of this package use it all the same. In yours, under a stricter "
            "isolation level, the loser of a race for a key gets a serialization error instead of "
            "the task that has it.",
            id="leasing.W005",
        )


def _views_in_transactions() -> list[str]:
    """Return the paths of the site's views that ATOMIC_REQUESTS puts in transactions, except for
    Django's own views, which acquire no leases."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    using = leasing_settings.DATABASE
    views = (
        each.lookup_str
        for each in _url_patterns(get_resolver().url_patterns)
        if using not in getattr(each.callback, "_non_atomic_requests", ())
    )
    return list(dict.fromkeys(name for name in views if not name.startswith("django.")))


def _url_patterns(patterns: Iterable[URLPattern | URLResolver]) -> Iterator[URLPattern]:
    for each in patterns:
        if isinstance(each, URLPattern):
            yield each
        else:
            yield from _url_patterns(each.url_patterns)


@register(Tags.database)
def check_databases(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the database keeps what it acknowledges."""
    using = postgresql_of(databases)
    return [*_check_durability(using), *_check_notifications(using)] if using else []


def postgresql_of(databases: Sequence[str] | None) -> str | None:
    """Return the database of leases if it is one of ``databases`` and on PostgreSQL, else None."""
    using = leasing_settings.DATABASE
    is_checked = using in (databases or ()) and connections[using].vendor == "postgresql"
    return using if is_checked else None


def _check_notifications(using: str) -> Iterator[CheckMessage]:
    if notifications_arrive(using):
        return
    yield Warning(
        "PostgreSQL notifications do not arrive.",
        hint="Waiters fall back to polling. Behind a pooler in transaction mode, set "
        "LEASING['LISTEN_URL'] to the server itself.",
        id="leasing.W006",
    )


def _check_durability(using: str) -> Iterator[CheckMessage]:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
        fsync, synchronous_commit = cursor.fetchone()
    if fsync == "on" and synchronous_commit != "off":
        return
    yield Warning(
        "PostgreSQL may lose grants that it has acknowledged.",
        hint="Turn on fsync and synchronous_commit, at least for leases.",
        id="leasing.W003",
    )
