"""``--workers auto``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.fleet import cores


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(
    ("quota", "usable"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("10000 100000", 1)],
)
def test_the_quota_of_the_container_counts(tmp_path: Path, quota: str, usable: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")

    assert cores.usable_cores(tmp_path) == usable


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(("quota", "usable"), [("-1", 8), ("400000", 4)])
def test_the_quota_of_the_older_cgroups_counts(tmp_path: Path, quota: str, usable: int) -> None:
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000")

    assert cores.usable_cores(tmp_path) == usable


@pytest.mark.usefixtures("eight")
def test_a_quota_of_a_folder_above_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "system.slice" / "worker.service"
    own.mkdir(parents=True)
    (tmp_path / "system.slice" / "cpu.max").write_text("300000 100000")
    (own / "cpu.max").write_text("max 100000")
    monkeypatch.setattr(cores, "own_cgroups", lambda: ["0::/system.slice/worker.service"])

    assert cores.usable_cores(tmp_path) == 3


@pytest.mark.usefixtures("eight")
def test_without_a_quota_the_cores_that_it_may_run_on_count(tmp_path: Path) -> None:
    assert cores.usable_cores(tmp_path) == 8


def test_without_affinity_all_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)

    assert cores.usable_cores(tmp_path) == 1
