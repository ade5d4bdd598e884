"""A forked child that cannot be set up."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

from leasing.runtime.shutdown import ExitCode
from tasks.fleet.start import setting_up


def test_a_child_that_cannot_be_set_up_exits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error does not reach the parent's code, which would start workers in the child."""

    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)

    with pytest.raises(SystemExit) as ended, setting_up():
        raise OSError("no descriptor")

    assert ended.value.code == ExitCode.FAILED
    assert "no descriptor" in capsys.readouterr().err
