"""The pytest plugin of the queue: the modes of ``tasks.testing`` as fixtures. For the methods of
a ``TestCase``, name them in ``@pytest.mark.usefixtures``.

It stands in ``leasing`` because pytest loads it wherever this distribution is installed: a plugin
in ``tasks`` is not found where a project has a module of that name, and would hide it where pytest
learns the project's path later. So each fixture imports the queue when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest


@pytest.fixture
def inline_tasks() -> Iterator[None]:
    """Each task that is due runs as it is enqueued, and what its handler raises is raised."""
    with import_module("tasks.testing").inline():
        yield


@pytest.fixture
def drain_tasks() -> Callable[..., list[Any]]:
    """Runs all tasks that are due: ``drain_tasks(queue=None, skip_delays=False)``."""
    drain: Callable[..., list[Any]] = import_module("tasks.testing").drain
    return drain


@pytest.fixture
def own_handlers() -> Iterator[dict[str, Any]]:
    """Handlers that the test registers are forgotten after it; gives what is registered."""
    from unittest.mock import patch

    handlers: dict[str, Any] = import_module("tasks.registry")._handlers
    with patch.dict(handlers):
        yield handlers
