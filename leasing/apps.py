from __future__ import annotations

from typing import Any

from django.apps import AppConfig


class LeasingConfig(AppConfig):
    name = "leasing"
    verbose_name = "Leasing"
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: Any) -> None:
        super().__init__(app_name, app_module)
        from leasing.checks import refuse_missing_apps

        # Django imports "tasks.apps" next, and would say only that it is not there.
        refuse_missing_apps()

    def ready(self) -> None:
        import atexit

        from leasing import signals  # noqa: F401 - which subscribe, as the log does
        from leasing.checks import refuse_missing_backends
        from leasing.conf import leasing_settings
        from leasing.holding.keeper import keeper
        from leasing.metrics import registry

        refuse_missing_backends()
        atexit.register(keeper.give_back_all)
        if leasing_settings.METRICS:
            registry.connect()
        if leasing_settings.TRACES:
            from leasing import tracing  # which needs what the extra `otel` brings

            tracing.instrument()
