"""The tutorial leads from an empty folder to what it shows."""

from __future__ import annotations

import ast
import faulthandler
import re
from pathlib import Path
from typing import Any, cast

import pytest

from tests.machine import work_of_children
from tests.tutorial import PREPARED, Reader, follow, names_in, read_page, terminal_in

#: What is typed, besides what is there before.
TYPED = ("python manage.py", "pip install", "django-admin", "curl ", "kill -9 ", "fg")


def test_each_block_of_the_tutorial_can_be_followed() -> None:
    for before, block in zip([None, *read_page()], read_page(), strict=False):
        match block.language:
            case "console":
                assert all(line.startswith((*TYPED, *PREPARED)) for line in block.text.splitlines())
            case "py":
                typed = before and before.text.endswith("python manage.py shell\n")
                assert typed or block.file.startswith(("bakery/", "orders/"))
                ast.parse(block.text)
            case other:
                assert other == "text"


def test_what_lasts_has_a_terminal_of_its_own() -> None:
    lasting = ("runserver", "run_worker", "watch_oven", "fg", "/stock/")
    typed = [
        (terminal_in(block.words), line)
        for block in read_page()
        if block.language == "console"
        for line in block.text.splitlines()
    ]

    # The second visitor is turned away at once.
    second = "terminal 1", "curl http://127.0.0.1:8000/stock/"
    assert typed.count(second) == 1
    typed.remove(second)
    assert [
        (terminal, line)
        for terminal, line in typed
        if any(word in line for word in lasting) != (terminal not in ("", "terminal 1"))
    ] == []


def test_what_is_typed_of_this_run_was_shown_before() -> None:
    shown: set[str] = set()
    typed = 0
    for block in read_page():
        if block.language == "text":
            shown |= {part for name in names_in(block.text) for part in name.split(":")}
        else:
            numbers = set(re.findall(r"kill -9 (\d+)|fenced\((\d+)\)", block.text))
            typed += len(numbers)
            assert {"".join(each) for each in numbers} <= shown

    assert typed == 3


@pytest.mark.parametrize(
    ("expected", "seen", "matches"),
    [
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...", "a\nb", True),
        ("...\nb", "b", True),
        ("...\nb", "b\nc", False),
        ("a ... d", "a b c d", True),
        ("a ... d", "a b\nc d", False),
        ("in 0.141s", "in 12.3s", True),
        ("baked loaf 4.", "baked loaf 5.", True),
        ("baked loaf 4.", "baked loaf 3.", False),
        ("box:4711:5c0ffee5 and box:4711:5c0ffee5", "vm:1:0123abcd and vm:1:0123abcd", True),
    ],
)
def test_output_is_compared_but_for_what_differs(expected: str, seen: str, matches: bool) -> None:
    reader = Reader(cast(Any, None), cast(Any, None))

    assert bool(re.fullmatch(reader.pattern(expected), seen)) is matches


@pytest.mark.slow
@pytest.mark.long
def test_the_tutorial_is_followed_in_less_than_three_minutes(tmp_path: Path) -> None:
    # Whatever it waits for has an end of its own, which on a loaded machine may come late.
    faulthandler.cancel_dump_traceback_later()
    before = work_of_children()

    follow(tmp_path)

    # A busy machine takes longer for the same work.
    assert work_of_children() - before < 60
