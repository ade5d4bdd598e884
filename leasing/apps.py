from __future__ import annotations

from django.apps import AppConfig


class LeasingConfig(AppConfig):
    name = "leasing"
    verbose_name = "Leasing"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import atexit

        from leasing import checks, deploy_checks, event_lines, instruments
        from leasing.conf import leasing_settings
        from leasing.keeper import keeper

        checks.register_all()
        deploy_checks.register_all()
        event_lines.connect()
        atexit.register(keeper.give_back_all)
        if leasing_settings.METRICS:
            instruments.connect()
        if leasing_settings.TRACES:
            from leasing import tracing  # which needs what the extra `otel` brings

            tracing.instrument()
