"""Record every action of an operator: by whom, when, in which way, on which rows.

    with audit.recording(request.user, "retry", Task, keys=[17], via="page") as act:
        act.changed = Task.objects.filter(pk=17).retry(by=act.by)

The entry is committed before the block begins, so that every action is recorded, and its outcome
when the block ends, each in a transaction of its own. Inside a transaction of the caller both are
part of that, as the action is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from leasing.conf import leasing_settings
from leasing.functions import DbNow
from leasing.models import MAX_KEY, AuditEntry
from leasing.validation.names import recorded_name

#: Keys that an entry names at most; ``asked`` has the full number.
KEYS_NAMED = 1_000
#: Why rows of a bulk action stay as they are, where nobody says more.
OTHER_STATE = "not in a state for it"

User = str | AbstractBaseUser | AnonymousUser


@dataclass
class Act:
    """An action under way: the block sets its result."""

    by: str
    entry: AuditEntry
    #: The number of rows that were asked for; None: as many as changed.
    asked: int | None
    #: The number of rows that changed.
    changed: int = 0
    #: Why others did not: how many for each reason. What it leaves unsaid is OTHER_STATE.
    skipped: dict[str, int] = field(default_factory=dict)


@contextmanager
def recording(
    by: User,
    verb: str,
    model: type[models.Model],
    *,
    keys: Sequence[Any] = (),
    names: Mapping[Any, str] | None = None,
    filter: Mapping[str, Any] | None = None,
    asked: int | None = None,
    reason: str = "",
    via: str = "",
) -> Iterator[Act]:
    """Record that ``by`` does ``verb`` to rows of ``model``; the block does it, and sets
    ``changed`` of the Act. An error of the block is recorded, and raised.

    Args:
        by: A user, or a name.
        verb: The action.
        model: The model of the rows.
        keys: Keys of the rows.
        names: The names of the rows by key, where the rows are gone already; else the values of
            the column ``audit_name`` of the model, where it has one.
        filter: The filter that selects the rows, where there are no keys.
        asked: The number of rows that are meant; by default the number of keys, or with a filter
            the number that changed.
        reason: The reason that ``by`` gave.
        via: The way it was requested: page, admin, api, command.
    """
    target: dict[str, Any] = {}
    if keys:
        target["keys"] = [_plain(key) for key in keys[:KEYS_NAMED]]
    if names is None and (column := getattr(model, "audit_name", "")):
        rows: Any = model._base_manager.using(leasing_settings.DATABASE)
        names = dict(rows.filter(pk__in=keys[:KEYS_NAMED]).values_list("pk", column))
    if names:
        target["names"] = {str(key): names[key] for key in keys[:KEYS_NAMED] if key in names}
    if filter is not None:
        target["filter"] = {name: _plain(value) for name, value in filter.items()}
    name = by if isinstance(by, str) else recorded_name(by)
    entry = AuditEntry(
        by=name[:200],
        verb=verb,
        via=via,
        model=model._meta.label_lower,
        key=str(keys[0])[:MAX_KEY] if len(keys) == 1 else "",
        target=target,
        reason=reason[:500],
    )
    entry.save(using=leasing_settings.DATABASE, force_insert=True)
    act = Act(name, entry, (len(keys) or None) if asked is None else asked)
    try:
        yield act
    except Exception as error:
        _finish(act, f"{type(error).__name__}: {error}")
        raise
    _finish(act)


def record(
    by: User, verb: str, model: type[models.Model], *, changed: int, **what: Any
) -> AuditEntry:
    """Record an action that is done. The other arguments are those of ``recording``.

    Args:
        changed: The number of rows that changed.
        what: ``skipped``, the reasons why others were not changed, and further arguments.
    """
    skipped = what.pop("skipped", {})
    with recording(by, verb, model, **what) as act:
        act.changed, act.skipped = changed, dict(skipped)
    return act.entry


def _finish(act: Act, error: str = "") -> None:
    told = act.changed + sum(act.skipped.values())
    asked = told if act.asked is None else act.asked
    if asked > told and not error:
        act.skipped[OTHER_STATE] = act.skipped.get(OTHER_STATE, 0) + asked - told
    # Once: an outcome that is there stays.
    AuditEntry.objects.using(act.entry._state.db).filter(pk=act.entry.pk, finished_at=None)._note(
        asked=asked,
        changed=act.changed,
        skipped=act.skipped,
        error=error[:500],
        finished_at=DbNow(),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | bool | None) else str(value)
