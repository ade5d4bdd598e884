"""Faults that a visitor of the demo can cause in its workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client

from project import faults
from project.supervisor import CRASHED
from tasks.models import Worker
from tests.factories import make_task, make_worker
from tests.fixtures import client_with
from tests.pages import Page, get, signed_in
from tests.processes import wait_for

pytestmark = pytest.mark.django_db

CRASH, FREEZE, CHILD = "/ops/demo/crash/", "/ops/demo/freeze/", "/ops/demo/crash-child/"
VIEW, MAY = (
    ("leasing_tasks.view_task", "leasing_tasks.view_worker"),
    "leasing_tasks.control_generator",
)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        yield child
        child.kill()


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as one of the demo's."""
    monkeypatch.setenv(CRASHED, str(tmp_path))


@pytest.fixture
def worker(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker's row of a process that this one has started, as the supervisor does."""
    monkeypatch.setattr(os, "getppid", os.getpid)
    made = make_worker(name="dora", pid=process.pid, hostname=socket.gethostname())
    return made


visitor = client_with(*VIEW, MAY)


def test_a_crash_kills_the_busiest_worker_and_leads_to_a_task_that_it_held(
    demo: None,
    visitor: Client,
    worker: Worker,
    process: subprocess.Popen[bytes],
    tmp_path: Path,
) -> None:
    task = make_task(state="running", holder="dora")
    assert {CRASH, FREEZE} <= set(get(visitor, "/ops/").forms)
    response = visitor.post(CRASH, follow=True)
    assert response.redirect_chain == [(f"/ops/tasks/{task.pk}/", 302)]
    assert "dora was killed (kill -9)" in Page(response).text
    assert process.wait(10) == -signal.SIGKILL
    # By this the supervisor knows to leave it away for a while.
    assert (tmp_path / str(process.pid)).exists()


def test_a_frozen_worker_stands_still_and_goes_on(
    demo: None,
    visitor: Client,
    worker: Worker,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "FROZEN_FOR", 0.2)
    thaw, seen = faults._thaw, threading.Event()

    def thaw_when_seen(pid: int) -> None:
        seen.wait(60)  # once it goes on, nobody is told any more that it stood still
        thaw(pid)

    monkeypatch.setattr(faults, "_thaw", thaw_when_seen)
    response = visitor.post(FREEZE)
    assert response["Location"] == f"/ops/workers/{worker.pk}/"
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    seen.set()
    wait_for(lambda: os.waitpid(process.pid, os.WCONTINUED | os.WNOHANG)[0] == process.pid)


def test_a_crash_of_a_child_kills_a_worker_whose_parent_the_demo_has_started(
    demo: None,
    visitor: Client,
    worker: Worker,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert "No worker of this demo is running" in Page(visitor.post(CHILD, follow=True)).text
    assert process.poll() is None
    assert CHILD in get(visitor, "/ops/").forms

    task = make_task(state="running", holder="dora")
    supervisor = faults._parent_of(os.getpid())
    monkeypatch.setattr(os, "getppid", lambda: supervisor)
    assert "No worker of this demo is running" in Page(visitor.post(CRASH, follow=True)).text
    response = visitor.post(CHILD)
    assert response["Location"] == f"/ops/tasks/{task.pk}/"
    assert process.wait(10) == -signal.SIGKILL
    assert not list(tmp_path.iterdir())  # its parent does not wait for the supervisor


def test_processes_of_others_are_never_hit(demo: None, visitor: Client, worker: Worker) -> None:
    Worker.objects.update(pid=os.getppid())
    assert "No worker of this demo is running" in Page(visitor.post(CRASH, follow=True)).text


def test_workers_of_other_machines_are_never_hit(
    demo: None, visitor: Client, worker: Worker
) -> None:
    Worker.objects.update(hostname="elsewhere")
    assert "No worker of this demo is running" in Page(visitor.post(FREEZE, follow=True)).text


def test_who_may_not_is_shown_no_button_and_refused(demo: None, worker: Worker) -> None:
    viewer = signed_in(*VIEW)
    assert CRASH not in get(viewer, "/ops/workers/").forms
    assert {viewer.post(url).status_code for url in (CRASH, FREEZE, CHILD)} == {403}


@pytest.mark.parametrize("url", [CRASH, FREEZE, CHILD])
def test_outside_the_demo_no_worker_is_hit(
    visitor: Client, worker: Worker, process: subprocess.Popen[bytes], url: str
) -> None:
    assert visitor.post(url).status_code == 404
    assert url not in get(visitor, "/ops/").forms
    assert faults.crash() is faults.freeze() is faults.crash_child() is None
    assert process.poll() is None
