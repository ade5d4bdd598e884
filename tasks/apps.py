from __future__ import annotations

from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "tasks"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tasks import checks, deploy_checks, discovery, log, sample  # noqa: F401 - the sample registers

        checks.register_all()
        deploy_checks.register_all()
        log.connect()
        discovery.discover()
