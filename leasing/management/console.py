"""Print the log of a command to its terminal, unless the project has a handler for the log.

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
#: The verbosity of the running block ``shown``, for child processes; None outside of such a block.
verbosity_shown: int | None = None
#: The names of the loggers that the block prints.
loggers_shown: Sequence[str] = ()
#: Levels by ``--verbosity``; DEBUG for more.
LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}


@contextmanager
def shown(verbosity: int) -> Iterator[None]:
    """A block in which the records of our loggers are printed to stderr, with time and level. A
    logger is left unchanged if LOGGING has a handler for it, for an ancestor or for a descendant. A
    level that LOGGING sets is left unchanged, too."""
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
