"""Base classes of commands: all use our tables, and some run until they are stopped."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError

from leasing.conf import leasing_settings
from leasing.db.unapplied import unapplied_reason
from leasing.management.console import shown
from leasing.runtime.terminal import plain

DISTRIBUTION: Final = "django-leasing"


#: Seconds of the units of a duration.
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION: Final = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS))


def duration(text: str) -> float:
    """Return the seconds of ``text``, an argument of a command: ``90``, ``90s``, ``10m``,
    ``1h30m``, ``2d``. Raises ArgumentTypeError."""
    try:
        return float(text)
    except ValueError:
        pass
    parts = _DURATION.fullmatch(text)
    if parts is None or not text:
        raise ArgumentTypeError(f"{plain(text)!r} is no duration: use 90 (seconds), 10m or 1h30m.")
    numbers = zip(parts.groups("0"), _UNITS.values(), strict=True)
    return sum(float(number) * seconds for number, seconds in numbers)


class TablesCommand(BaseCommand):
    """A command that uses our tables. If a migration of them is not applied, or the database does
    not answer, it says so in one sentence and exits with code 1, also with ``--skip-checks``."""

    requires_migrations_checks = True

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except (OperationalError, InterfaceError) as error:
            using, reason = leasing_settings.DATABASE, " ".join(str(error).split())
            raise CommandError(f"The database {using!r} failed: {plain(reason)}") from error

    def check_migrations(self) -> None:
        if reason := unapplied_reason():
            raise CommandError(reason)


class ServiceCommand(TablesCommand):
    """A command that runs until it is stopped. Its log is printed, unless the project has a handler
    for the log: see ``leasing.management.console``."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        with shown(options["verbosity"]):
            return super().execute(*args, **options)

    def greet(self, options: Mapping[str, Any], what: str, facts: Mapping[str, str]) -> None:
        """Print what this process is; nothing with ``--verbosity 0``.

        Args:
            options: The options of the command.
            what: The process, with its name.
            facts: The values of a table, by their names.
        """
        if options["verbosity"] == 0:
            return
        self.stdout.write(self.style.MIGRATE_HEADING(f"{_distribution()}: {what}"))
        for name, value in facts.items():
            self.stdout.write(f"  {name:<10} {plain(value)}")
        self.stdout.flush()


def _distribution() -> str:
    try:
        return f"{DISTRIBUTION} {version(DISTRIBUTION)}"
    except PackageNotFoundError:  # the packages were copied into a project
        return DISTRIBUTION
