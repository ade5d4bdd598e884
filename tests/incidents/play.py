"""An incident for somebody who does not know which: ``python -m tests.incidents.play SEED NUMBER``.

Starts a site with workers on a throw-away PostgreSQL server, plants the incident that is the
NUMBERth in the random order of SEED, and prints the address and a login, and nothing else. At a
line of input, or its end, it prints what was planted, and after how many seconds, and ends all.
"""

from __future__ import annotations

import logging
import os
import random
import select
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import django
from django.core.management import call_command

from tests.brokers import free_ports
from tests.plugin import ENVIRONMENT
from tests.postgres import serve
from tests.processes import Process, wait_for
from tests.web_servers import START_TIMEOUT, Site


def play(seed: int, number: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(serve()).url
        os.environ.update(ENVIRONMENT, DATABASE_URL=url)
        django.setup()
        logging.disable()  # a line of the log would tell
        from django.contrib.auth.models import User

        from tasks.models import Task
        from tests.incidents.plants import INCIDENTS, Shop

        def spawn(args: Sequence[str], **env: str) -> Process:
            log = folder / f"process-{len(os.listdir(folder))}.log"
            process = Process(args, {**os.environ, **env}, log)
            stack.callback(process.end)
            return process

        call_command("migrate", run_syncdb=True, verbosity=0)  # and models of the tests
        User.objects.create_superuser("olga", password="olga")
        (port,) = free_ports(1)
        server = ["manage.py", "runserver", "--insecure", "--noreload", f"127.0.0.1:{port}"]
        wait_for(Site(port).answers, timeout=START_TIMEOUT, process=spawn(server))
        chosen = random.Random(seed)
        incident = chosen.sample(INCIDENTS, len(INCIDENTS))[number - 1]
        (folder / "tasks").mkdir()
        shop = Shop(spawn, url, folder / "tasks", stack)
        parent = chosen.random() < 0.5 if incident.parent is None else incident.parent
        shop.open(parent=parent, **incident.env)
        incident.plant(shop)
        print(f"http://127.0.0.1:{port}/ops/ (user olga, password olga)", flush=True)
        planted = time.monotonic()

        def has_ended() -> bool:
            Task.objects.enqueue("jobs.echo", {})
            return bool(select.select([sys.stdin], [], [], 1.0)[0])

        while not has_ended():
            shop.restart_until(lambda: True)
        print(f"{incident.plant.__name__}, {time.monotonic() - planted:.0f} s", flush=True)


if __name__ == "__main__":
    play(*map(int, sys.argv[1:]))
