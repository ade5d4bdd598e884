"""``manage.py run_generator`` with short ticks: ``python -m tests.races.generate OPTION...``."""

from __future__ import annotations

import sys

import django

django.setup()

from django.core.management import call_command  # noqa: E402

from tasks import generator  # noqa: E402

generator.LOOK_EVERY = 0.05
call_command("run_generator", *sys.argv[1:])  # without the checks of a command line
