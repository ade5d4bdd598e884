"""The demo's settings, with waits that last longer than a test on any machine."""

from project.settings import *  # noqa: F403
from project.settings import LEASING

# A new dictionary: a test that imports this one has the demo's.
LEASING = LEASING | {
    "API_MAX_WAIT": 600,
    "API_WAITING_REQUESTS": 220,
    "API_WAITING_PER_CLIENT": 200,
}
