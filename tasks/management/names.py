from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from tasks.exceptions import NameTaken


@contextmanager
def exit_if_taken() -> Iterator[None]:
    """A block in which NameTaken ends the command with its sentence and exit code."""
    try:
        yield
    except NameTaken as error:
        raise CommandError(str(error), returncode=error.EXIT_CODE) from error
