"""The runbook travels: its pages are in the package, on the site and in the terminal."""

from __future__ import annotations

import re
import runpy
from urllib.parse import urljoin

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from tasks import monitoring
from tests.pages import user_with
from tests.plugin import ROOT


@pytest.fixture
def operator(client: Client, db: None) -> Client:
    client.force_login(user_with("leasing_tasks.view_task"))
    return client


def test_the_runbook_of_the_package_is_that_of_the_documentation() -> None:
    """`make docs` copies it."""
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    sources = conf["runbook_pages"]()

    assert monitoring.runbook_names() == [page.stem for page in sources]
    for page in sources:
        text = conf["runbook_text"](page)
        assert monitoring.runbook_page(page.stem) == text
        assert monitoring.runbook_page(page.stem, "html") == conf["runbook_html"](page.stem, text)


def test_the_command_prints_a_page_of_the_runbook(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("tasks", "runbook", "worker-gone")
    assert capsys.readouterr().out.startswith("# Workers gone, tasks stuck\n")

    call_command("tasks", "runbook")
    assert "worker-gone" in capsys.readouterr().out

    with pytest.raises(
        CommandError, match="no page 'worker-gon'. Did you mean 'worker-gone'"
    ) as no:
        call_command("tasks", "runbook", "worker-gon")
    assert no.value.returncode == 2


def test_an_alert_is_a_name_of_its_page(
    operator: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    alerts = re.findall(r"alert: (\w+)", monitoring.alerts())
    assert "TasksOrphans" in alerts
    for alert in alerts:
        call_command("tasks", "runbook", alert)
        assert f"`{alert}`" in capsys.readouterr().out
        assert operator.get(f"/ops/runbook/{alert}/").status_code == 200


def test_each_page_of_the_runbook_is_on_the_site(operator: Client) -> None:
    index = operator.get("/ops/runbook/").text
    for name in monitoring.runbook_names():
        title = monitoring.runbook_page(name).partition("\n")[0].removeprefix("# ")
        assert f"<h1>{title}</h1>" in operator.get(f"/ops/runbook/{name}/").text
        assert name == "index" or f'href="{name}/"' in index
    assert operator.get("/ops/runbook/../").status_code == 404
    assert operator.get("/ops/runbook/nothing/").status_code == 404


def test_nobody_without_the_permission_reads_the_runbook(client: Client, db: None) -> None:
    assert client.get("/ops/runbook/").status_code == 302
    client.force_login(user_with())
    assert client.get("/ops/runbook/worker-gone/").status_code == 403


def test_links_between_pages_of_the_runbook_lead_to_pages(operator: Client) -> None:
    found: dict[str, str] = {}
    for name in monitoring.runbook_names():
        here = "/ops/runbook/" + (f"{name}/" if name != "index" else "")
        links = re.findall(r'href="(?!https:)([^"#]+)', monitoring.runbook_page(name, "html"))
        found |= {urljoin(here, link): name for link in links}
    for address, name in found.items():
        assert operator.get(address).status_code == 200, (name, address)
