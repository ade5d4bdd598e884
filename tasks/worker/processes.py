"""Work in child processes: the worker keeps the lease, the child runs the handler.

A child is started (never forked) when the first task needs it, and serves one task after the
other. It is killed, with all that it started, when the attempt is over before the handler is:
timed out, lost, given back, or cancelled and not ended for ``Timing.cancel_grace``; and when a
signal has stopped it for as long as a stopped worker would have kept the task: the ttl.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

from leasing.exceptions import LeaseLost
from leasing.management import console
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.exceptions import ProcessDied, TaskCancelled
from tasks.execution import runner
from tasks.execution.attempt import Attempt
from tasks.execution.context import Context
from tasks.registry import Kind
from tasks.runtime import marks
from tasks.worker import child
from tasks.worker.threads import Threads

#: Seconds that a child has to start: to import the project.
START_PATIENCE = 60.0
#: The number of children that are started for one attempt, if each is killed before its handler
#: begins.
STARTS = 3
#: The pause before an attempt is begun anew that was given back because each of them was killed.
KILLED_PAUSE = timedelta(seconds=10)
#: Seconds between looks whether the attempt is over.
CHECK_EVERY = 0.1

_START = (
    "import sys; sys.path[:] = {path!r}; import django; django.setup(); "
    "from tasks.worker.child import serve; serve({descriptor}, {verbosity})"
)


class Processes(Threads):
    """Runs each task in a child process; a thread of the worker's own watches each child."""

    kind = Kind.PROCESS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._children: list[ChildProcess] = []

    def _work(self, call: runner.Call | None = None) -> None:
        mine = ChildProcess(self.timing.cancel_grace)
        self._children.append(mine)
        try:
            super()._work(mine.call)
        finally:
            self._children.remove(mine)
            mine.kill()

    def close(self) -> None:
        super().close()
        for each in self._children:
            each.kill()


class ChildProcess:
    """One child process at a time, replaced after it was killed or has died. A handler has
    ``cancel_grace`` seconds to end once its task was cancelled."""

    def __init__(self, cancel_grace: float) -> None:
        self._cancel_grace = cancel_grace
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None
        #: True if it has reported that it is up.
        self._ready = False
        self._lock = threading.Lock()

    def call(self, attempt: Attempt, context: Context) -> Any:
        """Run the handler of ``attempt`` in the child. Raises what the handler raised,
        ProcessDied, LeaseLost, TaskCancelled."""
        watch = Watch(attempt, self._cancel_grace)
        try:
            if not self._begin(attempt, watch):
                context.given_back = (f"Its process was killed {STARTS} times.", KILLED_PAUSE)
                return None
            answer = self._receive(watch)
        except BaseException:
            self.kill()
            raise
        context.completed = answer.completed
        if answer.completed:
            # The child has told of it, and nobody counts there.
            happened("attempt.completed", [attempt.claimed])
        if answer.raised is not None:
            raise answer.raised.error
        context.given_back = answer.given_back
        return answer.output

    def kill(self) -> None:
        """End the child with all that it started."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if marks.current is not None:
                    marks.current.remove_group(process.pid)
                self._pipe.close()

    def _begin(self, attempt: Attempt, watch: Watch) -> bool:
        """Have a child call the handler. One that is killed before is replaced: nothing has
        begun. Returns False if each was."""
        for _ in range(STARTS):
            self._spawn()
            try:
                if not self._ready:
                    self._receive(watch, clock() + START_PATIENCE)
                    self._ready = True
                attempt.start_timeout()
                attempt.set_mark()
                task = attempt.claimed.task
                self._send(child.Job(task, attempt.trusted_until, attempt.trace_context))
                self._receive(watch)
                return True
            except ProcessDied:
                process = self._process
                if process is None or (process.poll() or 0) >= 0:
                    raise
        self.kill()
        return False

    def _spawn(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        ours, theirs = multiprocessing.Pipe()
        # The interpreter's own options, as this process was started with.
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        code = _START.format(
            path=sys.path, descriptor=theirs.fileno(), verbosity=console.verbosity_shown
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        if marks.current is not None:
            marks.current.add_group(self._process.pid)
        self._pipe = ours
        self._ready = False

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # the end of the child is noticed as its answer is awaited
            self._pipe.send(message)

    def _receive(self, watch: Watch, deadline: float = math.inf) -> Any:
        """The next message of the child; tells it what ``watch`` sees meanwhile."""
        while clock() < deadline:
            process = self._process
            ended = process is None or process.poll() is not None
            try:
                if self._pipe.poll(0 if ended else CHECK_EVERY):
                    return self._pipe.recv()
            except (EOFError, OSError):
                ended = True
            if ended:
                raise ProcessDied(_how_it_died(process))
            news = watch.look(is_stopped=process is not None and _is_stopped(process))
            if news is not None:
                self._send(news)
        raise ProcessDied(f"The process of the handler did not start in {START_PATIENCE:.12g} s.")


class Watch:
    """Watches an attempt while its handler runs in a child."""

    def __init__(self, attempt: Attempt, cancel_grace: float) -> None:
        self._attempt = attempt
        self._cancel_grace = cancel_grace
        self._reported = self._news
        self._cancelled_at: float | None = None
        self._stopped_at: float | None = None

    def look(self, *, is_stopped: bool) -> child.News | None:
        """Return the news for the child, which a signal has stopped if it ``is_stopped``. Raises
        what ends the attempt."""
        attempt, now = self._attempt, clock()
        self._stopped_at = (self._stopped_at or now) if is_stopped else None
        if self._stopped_at is not None and now - self._stopped_at > attempt.ttl:
            seconds = f"{attempt.ttl:.12g} s"
            raise ProcessDied(
                f"The process of the handler was stopped by a signal for {seconds}, and killed."
            )
        if attempt.ended_by:
            raise ProcessDied(f"It was killed: ended by its {attempt.ended_by}.")
        if attempt.is_lost:
            raise LeaseLost(attempt.resource, attempt.overdue_reason)
        if attempt.cancelled_by:
            self._cancelled_at = self._cancelled_at or now
            if now - self._cancelled_at > self._cancel_grace:
                raise TaskCancelled("The handler did not end, and its process was killed.")
        before, self._reported = self._reported, self._news
        return None if before == self._reported else self._reported

    @property
    def _news(self) -> child.News:
        attempt = self._attempt
        return child.News(
            attempt.grant_id,
            attempt.trusted_until,
            attempt.cancelled_by,
            attempt.stopping.is_set(),
        )


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Return True if a signal has stopped ``process``, where the system tells; False if it has
    ended."""
    if sys.platform == "linux":
        with suppress(ChildProcessError):
            options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, process.pid, options) is not None
    return False


def _how_it_died(process: subprocess.Popen[bytes] | None) -> str:
    if process is None:
        return "The process of the handler was stopped with its worker."
    code = process.wait()
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}"
    return f"The process of the handler {how}."
