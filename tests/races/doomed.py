"""A fleet one of whose processes is killed at a point of its work.

``python -m tests.races.doomed POINT FOLDER OPTIONS...`` runs ``run_worker`` with these options. The
first process that comes to POINT is killed there, and leaves the file ``killed`` in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import django

django.setup()

from django.core.management import execute_from_command_line  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

from tasks.execution import completer, runner  # noqa: E402
from tasks.execution.attempt import Attempt  # noqa: E402
from tasks.fleet import hand_back, parent  # noqa: E402
from tasks.models import Task, Worker  # noqa: E402
from tasks.worker.executors import Executors  # noqa: E402
from tasks.worker.process import WorkerProcess  # noqa: E402

Calls = tuple[Any, str]
ROWS, WORKERS = type(Task.objects.all()), type(Worker.objects.all())
#: The functions before whose calls, and after whose calls, somebody dies.
BEFORE: dict[str, Calls] = {
    "before the claim": (ROWS, "take"),
    "before the entry": (Executors, "submit"),
    "before the mark": (Attempt, "set_mark"),
    "before the return": (runner, "judge"),
    "before storing": (completer, "_store"),
    "before handing back": (hand_back, "hand_back"),
    "between the statements of handing back": (ROWS, "take_from_dead"),
}
AFTER: dict[str, Calls] = {
    "after the claim": (ROWS, "take"),
    "after the mark": (Attempt, "set_mark"),
    "after storing": (completer, "_store"),
    "after handing back": (WORKERS, "sign_off_dead"),
}


def install(calls: Calls, *, after: bool, die: Callable[[], None]) -> None:
    """Have whoever calls that function ``die``."""
    place, name = calls
    original = getattr(place, name)

    @wraps(original)
    def deadly(*args: Any, **options: Any) -> Any:
        if not after:
            die()
        result = original(*args, **options)
        if after and result != []:  # a claim that found nothing
            die()
        return result

    setattr(place, name, deadly)


def dies_once(folder: Path) -> Callable[[], None]:
    """Return what kills this process, unless another was killed already."""

    def die() -> None:
        try:
            (folder / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return die


def fail(*args: Any) -> None:
    raise RuntimeError("it does not start")


def main(point: str, folder: Path, options: list[str]) -> None:
    die = dies_once(folder)
    if point in BEFORE:
        install(BEFORE[point], after=False, die=die)
    elif point in AFTER:
        install(AFTER[point], after=True, die=die)
    elif point == "no start":
        setattr(WorkerProcess, "run", fail)  # noqa: B010
    elif point == "suspended":
        setattr(parent, "HUNG_AFTER", 3.0)  # noqa: B010
    elif point == "with another thread":
        threading.Thread(target=threading.Event().wait, name="other", daemon=True).start()
    if "handing back" in point:
        install(AFTER["after the mark"], after=True, die=dies_once(folder / "worker"))
    with override_settings(TASK_QUEUE={"POLL_EVERY": 0.1, "BACKOFF": {"base": 0, "cap": 0}}):
        execute_from_command_line(["manage.py", "run_worker", "--skip-checks", *options])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
