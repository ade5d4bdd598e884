"""Plant each incident into a site at work: the overview's first issue names the cause."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.elements import Element, parse
from tests.incidents import shots
from tests.incidents.plants import INCIDENTS, Incident, Shop
from tests.plugin import DATABASE
from tests.processes import Process, wait_for
from tests.web_servers import GUNICORN, START_TIMEOUT, Site, at_port

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

#: Seconds within which the overview names what can be known.
LIMIT = 15.0
CASES = [
    pytest.param(each, parent, id=f"{each.plant.__name__}-{'parent' if parent else 'bare'}")
    for each in INCIDENTS
    for parent in ((True, False) if each.parent is None else (each.parent,))
]


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The site under gunicorn, for all tests of this module: what it shows is in the database."""
    if connection.vendor != "postgresql":
        pytest.skip("incidents are those of production")
    (port,) = free_ports(1)
    url = request.config.stash[DATABASE].named(str(connection.settings_dict["NAME"]))
    env = {**os.environ, "DATABASE_URL": url, "PYTHONWARNINGS": "default"}
    log = tmp_path_factory.mktemp("site") / "gunicorn.log"
    process = Process([*GUNICORN, *at_port(GUNICORN, port)], env, log)
    try:
        site = Site(port)
        wait_for(site.answers, timeout=START_TIMEOUT, process=process)
        yield site
    finally:
        process.end()


@pytest.fixture
def shop(spawn: Spawn, process_env: dict[str, str], tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as cleanup:
        yield Shop(spawn, process_env["DATABASE_URL"], tmp_path, cleanup)


@pytest.mark.parametrize(("incident", "parent"), CASES)
def test_the_first_issue_of_the_overview_names_the_cause(
    request: pytest.FixtureRequest, site: Site, shop: Shop, incident: Incident, parent: bool
) -> None:
    browser = Client()
    browser.force_login(User.objects.create_superuser("olga", password="x"))
    session = browser.cookies["sessionid"].value
    shop.open(parent=parent, **incident.env)
    assert _issues(site, session) == []

    incident.plant(shop)
    planted, seen = time.monotonic(), [""]

    def names_the_cause() -> bool:
        seen[:] = [f"{each.text} -> {each.links[0]}" for each in _issues(site, session)] or [""]
        text, _, link = seen[0].rpartition(" -> ")
        return all(re.search(each, text) for each in incident.words) and bool(
            re.search(incident.link, link)
        )

    try:
        timeout = incident.known_after + LIMIT
        wait_for(names_the_cause, timeout=timeout, message="the cause is named")
    finally:
        seconds = time.monotonic() - planted
        print(f"{request.node.callspec.id}: {seconds:.1f} s", *seen, sep="\n  ")
        if folder := os.environ.get("SHOTS"):
            shots.take(
                f"http://127.0.0.1:{site.port}", session, Path(folder), request.node.callspec.id
            )


def _issues(site: Site, session: str) -> list[Element]:
    """Return the issues of the overview, in their order."""
    with closing(site.connect()) as http:
        http.request("GET", "/ops/", headers={"Cookie": f"sessionid={session}"})
        response = http.getresponse()
        assert response.status == 200
        return parse(response.read().decode()).all("ul.needs li")
