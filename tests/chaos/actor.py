"""A process of a workload: ``python -m tests.chaos.actor MODULE FUNCTION NUMBER`` calls a function
with a ``Part``. The harness gives the folder, the name and the seed in the environment."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from importlib import import_module
from pathlib import Path

import django

django.setup()

from leasing.runtime.shutdown import on_stop_signal  # noqa: E402
from tests.chaos.history import FOLDER, recorder  # noqa: E402
from tests.chaos.workload import Part  # noqa: E402


def main(module: str, function: str, number: str) -> None:
    stop = threading.Event()
    folder = Path(os.environ[FOLDER])
    seed = f"{os.environ.get('CHAOS_SEED', 0)}-{os.environ.get('CHAOS_NAME', number)}"
    servers = json.loads(os.environ.get("CHAOS_SERVERS", "{}"))
    part = Part(recorder(), random.Random(seed), stop, int(number), folder, servers)
    with on_stop_signal(stop.set):
        getattr(import_module(module), function)(part)


main(*sys.argv[1:])
