"""System checks."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin import site
from django.core.checks import run_checks
from django.db import connection, connections, models, transaction
from django.test import override_settings
from django.test.utils import isolate_apps
from django.urls import include, path
from django.views import generic

from leasing.checks import settings as checks
from leasing.conf import leasing_settings
from leasing.models import Leasable, Lease
from leasing.querysets import LeasableQuerySet
from tests.plugin import ROOT


def problems(**leasing: Any) -> list[str | None]:
    with override_settings(LEASING=leasing):
        return [message.id for message in checks.check_settings()]


def test_the_defaults_are_fine() -> None:
    assert problems() == []


@pytest.mark.django_db
def test_the_checks_are_registered() -> None:
    with override_settings(LEASING={"TLT": 3}):
        assert "leasing.E001" in [message.id for message in run_checks()]


def test_no_leasing_setting_at_all_is_fine() -> None:
    with override_settings(LEASING=None):
        assert checks.check_settings() == []


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("TLT", "TTL"), ("ttl", "TTL"), ("RENEW_EVRY", "RENEW_EVERY"), ("MAXTTL", "MAX_TTL")],
)
def test_a_typo_gets_a_suggestion(typo: str, meant: str) -> None:
    with override_settings(LEASING={typo: 3}):
        (message,) = checks.check_settings()

    assert message.id == "leasing.E001"
    assert repr(typo) in message.msg and repr(meant) in str(message.hint)


@pytest.mark.parametrize("nonsense", ["XQZW", 7])
def test_what_resembles_no_setting_gets_the_list(nonsense: object) -> None:
    with override_settings(LEASING={nonsense: 3}):
        (message,) = checks.check_settings()

    assert all(name in str(message.hint) for name in leasing_settings.known())


@pytest.mark.parametrize("name", ["LEASE", "LEASES", "LEASINGS"])
def test_settings_under_another_name_are_told_so(name: str) -> None:
    with override_settings(**{name: {"TTL": 5}}):
        (message,) = checks.check_settings()

    assert message.id == "leasing.E019"
    assert message.msg == f"The setting {name} is ignored: these settings belong in LEASING."


WAITING = ("API_WAITING_THREADS", "API_WAITING_REQUESTS", "API_WAITING_PER_CLIENT")
#: Settings, and the ids of what is wrong in them: each is refused by its own, and judged alone.
SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(
        ({key: value}, "leasing.E002")
        for key in checks.NUMBERS
        for value in ("30", True, -1, [30], math.inf, math.nan)
    ),
    ({"MAX_TTL": 10**400}, ""),
    ({"RENEW_EVERY": None, "MARGIN": None, "WAIT": None}, ""),  # they have rules of their own
    ({"TTL": None}, "leasing.E002"),
    ({"TTL": 0.5}, "leasing.E003"),  # the bounds leave it out
    ({"MAX_TTL": 10}, "leasing.E003"),
    ({"MIN_TTL": 60}, "leasing.E003"),
    ({"MIN_TTL": 0}, "leasing.E003"),
    ({"RENEW_EVERY": 15}, ""),
    ({"RENEW_EVERY": 15.1}, "leasing.E004"),  # less often than twice in a ttl
    ({"JITTER": 0.5}, ""),
    ({"JITTER": 0.51}, "leasing.E005"),
    ({"DATABASE": "archive"}, "leasing.E006"),
    ({"API_ACCESS": "open"}, "leasing.E007"),
    ({"API_COMPATIBLE_HOSTS": ("10.0.0.0/8", "localhost")}, "leasing.E008"),
    ({"API_COMPATIBLE_HOSTS": ("unix:",)}, "leasing.E008"),
    ({"API_TRUSTED_PROXIES": ("10.0.0.5", "unix:")}, ""),
    ({"API_TRUSTED_PROXIES": ("10.0.0.5/8",)}, "leasing.E008"),
    ({"API_TRUSTED_PROXIES": "10.0.0.5"}, "leasing.E008"),
    *(({"ENABLED": value}, "leasing.E011") for value in (None, 0, 1, "no")),
    ({"LISTEN_URL": "postgresql://db.example/site"}, ""),
    ({"LISTEN_URL": None}, ""),
    ({"LISTEN_URL": ["db.example"]}, "leasing.E012"),
    ({"METRICS_TOKEN": "a token"}, ""),
    ({"METRICS_TOKEN": None}, ""),
    ({"METRICS_TOKEN": 17}, "leasing.E013"),
    ({"METRICS_LEADERS": ["scheduler"]}, ""),
    ({"METRICS_LEADERS": "scheduler"}, "leasing.E014"),
    *(({key: value}, "") for key in WAITING for value in (0, 8)),
    *(({key: value}, "leasing.E030") for key in WAITING for value in (-1, 1.5, True, None, "1")),
    ({"JITTER": 1, "API_ACCESS": "open"}, "leasing.E005 leasing.E007"),  # told together
]


@pytest.mark.parametrize(
    ("given", "found"),
    SETTINGS,
    ids=[f"{given}: {found or 'fine'}"[:120] for given, found in SETTINGS],
)
def test_a_setting_is_judged_by_its_type_and_bounds(given: dict[str, Any], found: str) -> None:
    assert problems(**given) == found.split()


def test_each_check_has_an_id_of_its_own() -> None:
    """Silencing one would silence the other."""
    sources = (path for package in ("leasing", "tasks") for path in (ROOT / package).rglob("*.py"))
    used = Counter(
        found
        for source in sources
        for found in re.findall(
            r"(?<!\[)[\"']((?:leasing|leasing_tasks)\.[EWI]\d+)[\"']", source.read_text()
        )
    )

    assert [code for code, times in used.items() if times > 1] == []
    assert len(used) > 50


def test_a_database_other_than_postgresql_and_sqlite_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert problems() == []
    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    assert problems() == ["leasing.E033"]


def test_moments_without_a_zone_are_refused(settings: Any) -> None:
    settings.USE_TZ = False

    assert problems() == ["leasing.E015"]


# Access


def test_the_closed_api_needs_no_warning() -> None:
    with override_settings(LEASING={}):
        assert list(checks.check_api_access()) == []


def test_the_compatible_api_is_warned_of_with_whom_it_answers() -> None:
    with override_settings(
        LEASING={"API_ACCESS": "compatible", "API_COMPATIBLE_HOSTS": ("10.0.0.0/8",)}
    ):
        (warning,) = checks.check_api_access()

    assert warning.id == "leasing.W001"
    assert "10.0.0.0/8" in warning.msg


# Models


def test_the_installed_models_are_fine() -> None:
    assert checks.check_leasable_models() == []


@isolate_apps("tests.leasing")
def test_a_model_that_lost_the_constraints_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Boat(Leasable):
        class Meta:
            app_label = "leasing"

    assert _problems_of(Boat, monkeypatch) == ["leasing.E009"]


@isolate_apps("tests.leasing")
def test_a_model_whose_manager_has_no_verbs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Boat(Leasable):
        objects = models.Manager()  # type: ignore[assignment]

        class Meta(Leasable.Meta):
            app_label = "leasing"

    assert _problems_of(Boat, monkeypatch) == ["leasing.E010"]


@isolate_apps("tests.leasing")
def test_a_field_that_verbs_would_overwrite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Boat(Leasable):
        sent_at = models.DateTimeField(null=True)  # type: ignore[assignment]
        state = models.TextField()

        class Meta(Leasable.Meta):
            app_label = "leasing"

    assert _problems_of(Boat, monkeypatch) == ["leasing.E032"]


@isolate_apps("tests.leasing")
def test_a_model_of_ones_own_inherits_constraints_and_verbs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Boat(Leasable):
        class Meta(Leasable.Meta):
            app_label = "leasing"

    assert _problems_of(Boat, monkeypatch) == []
    assert isinstance(Boat.objects.all(), LeasableQuerySet)
    assert Boat(pk=3).lease_id == "boat:3"
    assert Boat(pk=3).lease_resource == "leasing.boat:3"
    assert {c.name for c in Boat._meta.constraints} == {
        name.replace("_lease_", "_boat_") for name in (c.name for c in Lease._meta.constraints)
    }


KEYS: list[tuple[Any, str]] = [
    (models.JSONField(primary_key=True), "a JSONField cannot name a row"),
    (models.BinaryField(primary_key=True), "a BinaryField cannot name a row"),
    (models.CharField(primary_key=True, max_length=401), "exceed the 400 characters"),
    (models.TextField(primary_key=True), "exceed the 400 characters"),
]


@isolate_apps("tests.leasing")
@pytest.mark.parametrize(("key", "reason"), KEYS, ids=[type(key).__name__ for key, _ in KEYS])
def test_a_key_that_no_lease_can_go_by_is_refused(
    key: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = type("Meta", (Leasable.Meta,), {"app_label": "leasing"})
    attributes = {"key": key, "Meta": meta, "__module__": __name__}

    message = _problem_of(type("Boat", (Leasable,), attributes), monkeypatch)
    assert message.startswith("Rows of leasing.Boat cannot be leased: ")
    assert reason in message


@isolate_apps("tests.leasing")
def test_a_key_of_several_columns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Boat(Leasable):
        pk = models.CompositePrimaryKey("port", "number")
        port = models.IntegerField()
        number = models.IntegerField()

        class Meta(Leasable.Meta):
            app_label = "leasing"

    assert "primary key is composite" in _problem_of(Boat, monkeypatch)


@isolate_apps("tests.leasing")
def test_a_child_by_multi_table_inheritance_is_refused_and_a_proxy_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Boat(Leasable):
        class Meta(Leasable.Meta):
            app_label = "leasing"

    class Ferry(Boat):
        class Meta:
            app_label = "leasing"

    class Hull(models.Model):
        class Meta:
            app_label = "leasing"

    class Tug(Leasable, Hull):
        class Meta(Leasable.Meta):
            app_label = "leasing"

    class Sloop(Boat):
        class Meta:
            app_label = "leasing"
            proxy = True

    for child, parent in ((Ferry, "Boat"), (Tug, "Hull")):
        reason = f"in the table of leasing.{parent} too, by multi-table inheritance"
        assert reason in _problem_of(child, monkeypatch)
    assert _problems_of(Sloop, monkeypatch) == []
    assert Sloop(pk=3).lease_resource == Boat(pk=3).lease_resource == "leasing.boat:3"


def _problem_of(model: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(apps, "get_models", lambda: [Lease, model])
    (message,) = checks.check_leasable_models()
    assert message.id == "leasing.E018"
    return str(message.msg)


def _problems_of(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    monkeypatch.setattr(apps, "get_models", lambda: [Lease, model])
    return [message.id for message in checks.check_leasable_models()]


# Databases


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"transaction_mode": "IMMEDIATE"}, []),
        ({"transaction_mode": "DEFERRED"}, ["leasing.W002"]),
        ({}, ["leasing.W002"]),
    ],
)
def test_sqlite_is_warned_of_unless_it_begins_immediate(
    options: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": options}
    monkeypatch.setitem(connections.settings, "default", database)

    messages = list(checks.check_sqlite_mode())
    assert [message.id for message in messages] == expected
    assert all("['leasing.W002']" in str(message.hint) for message in messages)


def view(request: Any) -> None:
    """Acquire a lease, as far as the check knows."""


class View(generic.View):
    """A view of a class, of which the same is known."""


def patterns(*views: Any) -> Any:
    """Return a URLconf that has these views, some of them included."""
    first, *others = [path(f"{number}/", view) for number, view in enumerate(views)]
    return type("Patterns", (), {"urlpatterns": [first, path("in/", include(others))]})


def test_views_in_transactions_are_named_until_each_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    marked = transaction.non_atomic_requests
    admin = path("admin/", site.urls).url_patterns[0].callback

    with override_settings(ROOT_URLCONF=patterns(admin, view, View.as_view())):
        (warning,) = checks.check_transactions()
        assert warning.id == "leasing.W004"
        assert f"in transactions, where no lease can be acquired: {__name__}.view, " in warning.msg
        assert warning.msg.endswith(f"{__name__}.View.")
        assert "['leasing.W004']" in str(warning.hint)
    with override_settings(ROOT_URLCONF=patterns(admin, marked(view), View.as_view())):
        assert f"acquired: {__name__}.View." in next(checks.check_transactions()).msg
    other = marked(using="other")(View.as_view())
    with override_settings(ROOT_URLCONF=patterns(admin, marked(view), other)):
        assert f"acquired: {__name__}.View." in next(checks.check_transactions()).msg
    with override_settings(ROOT_URLCONF=patterns(admin, marked(view), marked(View.as_view()))):
        assert list(checks.check_transactions()) == []
    with override_settings(ROOT_URLCONF=None):
        assert list(checks.check_transactions()) == []


def test_many_views_in_transactions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    views: list[Any] = [type(f"View{number}", (generic.View,), {}) for number in range(9)]

    with override_settings(ROOT_URLCONF=patterns(*(each.as_view() for each in views))):
        assert next(checks.check_transactions()).msg.endswith(" and 4 more.")


def test_another_database_is_not_asked_for_its_sqlite_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = {"ENGINE": "django.db.backends.postgresql"}
    monkeypatch.setitem(connections.settings, "default", database)

    assert list(checks.check_sqlite_mode()) == []


@pytest.mark.django_db
def test_the_database_is_asked_only_when_the_checks_may() -> None:
    assert checks.check_databases() == []
    assert checks.check_databases(databases=["archive"]) == []


@pytest.mark.django_db
def test_a_postgresql_that_may_forget_is_warned_of() -> None:
    ids = [message.id for message in checks.check_databases(databases=["default"])]
    if connection.vendor != "postgresql":
        assert ids == []
        return
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
    assert [m.id for m in checks.check_databases(databases=["default"])] == ["leasing.W003"]


def test_messages_can_be_copied() -> None:
    """Django's runner pickles and copies messages."""
    with override_settings(LEASING={"TLT": 3}):
        (message,) = checks.check_settings()
    assert copy.copy(message) == message
