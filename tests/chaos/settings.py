"""Settings of the processes of a run: the tests' own, with the models and handlers of this app."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS += ["tests.chaos"]
