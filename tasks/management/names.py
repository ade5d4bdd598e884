from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.core.management.base import CommandError

from tasks.exceptions import NameTaken

#: The exit code of a process whose name another one has: to start it again is no remedy.
NAME_TAKEN: Final = 2


@contextmanager
def exit_if_taken() -> Iterator[None]:
    """A block in which NameTaken ends the command with its sentence and NAME_TAKEN."""
    try:
        yield
    except NameTaken as error:
        raise CommandError(str(error), returncode=NAME_TAKEN) from error
