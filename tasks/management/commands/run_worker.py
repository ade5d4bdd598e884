from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from django.core.management.base import CommandError
from django.utils import autoreload

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.holding.keeper import keeper
from leasing.management import console
from leasing.management.base import ServiceCommand, duration
from leasing.management.console import shown
from leasing.metrics import port
from leasing.runtime.clock import clock
from leasing.runtime.shutdown import ExitCode, on_stop_signal
from leasing.runtime.threads import start_thread
from leasing.validation.names import MAX_NAME, check_ttl, process_named, unique_name
from tasks.exceptions import UnknownQueue
from tasks.execution.chaos import Chaos
from tasks.fleet import start
from tasks.fleet.child import reporting
from tasks.fleet.cores import usable_cores
from tasks.fleet.parent import Parent, Plan
from tasks.fleet.start import ChildContext
from tasks.log import log
from tasks.management import greeting, health
from tasks.management.task_lines import TaskLines
from tasks.registry import Kind, check_queue
from tasks.runtime.memory import resident_mib
from tasks.worker.process import Until, WorkerProcess

#: New objects from which on garbage is looked for among them: more than belong to the tasks that a
#: worker has claimed ahead and those that it is storing.
YOUNG_OBJECTS = 10_000


#: Seconds that the exit of the process may take, however long the worker took to stop.
EXIT_PATIENCE = 1.0

#: The longest name of a fleet: the names of its workers are a little longer.
LONGEST_FLEET = MAX_NAME - 20


class Command(ServiceCommand):
    help = "Run tasks until SIGTERM or SIGINT. Any number of workers can run, on any machine."

    #: True if this is the command of the process, and not called from Python.
    _is_of_process = False
    #: True if the parent is that of the one worker that runs by default: it ends with its worker.
    _has_one_worker = False

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
            "--ttl",
            type=duration,
            metavar="DURATION",
            help="Time that a claim or a heartbeat is valid (default: LEASING['TTL'])",
        )
        parser.add_argument(
            "--stop-timeout",
            type=duration,
            metavar="DURATION",
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
        parser.add_argument(
            "--max-memory",
            type=int,
            metavar="MIB",
            help="Finish the running tasks and exit once resident memory exceeds this many MiB",
        )
        parser.add_argument(
            "--name",
            help="Label of this worker, to which eight digits are added (default: host and pid)",
        )
        parser.add_argument(
            "--workers",
            metavar="N|auto",
            help="Worker processes under a parent that restarts them and hands back the tasks of "
            "one that dies (default 1; auto: one per usable core; 0: this process is the worker, "
            "without a parent, for a debugger or a profiler)",
        )
        port.add_arguments(parser)
        health.add_arguments(parser)
        parser.add_argument(
            "--chaos",
            action="store_true",
            help="For demonstrations: 5 %% of tasks crash the process, 10 %% stall",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        self._is_of_process = True
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        if options["autoreload"] and os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) != "true":
            options["skip_checks"] = True  # the process that it starts runs them
        return super().execute(*args, **options)

    def handle(self, **options: Any) -> None:
        if options["workers"] is None and start.current is None:
            options["workers"] = self._default_workers(options)
            self._has_one_worker = bool(options["workers"])
        _check(options)
        if options["autoreload"]:
            # Runs it on a second thread: the main one gets the signals and ends at a change.
            autoreload.run_with_reloader(lambda: _reloaded(self._made(options)))
            return
        child = start.current or (self._lead(options) if options["workers"] else None)
        if child is not None:
            _leave_with(self._serve, options, child)
        elif not options["workers"]:
            self._serve(options)

    def _default_workers(self, options: dict[str, Any]) -> int:
        """Return 1; or 0 if the command was called from Python, where nobody expects a fork, if the
        process is debugged (a worker that is halted looks hung to its parent), or if it cannot have
        children."""
        is_own = self._is_of_process and not options["autoreload"]
        return int(is_own and not _is_debugged() and start.can_start())

    def _lead(self, options: dict[str, Any]) -> ChildContext | None:
        """Run the parent. Returns None once the fleet has stopped cleanly, and in each child its
        context. Raises SystemExit."""
        worker = self._made(options)
        parent = Parent(_plan(options, worker, ends_with_worker=self._has_one_worker))
        health.serve_fleet(options, parent)
        del worker
        child = parent.run()
        if child is None and parent.exit_code:
            raise SystemExit(parent.exit_code)
        return child

    def _serve(self, options: dict[str, Any], child: ChildContext | None = None) -> None:
        """Run a worker, as the child of a fleet if ``child`` is given."""
        worker = self._made(options) if child is None else _measured(options, child)
        obeying = on_stop_signal(worker.stop) if child is None else reporting(child, worker)
        with obeying, collected_seldom(), process_named(worker.name):
            _run(worker)
            if worker.attempts:
                # A thread that cannot be ended must not keep the process from its end.
                _leave(worker)
            if child is None and self._is_of_process:
                start_thread("exit", partial(_exit_in_time, worker, options["verbosity"]))
        if worker.failed:
            raise CommandError(
                "The worker gave up because it was stuck: its log says why.",
                returncode=ExitCode.FAILED,
            )

    def _made(self, options: dict[str, Any]) -> WorkerProcess:
        """The worker, which has introduced itself."""
        worker = _worker(options) if options["workers"] else _measured(options)
        facts = greeting.facts(worker)
        if options["workers"] and not self._has_one_worker:
            facts = {"workers": f"{options['workers']}, started by this process", **facts}
        name = options["workers"] and options["name"] or worker.name
        self.greet(options, f"worker {name}", facts)
        if options["verbosity"] and (reason := greeting.no_handler_reason()):
            log.worker_without_handlers(worker=worker.name, reason=reason)
        return worker


def _is_debugged() -> bool:
    """Return True if a debugger or a tracer is attached. Since Python 3.12 it need not trace."""
    if sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.DEBUGGER_ID):
        return True
    return sys.gettrace() is not None


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
    options["workers"] = _count(options["workers"])
    if options["workers"] and options["autoreload"]:
        raise CommandError("--autoreload is for one process: leave --workers out.")
    if options["workers"] and not hasattr(os, "fork"):
        raise CommandError("--workers needs a system with fork: start several workers instead.")
    least = dict.fromkeys(("threads", "coroutines", "processes", "max_tasks", "max_memory"), 1)
    for name, bound in {**least, "workers": 0}.items():
        if options[name] is not None and options[name] < bound:
            raise CommandError(f"--{name.replace('_', '-')} must be at least {bound}.")
    last = 65536 - max(1, options["workers"] or 0)
    if options["metrics_port"] is not None and options["metrics_port"] > last:
        raise CommandError(f"--metrics-port must be at most {last}: each worker has a port.")
    health.check(options)
    try:
        check_ttl(options["ttl"])
        if options["name"] is not None:
            # Those of its workers are longer.
            number = f":{options['workers']}" if options["workers"] else ""
            unique_name(options["name"] + number)
        for queue in options["queues"] or ():
            check_queue(queue)
    except (InvalidResource, InvalidTTL, UnknownQueue) as error:
        raise CommandError(str(error)) from error


def _count(workers: Any) -> int | None:
    """Return the number of processes that ``--workers`` asks for; None, or 0: this one alone."""
    try:
        return usable_cores() if workers == "auto" else workers and int(workers)
    except ValueError:
        raise CommandError("--workers must be a number, or auto.") from None


def _plan(options: dict[str, Any], worker: WorkerProcess, *, ends_with_worker: bool) -> Plan:
    executors = worker.executors
    return Plan(
        name=(options["name"] or worker.name)[:LONGEST_FLEET],
        workers=options["workers"],
        options=options,
        inside=sum(each.most_inside for each in executors.values()),
        groups=executors[Kind.PROCESS].slots,
        ttl=check_ttl(worker.ttl).total_seconds(),
        stop_timeout=worker.stop_timeout,
        restarts=worker.until is Until.STOPPED,
        ends_with_worker=ends_with_worker,
    )


def _worker(options: dict[str, Any], child: ChildContext | None = None) -> WorkerProcess:
    same = (
        *("queues", "threads", "coroutines", "processes", "ttl", "stop_timeout"),
        *("max_tasks", "max_memory"),
    )
    limit = options["max_memory"]
    if limit is not None and (size := resident_mib()) >= limit:
        raise CommandError(
            f"--max-memory must be more than the {size} MiB that the worker has at its start."
        )
    until = Until.ONCE if options["once"] else Until.DRAINED if options["drain"] else Until.STOPPED
    fleet = None if child is None else (child.fleet, child.index, child.restarts)
    return WorkerProcess(
        **{name: options[name] for name in same},
        name=unique_name(options["name"]) if child is None else child.name,
        fleet=fleet,
        until=until,
        chaos=Chaos() if options["chaos"] else None,
    )


def _measured(options: dict[str, Any], child: ChildContext | None = None) -> WorkerProcess:
    """The worker, which shows its metrics and its health if it was asked to."""
    worker = _worker(options, child)
    if options["metrics_port"] is not None:
        port.serve(options, health.page_of(worker), index=None if child is None else child.index)
        from tasks.metrics import process

        process.watch(worker.executors)
    if child is None:
        health.serve(options, worker)
    return worker


def _run(worker: WorkerProcess) -> None:
    """Run the worker. On a console of its own, tasks have a line each only while they are few, or
    with ``--verbosity 2``."""
    if console.verbosity_shown != 1 or "tasks" not in console.loggers_shown:
        worker.run()
        return
    lines = TaskLines()
    worker.watched.append(lines)
    with lines.choosing():
        worker.run()


def _reloaded(worker: WorkerProcess) -> None:
    atexit.register(worker.stop_now)
    with process_named(worker.name):
        _run(worker)


def _leave_with(
    serve: Callable[..., None], options: dict[str, Any], child: ChildContext
) -> NoReturn:
    """Run the child of a fleet and exit the process: below it on the stack is a frame of the
    parent."""
    code: int = ExitCode.FAILED
    try:
        serve(options, child)
        code = ExitCode.DONE
    except CommandError as error:
        sys.stderr.write(f"{error}\n")
        code = error.returncode
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_in_time(worker: WorkerProcess, verbosity: int) -> None:
    """Exit the process once the worker's time to stop is over. The interpreter waits for all
    threads that are no daemons; most of those that handlers leave, as in pools, end by then."""
    time.sleep(max(EXIT_PATIENCE, worker.stops_by - clock()))
    main = threading.main_thread()
    left = [each.name for each in threading.enumerate() if not each.daemon and each is not main]
    with shown(verbosity):
        log.worker_threads_left(worker=worker.name, threads=", ".join(left))
    _leave(worker)


def _leave(worker: WorkerProcess) -> None:
    keeper.stop()  # what it has noted is written
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.FAILED if worker.failed else ExitCode.DONE)
