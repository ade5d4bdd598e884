"""The quickstart leads to a result, and what goes wrong on the way says what to do."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from tests.first_hour import first_steps, play
from tests.machine import machine_in, work_of_children


def test_the_first_steps_name_the_file_of_each_code() -> None:
    blocks = first_steps()

    code = [
        (block.file, block.text.splitlines()[0]) for block in blocks if block.language == "python"
    ]
    assert code == [
        ("shop/settings.py", 'INSTALLED_APPS += ["leasing", "tasks", "invoices"]'),
        ("shop/urls.py", "from django.contrib import admin"),
        ("invoices/tasks.py", "from tasks import handler"),
    ]
    assert [block.language for block in blocks if block.language != "python"] == [
        *("console", "console", "console", "py", "console")
    ]


@pytest.mark.slow
def test_the_first_hour_takes_less_than_three_minutes(tmp_path: Path) -> None:
    # Whatever it waits for has an end of its own, which on a loaded machine may come late.
    faulthandler.cancel_dump_traceback_later()
    before = work_of_children()

    with machine_in(tmp_path) as machine:
        play(machine)

    # A busy machine takes longer for the same work.
    assert work_of_children() - before < 180
