"""The five answers of every diagnosis: why, who holds it, until when, what happens next, what an
operator can do. ``leasing.diagnosis.lease`` gives them for leases, ``tasks.diagnosis`` for tasks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final

#: Severities, in rising order.
SEVERITIES: Final = ("ok", "info", "warning", "critical")
#: A past event whose timestamp is this far in the future was written by another clock, or before
#: set back.
SKEW: Final = timedelta(seconds=2)
#: This many losses within this time, without a completion, are flapping.
FLAPS: Final = 3
FLAPPING_WITHIN: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Action:
    """Something an operator can do, and its consequence."""

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
    #: The next event if nobody does anything.
    next: str
    #: The holder.
    who: str = "Nobody."
    #: Until when it stays as it is. Times are in words, as in facts; pages keep them up to date.
    until: str = field(default="", compare=False)
    #: Further facts: pairs of a name and a value.
    facts: list[tuple[str, str]] = field(default_factory=list, compare=False)
    actions: list[Action] = field(default_factory=list)

    @property
    def answers(self) -> list[tuple[str, str]]:
        """Return the five questions in order, each with its answer."""
        doable = " ".join(f"{each.label}: {each.consequence}" for each in self.actions)
        return [
            ("Status", self.headline),
            ("Held by", self.who),
            ("Until", self.until or "No deadline."),
            ("What happens next", self.next),
            ("What you can do", doable or "No action needed."),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON, with the facts as an object."""
        given = {each.name: getattr(self, each.name) for each in fields(Diagnosis)}
        actions = [asdict(action) for action in self.actions]
        return given | {"facts": dict(self.facts), "actions": actions}


def is_skewed(now: datetime, *moments: datetime | None) -> bool:
    """Return True if one of ``moments``, which are of past events, is after ``now``."""
    return any(moment is not None and moment - now > SKEW for moment in moments)
