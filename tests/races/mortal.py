"""Workers that are killed, one after the other, each at a stage of its work drawn by lot.

``python -m tests.races.mortal KILLS SEED NOTES`` forks a worker, lets it kill itself at its stage,
and forks the next, until so many have been killed; one that lives does what is left. The file
NOTES gets a line for each kill, with its stage, and for each completion that was accepted.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import django

django.setup()

from django.db import transaction  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

from tasks import signals  # noqa: E402
from tasks.execution import completer, runner  # noqa: E402
from tasks.models import Task  # noqa: E402
from tasks.querysets import ends  # noqa: E402
from tasks.querysets.sql import ends as one_statement  # noqa: E402
from tasks.worker import executor  # noqa: E402
from tasks.worker.process import Until, WorkerProcess  # noqa: E402
from tests.races.support import STAGES  # noqa: E402


class Doom:
    """Kills this process as it comes to ``stage`` for the ``nth`` time."""

    def __init__(self, stage: str, nth: int, notes: int) -> None:
        self.stage, self.left, self.notes = stage, nth, notes

    def note(self, text: str) -> None:
        os.write(self.notes, f"{text}\n".encode())

    def at(self, stage: str) -> None:
        if stage != self.stage:
            return
        self.left -= 1
        if self.left == 0:
            self.note(f"killed {stage}")
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Look in at each stage."""
        store, call, read_back = completer.store_outcomes, runner.call_handler, ends._read_back
        complete_in_one = one_statement.complete

        def calling(*args: Any) -> Any:
            self.at("running")
            return call(*args)

        def storing(*args: Any) -> None:
            self.at("before completing")
            store(*args)

        def reading(*args: Any) -> Any:
            # Between the update and the commit.
            self.at("while completing")
            return read_back(*args)

        def completing(using: str, *args: Any) -> Any:
            with transaction.atomic(using=using):
                done = complete_in_one(using, *args)
                self.at("while completing")
            return done

        def claimed(**details: Any) -> None:
            self.at("claimed")

        def completed(task: Task, **details: Any) -> None:
            self.note(f"completed {task.pk}")
            self.at("completed")

        for place, name, stand_in in (
            (runner, "call_handler", calling),
            (completer, "store_outcomes", storing),
            (ends, "_read_back", reading),
            (one_statement, "complete", completing),
        ):
            setattr(place, name, stand_in)
        signals.claimed.connect(claimed, weak=False)
        signals.completed.connect(completed, weak=False)


def work(doom: Doom, until: Until) -> None:
    """Be a worker, of few tasks at a time: there are to be enough to die over."""
    executor.MAX_PREFETCH, completer.MAX_BATCH = 2, 2
    doom.install()
    # Without a back-off: a worker that drains waits for no task whose time has not come.
    at_once = {"base": 0, "cap": 0}
    with override_settings(TASK_QUEUE={"POLL_EVERY": 0.05, "SWEEP_EVERY": 0.2, "BACKOFF": at_once}):
        WorkerProcess(threads=3, ttl=1, until=until).run()


def main(kills: int, seed: int, path: str) -> None:
    drawn = random.Random(seed)
    notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    died = 0
    stages: list[str] = []
    while True:
        alive = died >= kills
        # Each stage once before any comes again: by lot alone one might never come.
        stages = stages or drawn.sample(STAGES, len(STAGES))
        doom = Doom("" if alive else stages[-1], drawn.randint(1, 3), notes)
        child = os.fork()
        if not child:
            work(doom, Until.DRAINED)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            died += 1
            stages.pop()
        elif alive:
            sys.exit(os.waitstatus_to_exitcode(status))
        elif not Task.objects.exclude(status="succeeded").exists():
            sys.exit("there were too few tasks to die over")


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
