"""The scale: what both packages weigh, and what a verb walks through, may only fall."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import coupling, hops, house
from tests.plugin import DATABASE

SOURCE = '''"""A docstring
of two lines."""

# A comment.
X = """text
that counts"""


def double(n):  # a comment
    """Another."""
    return (lambda: n * 2)()
'''


def write(folder: Path, **files: str) -> Path:
    """Make a package of ``files`` in ``folder``, and return its folder."""
    package = folder / "planted"
    for name, text in files.items():
        file = package / f"{name.replace('_in_', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(text)
    return package


def test_comments_docstrings_and_migrations_weigh_nothing(tmp_path: Path) -> None:
    package = write(tmp_path, module=SOURCE, migrations_in_0001=SOURCE)

    # Module, Assign, Name, Store, Constant; FunctionDef, arguments, arg, Return; Call, Lambda,
    # arguments, BinOp, Name, Load, Mult, Constant; and the Module of the empty file.
    assert house.weigh([package]) == {
        "code lines": 4,
        "syntax nodes": 18,
        "functions": 2,
        "files": 2,
    }


def test_a_file_that_was_added_is_a_rise(tmp_path: Path) -> None:
    package = write(tmp_path, module=SOURCE)
    table = house.weigh([package])
    assert house.rises(table, table) == []
    (package / "more.py").write_text("X = 1\n")

    assert house.rises(house.weigh([package]), table) == [
        "code lines: 5, and the table allows 4",
        "syntax nodes: 23, and the table allows 18",
        "files: 3, and the table allows 2",
    ]


def test_rooms_that_import_each_other_are_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(write(tmp_path, room_in_one="", other="").parent))
    assert house.circle("planted") == []
    write(tmp_path, room_in_one="from planted import other", other="import planted.room.one")

    assert sorted(house.circle("planted")[1:]) == ["planted.other", "planted.room"]


def test_a_verb_walks_through_no_more_functions_than_the_table_allows(
    request: pytest.FixtureRequest,
) -> None:
    database = request.config.stash[DATABASE]
    if database.url.startswith("sqlite:"):
        pytest.skip("PostgreSQL's statements are counted")

    with database.another("hops") as url:
        found = hops.measured(url)

    assert house.rises(found, json.loads(house.TABLE.read_text())) == []


COUPLED = """
import time
from unittest import mock

import pytest

from leasing.holding import keeper
from tasks.worker.process import WorkerProcess


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(keeper, "EXIT_PATIENCE", 9.0)


def test_one(monkeypatch, worker):
    monkeypatch.setattr("tasks.worker.poller.clock", lambda: 1.0)
    monkeypatch.setattr(f"{worker}.clock", lambda: 1.0)
    monkeypatch.setattr(time, "sleep", print)
    monkeypatch.delattr(worker.poller, "wake")
    with mock.patch.object(WorkerProcess, "stop"):
        keeper.CUT_OFF = 2
    assert worker._ended and worker._meta and worker.__dict__
    monkeypatch.setattr(Own, "patience", 1.0)


class Own:
    def wait(self):
        self.patience = self._wait
"""


def test_patches_of_own_code_and_private_names_are_counted(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(COUPLED)
    (tmp_path / "test_more.py").write_text(COUPLED)

    assert coupling.count(tmp_path.iterdir()) == {
        "tests": 2,
        "tests: patches of own code": 12,
        "tests: patches by a string": 4,
        "tests: patches for every test": 1,
        "tests: private names": 2,
    }
