"""Show the log of a command in its terminal, where the project has not decided about it.

Django's default LOGGING has no handler for our loggers: a worker would print its warnings without
time or level, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from leasing.logs import LineFormatter

#: The loggers of this distribution.
LOGGERS: Final = ("leasing", "tasks")
FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
#: The verbosity of the block ``shown`` that runs, for child processes; None outside of one.
verbosity_shown: int | None = None
#: The names of the loggers that it prints.
loggers_shown: Sequence[str] = ()
#: Levels by ``--verbosity``; DEBUG for more.
LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}


@contextmanager
def shown(verbosity: int) -> Iterator[None]:
    """A block in which the records of our loggers are printed to stderr, with time and level. A
    logger for which LOGGING has a handler, at itself, above or below, is left as it is; so is a
    level that LOGGING gives it."""
    global verbosity_shown, loggers_shown
    outside = verbosity_shown, loggers_shown
    console = logging.StreamHandler()
    console.setFormatter(LineFormatter(FORMAT))
    before = [
        (logger, logger.level)
        for logger in map(logging.getLogger, LOGGERS)
        if not is_handled(logger)
    ]
    verbosity_shown, loggers_shown = verbosity, [logger.name for logger, _ in before]
    for logger, level in before:
        logger.addHandler(console)
        if level == logging.NOTSET:
            logger.setLevel(LEVELS.get(verbosity, logging.DEBUG))
    try:
        yield
    finally:
        verbosity_shown, loggers_shown = outside
        for logger, level in before:
            logger.removeHandler(console)
            logger.setLevel(level)


def is_handled(logger: logging.Logger) -> bool:
    """Return True if ``logger``, one above it or one below it has a handler."""
    below = (
        each
        for name, each in logger.manager.loggerDict.items()
        if name.startswith(f"{logger.name}.") and isinstance(each, logging.Logger)
    )
    return logger.hasHandlers() or any(each.handlers for each in below)
