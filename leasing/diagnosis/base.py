"""The five answers of every explanation: why, who holds it, until when, what happens next, what
one can do. Of a lease by ``leasing.diagnosis.lease``, of a task by ``tasks.diagnosis``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final

#: Severities, in rising order.
SEVERITIES: Final = ("ok", "info", "warning", "critical")
#: A moment that is past and lies so far ahead was written by another clock, or before that was
#: set back.
SKEW: Final = timedelta(seconds=2)
#: So often within so long another took it, and none came to an end.
FLAPS: Final = 3
FLAPPING_WITHIN: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Action:
    """Something an operator can do, and what follows from it."""

    name: str
    label: str
    consequence: str
    #: The permission that it needs.
    permission: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one row, for an operator."""

    code: str
    #: One of SEVERITIES.
    severity: str
    #: Why it is as it is.
    headline: str
    #: The next step, if nobody does anything.
    next: str
    #: The holder, and until when it stays as it is.
    who: str = "Nobody."
    #: It tells the time in words, as do facts; pages count it on.
    until: str = field(default="", compare=False)
    #: Further facts: pairs of a name and a value.
    facts: list[tuple[str, str]] = field(default_factory=list, compare=False)
    actions: list[Action] = field(default_factory=list)

    @property
    def answers(self) -> list[tuple[str, str]]:
        """The five questions in their order, each with its answer."""
        doable = " ".join(f"{each.label}: {each.consequence}" for each in self.actions)
        return [
            ("Status", self.headline),
            ("Held by", self.who),
            ("Until", self.until or "No deadline."),
            ("What happens next", self.next),
            ("What you can do", doable or "No action needed."),
        ]

    def as_json(self) -> dict[str, Any]:
        """For JSON: the facts as an object."""
        given = {each.name: getattr(self, each.name) for each in fields(Diagnosis)}
        actions = [asdict(action) for action in self.actions]
        return given | {"facts": dict(self.facts), "actions": actions}


def is_skewed(now: datetime, *moments: datetime | None) -> bool:
    """Return True if one of ``moments``, all of them in the past, lies after ``now``."""
    return any(moment is not None and moment - now > SKEW for moment in moments)
