"""The tests' settings for a project that says nothing of logging."""

from tests.settings import *  # noqa: F403

LOGGING = {}
