"""README's first steps lead to a result, and what goes wrong on the way says what to do."""

from __future__ import annotations

import faulthandler
import time
from pathlib import Path

import pytest

from tests.first_hour import first_steps, machine_in, play


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
        *("console", "console", "py", "console")
    ]


@pytest.mark.rest
def test_the_first_hour_takes_less_than_three_minutes(tmp_path: Path) -> None:
    # It may take longer than a test on a loaded machine; whatever it waits for has an end.
    faulthandler.cancel_dump_traceback_later()
    began = time.monotonic()

    with machine_in(tmp_path) as machine:
        play(machine)

    assert time.monotonic() - began < 180
