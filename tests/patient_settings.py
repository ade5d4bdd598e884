"""The demo's settings, with waits that last longer than a test on any machine."""

from typing import Any

from project.settings import *  # noqa: F403
from project.settings import LEASING as OF_DEMO

LEASING: dict[str, Any] = {
    **OF_DEMO,
    "API_MAX_WAIT": 600,
    "API_WAITING_REQUESTS": 220,
    "API_WAITING_PER_CLIENT": 200,
}
