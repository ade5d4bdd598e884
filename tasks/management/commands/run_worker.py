from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.utils import autoreload

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.keeper import keeper
from leasing.management.base import ServiceCommand
from leasing.metrics import port
from leasing.runtime.shutdown import on_stop_signal
from leasing.validation.names import check_name, check_ttl
from tasks.exceptions import NameTaken, UnknownQueue
from tasks.execution.chaos import Chaos
from tasks.log import log
from tasks.management import greeting
from tasks.management.names import exit_if_taken
from tasks.querysets import check_queue
from tasks.worker.process import Until, WorkerProcess

#: New objects from which on garbage is looked for among them: more than belong to the tasks that a
#: worker has claimed ahead and those that it is storing.
YOUNG_OBJECTS = 10_000


class Command(ServiceCommand):
    help = "Run tasks until SIGTERM or SIGINT. Any number of workers can run, on any machine."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="Serve only this queue; repeat for several (default: all queues)",
        )
        parser.add_argument(
            "--threads", type=int, default=4, help="Synchronous handlers at a time (default 4)"
        )
        parser.add_argument(
            "--coroutines", type=int, default=100, help="Async handlers at a time (default 100)"
        )
        parser.add_argument(
            "--processes",
            type=int,
            default=1,
            help="Handlers in child processes at a time (default 1, started on demand)",
        )
        parser.add_argument(
            "--ttl", type=float, help="Seconds that a claim or a heartbeat is valid"
        )
        parser.add_argument(
            "--stop-timeout",
            type=float,
            metavar="SECONDS",
            help="Time for running tasks to finish after a stop signal",
        )
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument(
            "--once", action="store_true", help="Run the tasks that are ready, then exit"
        )
        ends.add_argument(
            "--drain",
            action="store_true",
            help="Exit when no task of the queues is due or running on any worker",
        )
        ends.add_argument(
            "--autoreload", action="store_true", help="For development: restart when code changes"
        )
        parser.add_argument(
            "--max-tasks",
            type=int,
            metavar="N",
            help="Exit after N tasks (let a supervisor restart the worker)",
        )
        parser.add_argument("--name", help="Name of this worker (default: host:pid:random)")
        port.add_arguments(parser)
        parser.add_argument(
            "--chaos",
            action="store_true",
            help="For demonstrations: 5 %% of tasks crash the process, 10 %% stall",
        )

    def handle(self, **options: Any) -> None:
        _check(options)
        if options["autoreload"]:
            # Runs it on a second thread: the main one gets the signals and ends at a change.
            autoreload.run_with_reloader(lambda: _reloaded(self._made(options)))
            return
        worker = self._made(options)
        with exit_if_taken(), on_stop_signal(worker.stop), collected_seldom():
            worker.run()
            if worker.executions:
                # A thread that cannot be ended must not keep the process from its end.
                _leave(worker)
            if worker.name_taken:
                raise worker.name_taken
        if worker.failed:
            raise CommandError("The worker gave up because it was stuck: its log says why.")

    def _made(self, options: dict[str, Any]) -> WorkerProcess:
        """The worker, which has introduced itself."""
        worker = _measured(options)
        self.greet(options, f"worker {worker.name}", greeting.facts(worker))
        if options["verbosity"] and (reason := greeting.no_handler_reason()):
            log.worker_without_handlers(worker=worker.name, reason=reason)
        return worker


@contextmanager
def collected_seldom() -> Iterator[None]:
    """A block in which garbage is looked for neither in what was loaded before nor whenever some
    tasks more have been claimed: what is in use, looked through again and again as tasks come and
    go, would take a tenth of the time of short ones. A collector that is off stays off."""
    young, *older = gc.get_threshold()
    gc.collect()
    gc.freeze()
    if young:
        gc.set_threshold(max(young, YOUNG_OBJECTS), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        gc.unfreeze()


def _check(options: dict[str, Any]) -> None:
    for name in ("threads", "coroutines", "processes", "max_tasks"):
        if options[name] is not None and options[name] < 1:
            raise CommandError(f"--{name.replace('_', '-')} must be at least 1.")
    try:
        check_ttl(options["ttl"])
        if options["name"] is not None:
            check_name(options["name"], "name")
        for queue in options["queues"] or ():
            check_queue(queue)
    except (InvalidResource, InvalidTTL, UnknownQueue) as error:
        raise CommandError(str(error)) from error


def _worker(options: dict[str, Any]) -> WorkerProcess:
    same = ("queues", "threads", "coroutines", "processes", "ttl", "stop_timeout", "max_tasks")
    until = Until.ONCE if options["once"] else Until.DRAINED if options["drain"] else Until.STOPPED
    return WorkerProcess(
        **{name: options[name] for name in (*same, "name")},
        until=until,
        chaos=Chaos() if options["chaos"] else None,
    )


def _measured(options: dict[str, Any]) -> WorkerProcess:
    """The worker, which shows its metrics if it was asked to."""
    worker = _worker(options)
    port.serve(options)
    if options["metrics_port"] is not None:
        from tasks.metrics import process

        process.watch(worker.executors)
    return worker


def _reloaded(worker: WorkerProcess) -> None:
    atexit.register(worker.stop_now)
    try:
        worker.run()
        if worker.name_taken:
            raise worker.name_taken
    except NameTaken as error:  # on a thread, whose end would not be the end of the process
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(error.EXIT_CODE)


def _leave(worker: WorkerProcess) -> None:
    if worker.name_taken:
        sys.stderr.write(f"{worker.name_taken}\n")
    keeper.stop()  # what it has noted is written
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(NameTaken.EXIT_CODE if worker.name_taken else int(worker.failed))
