from __future__ import annotations

from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "tasks"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.utils.module_loading import autodiscover_modules

        from tasks import checks, log, sample  # noqa: F401 - the sample's handler registers

        checks.register_all()
        log.connect()
        autodiscover_modules("tasks")
