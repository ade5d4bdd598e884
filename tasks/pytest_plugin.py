"""The pytest plugin: the modes of ``tasks.testing`` as fixtures. For the methods of a
``TestCase``, name them in ``@pytest.mark.usefixtures``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

# Nothing of Django may be imported before the project's settings are known.
if TYPE_CHECKING:
    from tasks.models import Task


@pytest.fixture
def inline_tasks() -> Iterator[None]:
    """Each task that is due runs as it is enqueued, and what its handler raises is raised."""
    from tasks.testing import inline

    with inline():
        yield


@pytest.fixture
def drain_tasks() -> Callable[..., list[Task]]:
    """Runs all tasks that are due: ``drain_tasks(queue=None, skip_delays=False)``."""
    from tasks.testing import drain

    return drain


@pytest.fixture
def own_handlers() -> Iterator[dict[str, Any]]:
    """Handlers that the test registers are forgotten after it; gives what is registered."""
    from unittest.mock import patch

    from tasks import registry

    with patch.dict(registry._handlers):
        yield registry._handlers
