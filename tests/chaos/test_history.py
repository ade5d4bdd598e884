"""What a process records is read as it happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasing.exceptions import LeaseHeld, StoreError
from tests.chaos.history import FAILED, OK, UNKNOWN, Recorder, read_histories


def test_a_call_is_read_with_its_arguments_its_result_and_its_times(tmp_path: Path) -> None:
    with Recorder(tmp_path, "one").call("acquire", "door", ttl=2) as call:
        call.ok(token=7)

    (operation,) = read_histories(tmp_path)

    assert (operation.process, operation.name, operation.resource) == ("one", "acquire", "door")
    assert (operation.value, operation.outcome, operation.result) == ({"ttl": 2}, OK, {"token": 7})
    assert operation.ended is not None
    assert operation.began <= operation.ended


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(LeaseHeld("door"), FAILED), (StoreError("no answer"), UNKNOWN), (OSError("cut"), UNKNOWN)],
)
def test_an_error_is_a_refusal_or_leaves_unknown_what_happened(
    tmp_path: Path, error: Exception, outcome: str
) -> None:
    recorder = Recorder(tmp_path, "one")

    with pytest.raises(type(error)), recorder.call("acquire", "door"):
        raise error
    with recorder.call("acquire", "door", passes=(type(error),)):
        raise error

    assert [each.outcome for each in read_histories(tmp_path)] == [outcome] * 2


def test_a_killed_process_leaves_a_call_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cut"), Recorder(tmp_path, "one").call("acquire"):
        raise OSError("cut")
    file = tmp_path / "one.jsonl"
    file.write_text(file.read_text()[:-20])

    (operation,) = read_histories(tmp_path)

    assert (operation.outcome, operation.ended) == (UNKNOWN, None)


def test_operations_of_all_processes_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    one, two = Recorder(tmp_path, "one"), Recorder(tmp_path, "two")
    for recorder in (one, two, one):
        recorder.note("tick")

    assert [each.process for each in read_histories(tmp_path)] == ["one", "two", "one"]
