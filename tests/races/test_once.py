"""Real processes that want to do the same thing once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leasing import once
from leasing.models import OnceKey
from leasing.runtime.aio import drive
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.races.support import PATIENCE, SIZE, race

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def at_work(spawn: Spawn, folder: Path, how: str = "done") -> Process:
    return spawn(["-m", "tests.races.once_at_work", str(folder), how])


def done(folder: Path) -> list[int]:
    """The processes that ran the body."""
    file = folder / "done"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def results(processes: list[Process]) -> list[dict[str, int]]:
    for process in processes:
        assert process.wait(PATIENCE) == 0, process.output
    return [json.loads(process.output.splitlines()[-1]) for process in processes]


def test_of_eight_processes_one_does_it_and_all_are_given_its_result(
    spawn: Spawn, tmp_path: Path
) -> None:
    (given,) = race(spawn, "once", tmp_path).values()

    (winner,) = done(tmp_path)
    assert given == [{"by": winner}] * SIZE
    assert OnceKey.objects.get().grants == 1


def test_a_key_that_was_left_is_settled_or_its_work_is_done_and_never_both(spawn: Spawn) -> None:
    keys = [f"charge:{number}" for number in range(20)]
    for key in keys:
        drive(once(key, window=3600)._steps())
    OnceKey.objects.revoke()

    for key, answers in race(spawn, "settle", *keys).items():
        row = OnceKey.objects.get(key=key)
        assert sum(each["changed"] for each in answers) == 1, answers
        assert {each.get("result") for each in answers} <= {None, row.result}, answers
        assert (row.grants, row.settled_by) in [(1, "an operator"), (2, "")]


def test_after_a_kill_another_does_it_and_not_before_the_lease_has_ended(
    spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    killed = at_work(spawn, tmp_path, "hang")
    wait_for(lambda: done(tmp_path), timeout=PATIENCE, process=killed)
    others = [at_work(spawn, tmp_path) for _ in range(2)]
    wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 3, timeout=PATIENCE)
    assert done(tmp_path) == [killed.pid]  # it runs, and is renewed

    killed.kill()
    killed.wait(PATIENCE)
    promised_until = OnceKey.objects.get().expires_at

    (winner,) = {given["by"] for given in results(others)}
    assert done(tmp_path) == [killed.pid, winner]
    row = OnceKey.objects.get()
    assert row.acquired_at is not None
    assert row.acquired_at >= promised_until
    assert row.grants == 2
