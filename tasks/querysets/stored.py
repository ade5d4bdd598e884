"""Tasks that were stored together, as their rows stand: model instances of those looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from tasks.models import Task


class StoredTasks(Sequence["Task"]):
    """The tasks ``make`` makes of the numbers below ``count``, each once, when it is looked at:
    an instance costs as much as storing its row."""

    def __init__(self, count: int, make: Callable[[int], Task]) -> None:
        self._made: list[Task | None] = [None] * count
        self._make = make

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._make(range(len(self))[index])
        return made

    def __repr__(self) -> str:
        return f"<{len(self)} stored tasks>"
