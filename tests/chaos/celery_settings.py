"""Settings of a run with Celery as the engine."""

from tests.celery_settings import *  # noqa: F403
from tests.celery_settings import TASK_QUEUE as OVER_CELERY
from tests.chaos.task_settings import INSTALLED_APPS, TASK_QUEUE

INSTALLED_APPS = [*INSTALLED_APPS]
TASK_QUEUE = {**TASK_QUEUE, **OVER_CELERY}
