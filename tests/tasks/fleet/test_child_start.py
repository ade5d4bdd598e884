"""The state of the parent before a child is forked."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from tasks.fleet import start


def test_other_threads_forbid_a_fork_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="the other one")
    thread.start()
    try:
        assert "the other one" in start.native_threads()
        assert "the other one" in start.reason_against_fork()
    finally:
        ended.set()
        thread.join()
    assert "the other one" not in start.native_threads()


def test_what_set_up_has_opened_is_closed_pools_too(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def connection(name: str, **options: object) -> SimpleNamespace:
        return SimpleNamespace(
            settings_dict={"OPTIONS": options}, close_pool=lambda: closed.append(f"pool of {name}")
        )

    opened = [connection("default", pool=True), connection("other")]
    monkeypatch.setattr(
        start,
        "connections",
        SimpleNamespace(
            close_all=lambda: closed.append("all"), all=lambda initialized_only: opened
        ),
    )

    start.close_connections()

    assert closed == ["all", "pool of default"]
