"""The page about clients and remote workers: its code runs against a service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasing.models import Lease
from tasks import handler, registry
from tasks.client.handlers import handlers
from tasks.models import Task
from tests.plugin import ROOT
from tests.remote import Service
from tests.test_docs import blocks


def test_the_code_of_the_page_runs(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(handlers, "_handlers", {})
    monkeypatch.setattr(registry, "_handlers", dict(registry._handlers))
    handler("reports.build")(build)
    written: list[Any] = []
    namespace: dict[str, Any] = {
        "token": service.token,
        "report": 42,
        "publish": lambda *report, fencing_token: written.append((report, fencing_token)),
    }
    for block in blocks(ROOT / "docs" / "remote.md", "py"):
        code = block.replace("https://tasks.example.com/api", service.url)
        exec(compile(code, "remote.md", "exec"), namespace)
    asyncio.run(namespace["nightly"]())

    assert capsys.readouterr().out == "ready\n"
    assert [report for report, _ in written] == [(42,)]
    assert Lease.objects.get().grants == 2
    assert set(Task.objects.values_list("status", "checkpoint")) == {("succeeded", 9)}
    assert Task.objects.count() == 3


def build(ctx: object, report_id: int) -> None:
    """Stand for the tasks in the service, where only remote workers run them."""
