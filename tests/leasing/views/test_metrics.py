"""The metrics of the web app: who may read them, and what they say of leases."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.metrics import database, leases, registry
from leasing.metrics.database import Family, Figure, TooMany, read_all
from leasing.models import LeaseState
from tasks.metrics import database as task_figures
from tests.factories import make_lease, make_task
from tests.limits import Limits
from tests.metrics import Scrape, check_names
from tests.pages import signed_in
from tests.plugin import ROOT

pytestmark = pytest.mark.django_db

METRICS = "/ops/metrics"
TOKEN = "the scraper's own"


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    """No test is shown what another has read."""
    yield
    leases.figures.cache_clear()
    task_figures.figures.cache_clear()


@pytest.fixture
def with_token(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "METRICS_TOKEN": TOKEN}


def read(token: str = TOKEN, **headers: str) -> Any:
    """The answer to a scraper."""
    return Client().get(METRICS, headers={"Authorization": f"Bearer {token}", **headers})


# Who may


@pytest.mark.usefixtures("with_token")
def test_who_has_the_token_reads_the_metrics() -> None:
    response = read()

    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    assert "no-store" in response["Cache-Control"]
    assert "leasing_leases" in Scrape(response.content.decode()).names


@pytest.mark.usefixtures("with_token")
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Token {TOKEN}", "Bearer é"])
def test_nobody_else_does(header: str) -> None:
    response = Client().get(METRICS, headers={"Authorization": header} if header else {})

    assert response.status_code == 401
    assert response["WWW-Authenticate"] == 'Bearer realm="metrics"'
    assert b"leasing_" not in response.content


@pytest.mark.parametrize("token", ["", "None", TOKEN])
def test_without_a_token_in_the_settings_none_opens(token: str) -> None:
    assert read(token).status_code == 401


def test_an_empty_token_opens_nothing(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "METRICS_TOKEN": ""}

    assert read("").status_code == 401


@pytest.mark.parametrize(("permissions", "status"), [(["leasing.view_metrics"], 200), ([], 403)])
def test_a_user_needs_the_permission(permissions: list[str], status: int) -> None:
    assert signed_in(*permissions).get(METRICS).status_code == status


@pytest.mark.usefixtures("with_token")
def test_metrics_are_only_read() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert Client().post(METRICS, headers=headers).status_code == 405


@pytest.mark.usefixtures("with_token")
def test_without_the_client_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    response = read()

    assert response.status_code == 501
    assert registry.EXTRA in response.content.decode()


# What it says


@pytest.mark.usefixtures("with_token")
def test_leases_are_counted_by_model_and_state(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "METRICS_LEADERS": ("berth:one", "berth:two")}
    make_lease(resource="berth:one")
    make_lease(resource="berth:two", state=LeaseState.EXPIRED)
    for state in (LeaseState.ACTIVE, LeaseState.RELEASED, "revoked", LeaseState.FREE):
        make_lease(state=state)
    make_task(state="running")
    make_task(state="stuck")
    make_task(state="succeeded")

    found = Scrape(read().content.decode())

    def count(model: str, state: str) -> float:
        return found.sum("leasing_leases", model=model, state=state)

    assert [count("leasing.lease", each) for each in ("active", "expired", "released")] == [2, 1, 2]
    assert [count("leasing_tasks.task", each) for each in ("active", "expired", "released")] == [
        1,
        1,
        0,
    ]
    assert found.sum("leasing_leaders_wanted") == 2
    assert found.sum("leasing_leaders_present") == 1
    assert found.sum("leasing_figures_up") == len(list(registry.figures()))
    assert found.sum("leasing_figures_skipped") == 0


@pytest.mark.usefixtures("with_token", "on_postgresql")
def test_updates_that_touch_no_index_are_told_of_apart() -> None:
    found = Scrape(read().content.decode())

    assert found.sum("leasing_table_size_bytes", model="leasing_tasks.task") > 0
    assert found.sum("leasing_table_hot_updates_total") <= found.sum("leasing_table_updates_total")
    assert found.sum("leasing_table_updates_total", model="leasing.lease") >= 0


@pytest.mark.usefixtures("with_token")
def test_no_label_names_a_resource_or_a_holder() -> None:
    make_lease(resource="berth:one", holder="ann")
    make_task(state="running", holder="ann")

    found = Scrape(read().content.decode())

    assert found.labels == {"model", "state", "queue", "role", "figure"}
    assert "ann" not in found.text and "berth" not in found.text


@pytest.mark.usefixtures("with_token")
def test_more_rows_are_not_more_queries() -> None:
    def queries() -> int:
        leases.figures.cache_clear()
        task_figures.figures.cache_clear()
        with CaptureQueriesContext(
            connection,
        ) as captured:
            read()
        return len(captured)

    before = queries()
    for _ in range(3):
        make_lease()
        make_task(state="running")

    assert queries() == before < 100


@pytest.mark.usefixtures("with_token")
def test_names_are_as_promtool_wants_them() -> None:
    check_names(read().content.decode())


@pytest.mark.usefixtures("with_token")
def test_who_asks_for_the_newer_format_gets_it() -> None:
    response = read(Accept="application/openmetrics-text; version=1.0.0")

    assert response["Content-Type"].startswith("application/openmetrics-text")
    assert response.content.endswith(b"# EOF\n")


@pytest.mark.usefixtures("with_token")
def test_the_page_of_metrics_names_every_one() -> None:
    page = (ROOT / "docs" / "metrics-reference.md").read_text()

    shown = Scrape(read().content.decode()).names
    assert [name for name in shown if f"`{name}`" not in page] == []


# Several processes

ONE = """
from django.conf import settings
settings.LEASING = {"METRICS": True}
import django; django.setup()
from prometheus_client import Counter
from leasing.runtime.events import happened
from leasing.models import Lease
for _ in range(40):
    happened("lease.released", [Lease(resource="crane:1")])
Counter("shop_orders_total", "The site's own.").inc()
"""
# What a process leaves behind; without the time that it takes to start a site.
ANOTHER = """
from prometheus_client import Counter
Counter("leasing_releases_total", "Here.", ["model"]).labels("leasing.lease").inc(2)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("with_token")
def test_what_the_processes_of_a_server_count_is_summed_up(
    tmp_path: Path, process_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**process_env, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for code in (ONE, ANOTHER):
        subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))

    found = Scrape(read().content.decode())

    assert found.sum("leasing_releases_total", model="leasing.lease") == 42
    assert "shop_orders_total" not in found.names  # which the site shows elsewhere


@pytest.mark.usefixtures("with_token")
def test_without_a_common_directory_the_web_app_shows_no_counts_of_processes() -> None:
    assert "leasing_releases_total" not in Scrape(read().content.decode()).names


# What reading costs


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass for figures."""
    now = [1000.0]
    monkeypatch.setattr(database, "system_clock", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_a_figure_is_read_for_a_hundredth_of_the_time(passing: Callable[[float], None]) -> None:
    read_at: list[int] = []

    def read_slowly() -> list[Family]:
        read_at.append(len(read_at))
        passing(0.5)
        return []

    figure = Figure("slow", read_slowly)
    figure.get()
    passing(49.9)
    figure.get()
    assert read_at == [0]
    assert figure.age == pytest.approx(50.4)
    passing(0.2)
    figure.get()
    assert read_at == [0, 1]


def test_a_figure_that_fails_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> list[Family]:
        raise OperationalError("the harbour burns")

    def refuse() -> list[Family]:
        raise TooMany

    crates = Family("crates", "Crates.")
    crates.add(3)
    all_three = [Figure("a", fail), Figure("b", refuse), Figure("c", lambda: [crates])]

    said = {
        family.name: {each.labels.get("figure"): each.value for each in family.samples}
        for family in read_all(all_three)
    }

    assert said["crates"] == {None: 3}
    assert said["leasing_figures_up"] == {"a": 0, "c": 1}
    assert said["leasing_figures_skipped"] == {"a": 0, "b": 1, "c": 0}
    assert "the harbour burns" in caplog.text


@pytest.mark.usefixtures("with_token")
def test_leases_too_many_to_count_are_not_counted_wrongly(limits: Limits) -> None:
    limits(max_rows=2)
    for _ in range(3):
        make_lease()
        make_task(state="running")

    found = Scrape(read().content.decode())

    assert found.sum("leasing_figures_skipped", figure="leases of leasing.lease") == 1
    assert found.sum("leasing_leases", model="leasing.lease") == 0
    # What runs has an index.
    assert found.sum("leasing_leases", model="leasing_tasks.task") == 3
