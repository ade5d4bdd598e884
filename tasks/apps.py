from __future__ import annotations

from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "tasks"
    label = "leasing_tasks"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from leasing.conf import leasing_settings
        from leasing.metrics import registry
        from tasks import (
            checks,
            discovery,
            log,
            sample,  # noqa: F401 - it registers
        )

        checks.register_all()
        log.connect()
        discovery.discover()
        registry.add(counting="tasks.metrics.process", reading="tasks.metrics.database")
        if leasing_settings.METRICS:
            registry.connect()
        if leasing_settings.TRACES:
            from tasks import tracing  # which needs what the extra `otel` brings

            tracing.instrument()
