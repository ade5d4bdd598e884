"""Attributes of rows, written by the name of the column."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from leasing.db.row_reader import assignment


@pytest.mark.parametrize("names", [("holder", "n"), ("from", "n"), ("a b", "n")])
def test_each_attribute_has_its_value(names: tuple[str, str]) -> None:
    row = SimpleNamespace(kept="as it was")
    assignment(names)(row, [1, None])

    assert vars(row) == {"kept": "as it was", names[0]: 1, "n": None}
    for values in ([1], [1, 2, 3]):
        with pytest.raises(ValueError):
            assignment(names)(row, values)
