"""Bars that figures must reach, with the newest Python that is measured."""

from __future__ import annotations

from dataclasses import dataclass

#: The newest Python that is measured, and by how much a ratio may be lower with an older one.
NEWEST = (3, 13)
OLDER = 0.1


@dataclass(frozen=True)
class Bar:
    """Of the figure ``name``: ours must be at least, or at most, ``bound``; times ``other``'s
    figure of the same turn where there is an ``other``."""

    name: str
    bound: float
    other: str = ""
    at_most: bool = False

    def loosened(self, slack: float, lower: float = 0.0) -> float:
        """The bound, for a machine that is trusted less by a factor of ``slack``; that of a ratio
        is ``lower`` by so much."""
        if self.at_most:
            return self.bound * slack
        return (self.bound - lower) / slack

    def is_met(self, figure: float, slack: float = 1.0, lower: float = 0.0) -> bool:
        """Return True if ``figure``, or the ratio to the other, reaches the bar."""
        bound = self.loosened(slack, lower)
        return figure <= bound if self.at_most else figure >= bound

    def text(self, slack: float = 1.0, lower: float = 0.0) -> str:
        """In words."""
        of = f" of {self.other}" if self.other else ""
        bound = self.loosened(slack, lower)
        return f"{'at most' if self.at_most else 'at least'} {bound:.3g}{of}"


BARS = [
    Bar("drain, 1 worker (tasks/s)", 0.7, "limit"),
    Bar("drain, 1 worker (tasks/s)", 1.3, "pgqueuer"),
    Bar("drain beside an async handler (tasks/s)", 0.68, "limit"),
    Bar("drain, 2 workers (tasks/s)", 0.55, "limit"),
    Bar("drain, 2 workers (tasks/s)", 1.15, "pg-boss"),
    Bar("drain with max_attempts=1 to without (ratio)", 0.75),
    Bar("drain through django.tasks, Django's default logging, to handlers (ratio)", 0.6),
    Bar("drain through django.tasks, django at WARNING, to handlers (ratio)", 0.9),
    Bar("CPU of the worker while draining (us a task)", 20, at_most=True),
    Bar("CPU of the worker while draining coroutines (us a task)", 35, at_most=True),
    Bar("CPU of the server while draining (us a task)", 24, at_most=True),
    Bar("worker memory while draining (MB)", 100, at_most=True),
    Bar("4 workers with 25 threads on 10 ms naps, to the ideal (ratio)", 0.88),
    Bar("looks for a kind without tasks (% of a core)", 1, at_most=True),
    Bar("head of line: short tasks wait behind long ones, p95 (ms)", 150, at_most=True),
    Bar("priority: a higher one into a backlog, p50 (ms)", 20, at_most=True),
    Bar("priority: a higher one into a backlog, max (ms)", 60, at_most=True),
    Bar("enqueue one by one (tasks/s)", 0.6, "limit"),
    Bar("bulk enqueue (tasks/s)", 0.5, "limit"),
    Bar("enqueue to start, p50 (ms)", 1.5, "limit", at_most=True),
    Bar("acquire, release (cycles/s)", 0.85, "limit"),
    Bar("acquire, renew, release (cycles/s)", 0.8, "limit"),
    Bar("8 processes, one resource (cycles/s)", 0.6, "limit"),
    Bar("100 leases at once (leases/s)", 0.75, "limit"),
    Bar("claim, deepest to shallowest (ratio)", 1.2, at_most=True),
    Bar("drain under an open snapshot to without (ratio)", 0.6),
    Bar("dead without having begun, beyond the slots of the killed (tasks)", 0, at_most=True),
    *(
        Bar(f"kill -9 of a child: {what} after, p99 (s)", 0.5, at_most=True)
        for what in (
            "what had not begun runs elsewhere",
            "what had begun is ready, before its back-off,",
        )
    ),
    *(
        Bar(f"kills of children: {what} (tasks)", 0, at_most=True)
        for what in ("lost", "accepted twice", "dead without having begun")
    ),
    Bar("drain, --workers 2 to two bare workers (ratio)", 0.97),
    Bar("memory of --workers 8 to eight bare workers, PSS (ratio)", 0.6, at_most=True),
    Bar("idle worker (queries/s)", 1.1, at_most=True),
    Bar("idle worker (connections)", 3, at_most=True),
    Bar("idle worker (% of a core)", 0.5, at_most=True),
    Bar("batches of 100 over HTTP, 1 gunicorn worker (tasks/s)", 3000),
    Bar("remote drain, 1 gunicorn worker (tasks/s)", 2500),
    Bar("CPU of a remote drain, of all three (us a task)", 400, at_most=True),
    Bar("acquire, renew, release over HTTP (cycles/s)", 0.6, "limit"),
    Bar("CPU of the HTTP worker for an acquire (us)", 2000, at_most=True),
    Bar("lists of the API, long to short, the slowest (ratio)", 1.5, at_most=True),
    Bar("kill -9 to running elsewhere, p99, beyond the ttl (s)", 2, at_most=True),
]
