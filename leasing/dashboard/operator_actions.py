"""Act on rows as an operator, on one or many: the pages and the admin ask and report, this module
acts.

An action only says beforehand, and in words, what a verb of the queryset will decide; that decides
by its own conditions, in the statement that changes the rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django import forms
from django.db.models import Model, QuerySet

from leasing import audit
from leasing.humanize import plural
from leasing.models import Leasable
from leasing.validation.values import key_of

#: Rows that an action takes at most.
MAX_SELECTED = 1_000
#: Rows that the page that asks names at most.
NAMED = 20

Said = Mapping[str, Any]
#: Keys, each with how often the row had been granted when it was picked, where that is known: what
#: was granted since is in other hands.
Keys = Mapping[Any, int | None]


@dataclass(frozen=True)
class Selection:
    """The rows that an action is about, fixed by the page that asks."""

    keys: Keys
    #: True if there are more rows than an action takes.
    more: bool = False

    @classmethod
    def of(cls, rows: QuerySet[Any]) -> Selection:
        """Select up to MAX_SELECTED of ``rows``, in their order."""
        columns = ("pk", "grants") if issubclass(rows.model, Leasable) else ("pk",)
        found = list(rows.values_list(*columns)[: MAX_SELECTED + 1])
        return cls(
            {key: grants[0] if grants else None for key, *grants in found[:MAX_SELECTED]},
            more=len(found) > MAX_SELECTED,
        )

    @property
    def text(self) -> str:
        """For a hidden field: one, since the number of fields is limited."""
        return json.dumps([[str(key), grants] for key, grants in self.keys.items()])


def keys_of(model: type[Model], text: str) -> dict[Any, int | None]:
    """Return the keys in the text of a ``Selection``. Raises ValueError."""
    try:
        pairs = json.loads(text)
        if not isinstance(pairs, list):
            raise ValueError("not a list of pairs")
        return {
            key_of(model, str(key)): int(grants) if grants is not None else None
            for key, grants in pairs[:MAX_SELECTED]
        }
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError("not a list of pairs") from error


@dataclass(frozen=True)
class Outlook:
    """The preview of an action. A reason to skip a row follows a number: "3 running"."""

    fitting: list[Any]
    skipped: Counter[str]

    @property
    def staying(self) -> int:
        return self.skipped.total()

    @property
    def reasons(self) -> str:
        """ "3 running, 1 gone": the most first."""
        return ", ".join(f"{count:,} {why}" for why, count in self.skipped.most_common())


@dataclass(frozen=True)
class Outcome(Outlook):
    """The result of an action; ``fitting`` has the rows that it tried to change."""

    asked: int
    changed: int


@dataclass(frozen=True)
class OperatorAction:
    """Something that can be done to rows of one model."""

    #: See ``leasing.web.fingerprint``.
    told_by: ClassVar = "name"

    name: str
    #: The label on buttons.
    label: str
    #: The beginning of the message that reports success.
    done: str
    question: str
    #: The consequence, in a sentence.
    consequence: str
    permission: str
    form: type[forms.Form] = field(repr=False)
    #: Gets the rows that fit, the cleaned form and the user's name; returns how many changed.
    apply: Callable[[Any, Said, str], int] = field(repr=False)
    #: Why it would change nothing of a row that is ``judged``, "" when it would.
    idle: Callable[[Any, Said], str] = field(repr=False, default=lambda row, said: "")
    #: Why ``apply`` left a row as it was that was to change.
    unchanged: str = "changed meanwhile"
    #: The name in the audit; ``name`` unless set.
    audited: str = ""
    #: Exceptions by which ``apply`` refuses.
    refusals: tuple[type[Exception], ...] = ()
    #: True if the rows are gone afterwards.
    deletes: bool = False
    #: The label of the button on the page of one row, where ``label`` is about several.
    of_one: str = ""

    def form_for(self, rows: QuerySet[Any], keys: Keys, sent: Any = None) -> forms.Form:
        """Return the form that asks about some rows. One page may have several forms.

        Args:
            rows: The rows that the operator may see.
            keys: The keys of those that were selected.
            sent: The fields that were sent; None: an empty form.
        """
        return self.form(sent, auto_id=f"{self.name}_%s")

    def judged(self, rows: Any) -> Any:
        """Return ``rows`` with what ``idle`` reads of them."""
        return rows.with_state() if hasattr(rows, "with_state") else rows

    def why_not(self, row: Any, said: Said) -> str:
        """Return why it would change nothing of ``row``, "" when it would."""
        return self.idle(row, said)

    def fits(self, row: Any) -> bool:
        """Return True if it would change something of ``row``."""
        return not self.why_not(row, {})

    def outlook(self, rows: QuerySet[Any], keys: Keys, said: Said) -> Outlook:
        """Return the preview of this action.

        Args:
            rows: The rows that the operator may see.
            keys: The keys of those that were selected, each with the number of its grants; None in
                place of the number: any.
            said: The fields of the form, as far as they are known.
        """
        found = {row.pk: row for row in self.judged(rows).filter(pk__in=list(keys))}
        fitting, skipped = [], Counter[str]()
        for key, grants in keys.items():
            row = found.get(key)
            if row is None:
                why = "gone"
            elif grants is not None and grants != row.grants:
                why = "granted again meanwhile"
            else:
                why = self.why_not(row, said)
            if why:
                skipped[why] += 1
            else:
                fitting.append(key)
        return Outlook(fitting, skipped)

    def perform(
        self,
        rows: QuerySet[Any],
        keys: Keys,
        said: Said,
        *,
        user: Any,
        via: str,
        by_filter: Any = None,
    ) -> Outcome:
        """Do it, and record it in the audit. The other arguments are those of ``outlook``.

        Args:
            said: The fields of the cleaned form.
            user: The operator.
            via: The way by which it was sent: "page", "admin" or "command".
            by_filter: The filter that selected the rows; None if they were selected one by one.
        """
        with audit.recording(
            user,
            self.audited or self.name,
            rows.model,
            keys=list(keys),
            filter=by_filter,
            reason=said.get("reason", ""),
            via=via,
        ) as act:
            view = self.outlook(rows, keys, said)
            chosen = rows.filter(pk__in=view.fitting)
            act.changed = self.apply(chosen, said, act.by) if view.fitting else 0
            if act.changed < len(view.fitting):
                view.skipped[self.unchanged] += len(view.fitting) - act.changed
            act.skipped = dict(view.skipped)
        return Outcome(view.fitting, view.skipped, len(keys), act.changed)

    def report(self, model: type[Model], outcome: Outcome) -> str:
        """Return what is said of its ``outcome`` for several rows."""
        text = f"{self.done}: {outcome.changed:,} of {counted(model, outcome.asked)}."
        return f"{text} Not changed: {outcome.reasons}." if outcome.skipped else text


def counted(model: type[Model], count: int) -> str:
    """Return ``count`` with what the rows are called: "3 tasks"."""
    names = model._meta
    return plural(count, str(names.verbose_name), str(names.verbose_name_plural))
