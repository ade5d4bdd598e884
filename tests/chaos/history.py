"""A history: each call of each process, when it began and how it ended, by the clock of the host.

A process appends a line of JSON to a file of its own when a call begins, and one when it ends. A
killed process leaves calls without an end: they may have happened, or not. ``read_histories`` pairs
the lines.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leasing.exceptions import LeaseError, StoreError
from tasks.exceptions import TaskError

#: The clock that all processes of a host share and nobody sets.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: The variable that names the folder of the histories to processes which a workload starts.
FOLDER = "CHAOS_HISTORY"

INVOKE, OK, FAILED, UNKNOWN = "invoke", "ok", "failed", "unknown"


def now() -> int:
    """Return the host's clock, in nanoseconds."""
    return time.clock_gettime_ns(CLOCK)


@dataclass
class Operation:
    """One call of a process."""

    process: str
    operation: int
    name: str
    resource: str
    #: When it began and ended, in nanoseconds; the end is None if its process did not see it.
    began: int
    ended: int | None = None
    #: ``ok``: it happened. ``failed``: it did not. ``unknown``: nobody can tell.
    outcome: str = UNKNOWN
    #: Its arguments, and what it returned, or the error.
    value: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK

    def __str__(self) -> str:
        took = "no end" if self.ended is None else f"{(self.ended - self.began) / 1e6:.1f} ms"
        return (
            f"{self.began / 1e9:.6f} {self.process} #{self.operation} {self.name} {self.resource!r}"
            f" {self.value} -> {self.outcome} {self.result} ({took})"
        )


class Call:
    """A call that is under way. The block says ``ok`` or ``failed``, or an error does."""

    def __init__(self, began: int) -> None:
        #: When it began.
        self.began = began
        self.outcome, self.result, self.at = OK, dict[str, Any](), 0

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK

    def ok(self, **value: Any) -> None:
        """It happened, with this result; it ends now."""
        self._end(OK, value)

    def failed(self, **value: Any) -> None:
        """It did not happen, for certain."""
        self._end(FAILED, value)

    def unknown(self, **value: Any) -> None:
        """It may have happened."""
        self._end(UNKNOWN, value)

    def _end(self, outcome: str, value: dict[str, Any]) -> None:
        self.outcome, self.result, self.at = outcome, value, now()


class Recorder:
    """Appends the calls of this process to a file in ``folder``; any thread may."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        self._numbers = itertools.count()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / f"{process}.jsonl", flags)

    @contextmanager
    def call(
        self,
        name: str,
        resource: str = "",
        *,
        passes: tuple[type[BaseException], ...] = (),
        **value: Any,
    ) -> Iterator[Call]:
        """Record a call that the block makes.

        An error is recorded and raised again: ``failed`` if it is a refusal of this project, for
        which nothing was done; else ``unknown``. Errors of the types ``passes`` are recorded and do
        not leave the block.
        """
        number = next(self._numbers)
        call = Call(now())
        self._write(call.began, number, INVOKE, name, resource, value)
        try:
            yield call
        except BaseException as error:
            is_refusal = isinstance(error, (LeaseError, TaskError))
            end = call.failed if is_refusal and not isinstance(error, StoreError) else call.unknown
            end(error=type(error).__name__, message=str(error)[:200])
            self._write(call.at, number, call.outcome, name, resource, call.result)
            if not isinstance(error, passes):
                raise
        else:
            self._write(call.at or now(), number, call.outcome, name, resource, call.result)

    def note(self, name: str, resource: str = "", *, began: int = 0, **value: Any) -> None:
        """Record something that has happened, in one line: now, or since ``began``."""
        at = now()
        value |= {"began": began or at}
        self._write(at, next(self._numbers), OK, name, resource, value)

    def _write(
        self, at: int, number: int, kind: str, name: str, resource: str, value: dict[str, Any]
    ) -> None:
        line = {
            "at": at,
            "process": self.process,
            "operation": number,
            "kind": kind,
            "name": name,
            "resource": resource,
            "value": value,
        }
        # One write: lines of threads do not mix, and what is written outlives a kill.
        os.write(self._file, json.dumps(line, default=str).encode() + b"\n")


def recorder() -> Recorder:
    """Return the recorder of this process, a forked one too, of a workload."""
    pid = os.getpid()
    if pid not in _recorders:
        name = f"{os.environ.get('CHAOS_NAME', 'process')}-{pid}"
        # Of two threads that come first both get the same one: each counts its calls by itself.
        _recorders.setdefault(pid, Recorder(Path(os.environ[FOLDER]), name))
    return _recorders[pid]


_recorders: dict[int, Recorder] = {}


def read_histories(folder: Path) -> list[Operation]:
    """Return all operations of the histories in ``folder``, in the order in which they began."""
    operations: list[Operation] = []
    for file in sorted(folder.glob("*.jsonl")):
        operations += pair(_lines(file))
    return sorted(operations, key=lambda each: each.began)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    text = file.read_text(errors="replace")
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            # A process that was killed may have left half a line at the end.
            if not text.endswith(line):
                raise


def pair(lines: Iterator[dict[str, Any]]) -> list[Operation]:
    """Return the operations of the lines of one file."""
    found: dict[tuple[str, int], Operation] = {}
    for line in lines:
        key = line["process"], line["operation"]
        at, value = line["at"], line["value"]
        if line["kind"] == INVOKE:
            found[key] = Operation(*key, line["name"], line["resource"], at, value=value)
        elif key in found:
            each = found[key]
            each.ended, each.outcome, each.result = at, line["kind"], value
        else:  # a note
            name, resource, began = line["name"], line["resource"], value.pop("began")
            found[key] = Operation(*key, name, resource, began, at, OK, value)
    return list(found.values())
