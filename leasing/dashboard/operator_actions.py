"""Act on rows as an operator, on one or many. The pages and the admin confirm and report; this
module acts.

An action only predicts, in words, what a verb of the queryset will decide. The verb decides by its
own conditions, in the statement that changes the rows.
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

#: The number of rows that one action changes, at most.
MAX_SELECTED = 1_000
#: The number of rows that the confirmation page names, at most.
MAX_NAMED = 20

FormData = Mapping[str, Any]
#: Keys, each with the number of the row's grants when it was selected, where that is known: a row
#: that was granted since is left alone.
Keys = Mapping[Any, int | None]


@dataclass(frozen=True)
class Selection:
    """The rows that an action is about, fixed by the confirmation page."""

    keys: Keys
    #: True if more rows match than one action changes.
    truncated: bool = False

    @classmethod
    def of(cls, rows: QuerySet[Any]) -> Selection:
        """Select up to MAX_SELECTED of ``rows``, in their order."""
        columns = ("pk", "grants") if issubclass(rows.model, Leasable) else ("pk",)
        selected = list(rows.values_list(*columns)[: MAX_SELECTED + 1])
        return cls(
            {key: grants[0] if grants else None for key, *grants in selected[:MAX_SELECTED]},
            truncated=len(selected) > MAX_SELECTED,
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
class Preview:
    """The preview of an action. A reason to skip a row follows a number: "3 running"."""

    #: The keys of the rows that would be changed.
    applicable: list[Any]
    skipped: Counter[str]

    @property
    def unchanged_count(self) -> int:
        return self.skipped.total()

    @property
    def reasons(self) -> str:
        """ "3 running, 1 gone": the most first."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.most_common())


@dataclass(frozen=True)
class ActionOutcome(Preview):
    """The result of an action; ``applicable`` are the rows that it tried to change."""

    selected: int
    changed: int


@dataclass(frozen=True)
class OperatorAction:
    """An action of operators on rows of one model."""

    #: See ``leasing.web.fingerprint``.
    fingerprint_field: ClassVar = "name"

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
    #: Changes rows. Its arguments are the applicable rows, the cleaned form and the user's name; it
    #: returns the number of rows that changed.
    apply: Callable[[Any, FormData, str], int] = field(repr=False)
    #: Returns why the action would not change an ``annotated`` row; "" if it would.
    blocked_by: Callable[[Any, FormData], str] = field(
        repr=False, default=lambda row, form_data: ""
    )
    #: The reason for an applicable row that ``apply`` did not change.
    unchanged: str = "changed meanwhile"
    #: The name in the audit; ``name`` unless set.
    audited: str = ""
    #: Exceptions by which ``apply`` refuses.
    refusals: tuple[type[Exception], ...] = ()
    #: True if the rows are gone afterwards.
    deletes: bool = False
    #: The label of the button on the page of one row, where ``label`` names several.
    of_one: str = ""

    def form_for(self, rows: QuerySet[Any], keys: Keys, sent: Any = None) -> forms.Form:
        """Return the form that confirms the action on some rows. One page may have several forms.

        Args:
            rows: The rows that the operator may see.
            keys: The keys of the selected rows.
            sent: The fields that were sent; None: an empty form.
        """
        return self.form(sent, auto_id=f"{self.name}_%s")

    def annotated(self, rows: Any) -> Any:
        """Return ``rows`` with the annotations that ``blocked_by`` reads."""
        return rows.with_state() if hasattr(rows, "with_state") else rows

    def skip_reason(self, row: Any, form_data: FormData) -> str:
        """Return why the action would not change ``row``; "" if it would."""
        return self.blocked_by(row, form_data)

    def is_applicable(self, row: Any) -> bool:
        """Return True if the action would change ``row``."""
        return not self.skip_reason(row, {})

    def preview(self, rows: QuerySet[Any], keys: Keys, form_data: FormData) -> Preview:
        """Return the preview of this action.

        Args:
            rows: The rows that the operator may see.
            keys: The keys of the selected rows, each with the number of its grants; None in place
                of the number: any.
            form_data: The fields of the form, as far as they are known.
        """
        rows_by_key = {row.pk: row for row in self.annotated(rows).filter(pk__in=list(keys))}
        applicable, skipped = [], Counter[str]()
        for key, grants in keys.items():
            row = rows_by_key.get(key)
            if row is None:
                reason = "gone"
            elif grants is not None and grants != row.grants:
                reason = "granted again meanwhile"
            else:
                reason = self.skip_reason(row, form_data)
            if reason:
                skipped[reason] += 1
            else:
                applicable.append(key)
        return Preview(applicable, skipped)

    def perform(
        self,
        rows: QuerySet[Any],
        keys: Keys,
        form_data: FormData,
        *,
        user: Any,
        via: str,
        by_filter: Any = None,
    ) -> ActionOutcome:
        """Perform the action, and record it in the audit. The other arguments are those of
        ``preview``.

        Args:
            form_data: The fields of the cleaned form.
            user: The operator.
            via: The source of the request: "page", "admin" or "command".
            by_filter: The filter that selected the rows; None if they were selected one by one.
        """
        with audit.recording(
            user,
            self.audited or self.name,
            rows.model,
            keys=list(keys),
            filter=by_filter,
            reason=form_data.get("reason", ""),
            via=via,
        ) as act:
            preview = self.preview(rows, keys, form_data)
            chosen = rows.filter(pk__in=preview.applicable)
            act.changed = self.apply(chosen, form_data, act.by) if preview.applicable else 0
            if act.changed < len(preview.applicable):
                preview.skipped[self.unchanged] += len(preview.applicable) - act.changed
            act.skipped = dict(preview.skipped)
        return ActionOutcome(preview.applicable, preview.skipped, len(keys), act.changed)

    def report(self, model: type[Model], outcome: ActionOutcome) -> str:
        """Return the message about an outcome for several rows."""
        text = f"{self.done}: {outcome.changed:,} of {count_text(model, outcome.selected)}."
        return f"{text} Not changed: {outcome.reasons}." if outcome.skipped else text


def count_text(model: type[Model], count: int) -> str:
    """Return ``count`` with the name of the model's rows: "3 tasks"."""
    names = model._meta
    return plural(count, str(names.verbose_name), str(names.verbose_name_plural))
