"""Processes are told from others that had their pid, and from those of other hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tasks.runtime import process_identity
from tasks.runtime.process_identity import is_running, own_identity
from tests.processes import wait_for


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def identity_of(pid: int) -> str:
    """The identity that the process would have for itself."""
    identity: str = process_identity._identity_of.__wrapped__(pid)
    return identity


def with_part(identity: str, number: int, part: str) -> str:
    parts = identity.split("|")
    parts[number] = part
    return "|".join(parts)


def test_this_process_runs() -> None:
    assert own_identity() == own_identity() != identity_of(os.getpid())
    assert is_running(os.getpid(), own_identity()) is True
    assert len(own_identity()) <= 200


def test_a_process_runs_until_it_ends(other: subprocess.Popen[bytes]) -> None:
    identity = identity_of(other.pid)
    assert is_running(other.pid, identity) is True

    other.kill()

    # Its parent has not asked for its end yet: it has a pid still, and runs no more.
    wait_for(lambda: is_running(other.pid, identity) is False)
    other.wait()
    assert is_running(other.pid, identity) is False


def test_another_process_of_the_same_pid_is_another(other: subprocess.Popen[bytes]) -> None:
    assert is_running(other.pid, with_part(identity_of(other.pid), 1, "1")) is False
    # As the first process of a container that starts again, or after exec().
    assert is_running(os.getpid(), identity_of(os.getpid())) is False


@pytest.mark.parametrize(("number", "part"), [(0, "another-boot:4026531836"), (0, ""), (1, "")])
def test_of_another_host_or_container_nothing_is_seen(
    other: subprocess.Popen[bytes], number: int, part: str
) -> None:
    for pid in (other.pid, os.getpid()):
        assert is_running(pid, with_part(identity_of(other.pid), number, part)) is None
    assert is_running(other.pid, "") is None


def test_a_process_of_another_user_runs(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = identity_of(other.pid)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        assert is_running(other.pid, identity) is True
        assert is_running(other.pid, with_part(identity, 1, "1")) is False
        patch.setattr(process_identity, "_started", lambda pid: None)  # /proc hides it
        assert is_running(other.pid, identity) is True


def test_without_proc_it_is_asked_of_ps(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    started = process_identity._started(other.pid)
    assert started and started == process_identity._started(other.pid)
    other.kill()
    wait_for(lambda: process_identity._started(other.pid) is None)
