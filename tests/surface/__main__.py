"""Write the list anew, from a database of its own: ``python -m tests.surface``."""

from __future__ import annotations

import logging
import os
import warnings

import django
from django.core.management import call_command
from django.test.utils import setup_test_environment

from tests.plugin import ENVIRONMENT
from tests.postgres import serve


def main() -> None:
    warnings.simplefilter("error")
    logging.disable()  # what the rows go through is no news
    with serve() as database:
        os.environ.update(ENVIRONMENT, DATABASE_URL=database.url)
        django.setup()
        setup_test_environment()
        call_command("migrate", run_syncdb=True, verbosity=0)

        from tests.surface import reading

        lines = reading.lines()
        reading.LIST.write_text("\n".join(lines) + "\n")
        print(f"surface: {len(lines)} lines in {reading.LIST}")
        django.db.connections.close_all()


if __name__ == "__main__":
    main()
