"""The handlers, for workers without a database: ``python -m tasks.client`` imports this."""

from __future__ import annotations

from tasks.client import handler
from tests.chaos.attempts import HANDLERS

for _name, _function in HANDLERS.items():
    handler(_name)(_function)
