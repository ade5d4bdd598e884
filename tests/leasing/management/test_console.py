"""The log of a command is shown where the project has not decided about it."""

from __future__ import annotations

import logging
import re

import pytest

from leasing.management import console


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Our logger under Django's default LOGGING: no handler at it, nor above. The tests' own have
    some."""
    manager = logging.Manager(logging.RootLogger(logging.WARNING))
    monkeypatch.setattr(logging.Logger, "manager", manager)
    return manager.getLogger("tasks")


def printed(
    capsys: pytest.CaptureFixture[str], logger: logging.Logger, verbosity: int = 1
) -> list[str]:
    """Return the lines of a record of each level."""
    with console.shown(verbosity):
        logger.debug("renewed")
        logger.getChild("worker").info("started")
        logger.warning("lost")
    return capsys.readouterr().err.splitlines()


def test_a_line_has_time_and_level(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    started, lost = printed(capsys, logger)

    assert re.fullmatch(r"20\d\d-\d\d-\d\d [\d:,]+ INFO    tasks.worker: started", started)
    assert lost.endswith("WARNING tasks: lost")


def test_a_traceback_is_printed_below_its_line(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    with console.shown(1):
        try:
            raise KeyError("printer")
        except KeyError:
            logger.exception("failed")

    line, *traceback = capsys.readouterr().err.splitlines()
    assert line.endswith("tasks: failed")
    assert traceback[0] == "    Traceback (most recent call last):"
    assert traceback[-1] == "    KeyError: 'printer'"


@pytest.mark.parametrize(
    ("verbosity", "words"),
    [(0, ["lost"]), (1, ["started", "lost"]), (2, ["renewed", "started", "lost"])],
)
def test_verbosity_chooses_the_level(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], verbosity: int, words: list[str]
) -> None:
    assert [line.split()[-1] for line in printed(capsys, logger, verbosity)] == words


@pytest.mark.parametrize("where", ["tasks", "root", "tasks.worker"])
def test_where_the_project_has_a_handler_nothing_is_added(
    logger: logging.Logger, where: str
) -> None:
    configured = logger.manager.root if where == "root" else logging.getLogger(where)
    configured.addHandler(logging.NullHandler())

    with console.shown(1):
        assert logger.level == logging.NOTSET
        assert not any(isinstance(each, logging.StreamHandler) for each in logger.handlers)


def test_a_level_that_the_project_chose_stays(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.setLevel(logging.ERROR)

    assert printed(capsys, logger) == []


def test_afterwards_all_is_as_it_was(logger: logging.Logger) -> None:
    with console.shown(1):
        assert logger.handlers
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)
