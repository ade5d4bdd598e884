"""The health of a process that runs tasks, in one place for all that ask: probes over HTTP, the
health file, the parent of a worker.

alive    its lasting threads, or its loop, go on. A process that is not is to be started again
moving   claims, renewals and results are answered. They are not while the database is away, and to
         start the process again is no remedy
ready    it is alive, its work moves, the migrations were applied, and it neither starts nor stops
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from tasks.log import log
from tasks.runtime.loop import Loop

#: Seconds without a sign after which work counts as stalled, and a thread or a process as hung.
LATE_AFTER, HUNG_AFTER = 10.0, 60.0
#: Seconds between touches of the file, and between checks for hanging clients of the probes.
LOOK_EVERY = 1.0


@dataclass(frozen=True)
class Health:
    """Sentences that say why a process is not alive, why its work does not move, and why it is not
    ready although it does. Each is empty where that is not so."""

    hung: tuple[str, ...] = ()
    stalled: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    @classmethod
    def of_all(cls, healths: Mapping[str, Health]) -> Health:
        """Return the health of a process whose parts, by their names, have these ``healths``: all
        that one of them lacks it lacks too."""
        return cls(
            **{
                each.name: tuple(
                    f"{name}: {reason}"
                    for name, health in healths.items()
                    for reason in getattr(health, each.name)
                )
                for each in fields(cls)
            }
        )

    @property
    def is_moving(self) -> bool:
        return not (self.hung or self.stalled)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why it is not ready."""
        return (*self.hung, *self.stalled, *self.closed)


class HealthFile:
    """A file that a loop touches while the work of a process moves: its age tells for how long it
    has not. It is made at once; raises OSError where it cannot be."""

    def __init__(self, path: Path, health: Callable[[], Health], loop: Loop) -> None:
        self._path = path
        self._health = health
        self._has_failed = False
        path.touch()
        loop.repeat(LOOK_EVERY, self.note)

    def note(self) -> None:
        """Touch the file if the work moves."""
        if not self._health().is_moving:
            return
        try:
            self._path.touch()
        except OSError as error:
            if not self._has_failed:
                log.health_file_failed(path=self._path, error=error)
            self._has_failed = True
        else:
            self._has_failed = False
