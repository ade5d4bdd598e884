from __future__ import annotations

import os

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "tests.jobs"
    label = "jobs"

    def ready(self) -> None:
        from tests.jobs import trace

        if path := os.environ.get(trace.VARIABLE):
            trace.write_to(path)
