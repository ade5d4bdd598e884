"""Bases of the commands: they use our tables, and some of them run until they are stopped."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from leasing.db.unapplied import unapplied_reason
from leasing.management.console import shown


class TablesCommand(BaseCommand):
    """A command that uses our tables. If a migration of them is not applied, it says so in one
    sentence and exits with code 1, also with ``--skip-checks``."""

    requires_migrations_checks = True

    def check_migrations(self) -> None:
        if reason := unapplied_reason():
            raise CommandError(reason)


class ServiceCommand(TablesCommand):
    """A command that runs until it is stopped. Its log is shown, unless the project has decided
    where to: see ``leasing.management.console``."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        with shown(options["verbosity"]):
            return super().execute(*args, **options)
