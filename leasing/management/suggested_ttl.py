"""A suggested ttl as ``manage.py leases ttl`` prints it."""

from __future__ import annotations

from typing import Any

from leasing.conf import leasing_settings
from leasing.diagnosis.ttl import FEWEST, Suggestion, spare
from leasing.holding.term import margin
from leasing.humanize import plural
from leasing.runtime.terminal import as_table


def facts_of(suggestion: Suggestion) -> dict[str, Any]:
    """Return a suggestion for JSON, in seconds."""
    ttl, history = suggestion.ttl, suggestion.history
    measured = {
        name: sample and {"samples": sample.samples, "p99": sample.p99, "max": sample.longest}
        for name, sample in suggestion.samples().items()
    }
    parts = {"pause": suggestion.pause(ttl), "margin": margin(ttl)}
    return {"ttl": ttl, "current_ttl": history.ttl, **measured, **parts, "lost": history.lost}


def text_of(suggestion: Suggestion) -> str:
    """Return a suggestion for people."""
    ttl, history = suggestion.ttl, suggestion.history
    now = "" if history.ttl is None else f"; the latest had {history.ttl:.12g} s"
    lines = [f"{history.subject}: a ttl of {ttl:.12g} s is suggested{now}.", _meaning(suggestion)]
    if ttl > (longest := leasing_settings.MAX_TTL):
        lines.append(f"It exceeds MAX_TTL ({longest:.12g} s): raise that, or renew the lease.")
    if history.lost:
        lines.append(f"Not ended by their holder: {plural(history.lost, history.noun)}.")
    sources = {
        "work": f"{history.noun}s",
        "heartbeat": f"{history.renewed}s",
        "round_trip": "queries from here",
    }
    table = [("", "P99", "MAX", "OF")]
    for name, sample in suggestion.samples().items():
        words = name.replace("_", " ")
        if sample is None:
            table.append((words, "", "", f"fewer than {FEWEST} {sources[name]}: not used"))
        else:
            late = " late" if name == "heartbeat" else ""
            figures = f"{sample.p99:.3f} s{late}", f"{sample.longest:.3f} s{late}"
            table.append((words, *figures, f"{sample.samples:,} {sources[name]}"))
    if suggestion.is_renewed:
        table.append(("pause", f"{suggestion.pause(ttl):.3f} s", "", "between two renewals"))
    table.append(("margin", f"{margin(ttl):.3f} s", "", ""))
    return "\n".join([*lines, as_table(table)])


def _meaning(suggestion: Suggestion) -> str:
    ttl, before = suggestion.ttl, suggestion.history.ttl
    if not suggestion.is_renewed:
        return f"Without renewals, one in a hundred {suggestion.history.noun}s outlasts it."
    than = "" if before is None else f" (now {spare(before):.1f} s)"
    return (
        f"With it, a renewal may be {spare(ttl):.1f} s late{than} before the lease is "
        f"lost, and what a dead holder had is free after {ttl:.12g} s."
    )
