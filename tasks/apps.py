from __future__ import annotations

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured


class TasksConfig(AppConfig):
    name = "tasks"
    label = "leasing_tasks"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        # Else Django complains of the first model of leasing that is imported from here.
        if not apps.is_installed("leasing"):
            raise ImproperlyConfigured(
                'The app "tasks" needs the app "leasing": add "leasing" to INSTALLED_APPS.'
            )
        super().import_models()

    def ready(self) -> None:
        from leasing.conf import leasing_settings
        from leasing.diagnosis import ttl
        from leasing.metrics import registry
        from tasks import (
            checks,  # noqa: F401 - it registers, as the sample does
            discovery,
            sample,  # noqa: F401
            signals,  # noqa: F401 - which subscribe, as the log does
        )

        discovery.discover()
        ttl.readers["queue"] = "tasks.diagnosis.ttl.history_of_queue"
        registry.add(counting="tasks.metrics.process", reading="tasks.metrics.database")
        if leasing_settings.METRICS:
            registry.connect()
        if leasing_settings.TRACES:
            from tasks import tracing  # which needs what the extra `otel` brings

            tracing.instrument()
