"""What the admin does to rows: it asks first, states consequence and counts, and then calls the
verb that the pages call too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from leasing import audit
from leasing.models import Leasable
from leasing.validation.keys import key_of
from leasing.web.access import READ_ONLY, is_read_only

if TYPE_CHECKING:
    from leasing.admin.base import ReadOnlyAdmin

#: How many rows one act takes at most.
MOST = 1_000
#: How many of them the page that asks names.
NAMED = 20

Said = Mapping[str, Any]
#: Keys, each with how often the row had been granted when it was picked, where it can be: what
#: was granted since is in other hands.
Keys = Mapping[Any, int | None]


@dataclass(frozen=True)
class Picked:
    """The rows that an act is about, fixed by the page that asked."""

    keys: Keys
    #: Whether the list has more than an act takes.
    more: bool = False

    @property
    def text(self) -> str:
        """For a hidden field: one, since the number of fields is limited."""
        return json.dumps([[str(key), grants] for key, grants in self.keys.items()])


@dataclass(frozen=True)
class Outlook:
    """What an act would do. A reason to skip a row follows a number: "3 running"."""

    fitting: list[Any]
    skipped: Mapping[str, int]

    @property
    def reasons(self) -> str:
        """ "3 running, 1 gone": the most first."""
        most_first = sorted(self.skipped.items(), key=lambda item: -item[1])
        return ", ".join(f"{count:,} {why}" for why, count in most_first)


@dataclass(frozen=True)
class Act:
    """Something that can be done to rows of one model."""

    #: Or a template that shows the act would call it.
    do_not_call_in_templates: ClassVar = True

    name: str
    #: What it is called in the list of actions and on buttons.
    label: str
    #: What the message afterwards begins with.
    done: str
    question: str
    consequence: str
    permission: str
    form: type[forms.Form] = field(repr=False)
    #: Gets the rows that fit, the cleaned form and the user's name; returns how many changed.
    apply: Callable[[Any, Said, str], int] = field(repr=False)
    #: Why it would change nothing of a row, "" when it would.
    idle: Callable[[Any], str] = field(repr=False, default=lambda row: "")
    #: What the audit calls it; ``name`` unless it says otherwise.
    audited: str = ""
    #: What ``apply`` raises to refuse.
    refusals: tuple[type[Exception], ...] = ()
    #: What the history of Django's own takes it for.
    flag: int = CHANGE
    #: What the button on the page of one row is called, where ``label`` is about several.
    of_one: str = ""

    @property
    def deed(self) -> str:
        """What the button is called that does it, and asks no more."""
        return self.label.removesuffix("…")

    def __call__(
        self, site: ReadOnlyAdmin, request: HttpRequest, rows: QuerySet[Any]
    ) -> HttpResponse | None:
        """Ask, or do it when the form that asks was sent."""
        if is_read_only():
            raise PermissionDenied(READ_ONLY)
        is_answer = "confirmed" in request.POST
        sent = is_answer and "picked" in request.POST
        picked = _sent(site, request.POST["picked"]) if sent else _pick(rows)
        form = self.form_for(site, picked, request.POST if is_answer else None)
        if form.is_bound and form.is_valid():
            return self._do(site, request, picked, form.cleaned_data)
        return self._ask(site, request, picked, form)

    def form_for(self, site: ReadOnlyAdmin, picked: Picked, sent: Any) -> forms.Form:
        """Its form, to be filled in or as it was ``sent``."""
        return self.form(sent)

    def fits(self, site: ReadOnlyAdmin, row: Any) -> bool:
        """Whether it would change something of ``row``."""
        return not self.idle(row)

    def outlook(self, site: ReadOnlyAdmin, keys: Keys, said: Said) -> Outlook:
        """What it would do to the rows with these ``keys``."""
        found = {row.pk: row for row in _with_state(site.rows()).filter(pk__in=list(keys))}
        fitting, skipped = [], Counter[str]()
        for key, grants in keys.items():
            row = found.get(key)
            if row is None:
                why = "gone"
            elif grants is not None and grants != row.grants:
                why = "granted again meanwhile"
            else:
                why = self.idle(row)
            if why:
                skipped[why] += 1
            else:
                fitting.append(key)
        return Outlook(fitting, skipped)

    def perform(
        self, site: ReadOnlyAdmin, request: HttpRequest, keys: Keys, said: Said, by_filter: Any
    ) -> tuple[int, Mapping[str, int]]:
        """Do it in the name of the user of ``request``, and note it: how many changed, and why
        the others did not."""
        user: Any = request.user
        with audit.recording(
            user,
            self.audited or self.name,
            site.model,
            keys=list(keys),
            filter=by_filter,
            reason=said.get("reason", ""),
            via="admin",
        ) as act:
            view = self.outlook(site, keys, said)
            skipped = Counter(view.skipped)
            rows = site.rows().filter(pk__in=view.fitting)
            act.changed = self.apply(rows, said, act.by) if view.fitting else 0
            if act.changed < len(view.fitting):
                skipped["changed meanwhile"] += len(view.fitting) - act.changed
            act.skipped = dict(skipped)
        return act.changed, skipped

    def _ask(
        self, site: ReadOnlyAdmin, request: HttpRequest, picked: Picked, form: forms.Form
    ) -> HttpResponse:
        view = self.outlook(site, picked.keys, {})
        context = {
            **site.admin_site.each_context(request),
            "title": self.question,
            "opts": site.model._meta,
            "act": self,
            "form": form,
            "picked": picked,
            "first": next(iter(picked.keys), ""),
            "across": request.POST.get("select_across") == "1" or "across" in request.POST,
            "view": view,
            "staying": sum(view.skipped.values()),
            "named": list(site.rows().filter(pk__in=view.fitting[:NAMED]).order_by("pk")),
            "unnamed": max(0, len(view.fitting) - NAMED),
            "most": MOST,
            "back": _row_url(site, picked) if "from_row" in request.POST else None,
            "media": site.media,
        }
        return TemplateResponse(request, "leasing/admin_confirm.html", context)

    def _do(
        self, site: ReadOnlyAdmin, request: HttpRequest, picked: Picked, said: Said
    ) -> HttpResponse | None:
        view = self.outlook(site, picked.keys, said)
        # Before they are changed: some acts delete.
        logged = list(site.rows().filter(pk__in=view.fitting))
        by_filter = request.GET.dict() if "across" in request.POST else None
        try:
            changed, skipped = self.perform(site, request, picked.keys, said, by_filter)
        except self.refusals as error:
            site.message_user(request, f"Not completed: {error}", messages.ERROR)
            return None
        reason = said.get("reason", "")
        message = f"{self.done}: {reason}" if reason else self.done
        user_key: Any = request.user.pk
        if changed:
            LogEntry.objects.log_actions(user_key, logged, self.flag, message)
        text = f"{self.done}: {changed:,} of {site.counted(len(picked.keys))}."
        if skipped:
            text += f" Not changed: {Outlook([], skipped).reasons}."
        site.message_user(request, text, messages.WARNING if skipped else messages.SUCCESS)
        back = _row_url(site, picked) if "from_row" in request.POST else None
        return HttpResponseRedirect(back) if back else None


def _pick(rows: QuerySet[Any]) -> Picked:
    """Up to MOST of the chosen ``rows``, in the order of the list."""
    columns = ("pk", "grants") if issubclass(rows.model, Leasable) else ("pk",)
    found = list(rows.values_list(*columns)[: MOST + 1])
    keys = {key: grants[0] if grants else None for key, *grants in found[:MOST]}
    return Picked(keys, more=len(found) > MOST)


def _sent(site: ReadOnlyAdmin, text: str) -> Picked:
    """What was picked before, as the page that asks sends it."""
    try:
        pairs = json.loads(text)
        if not isinstance(pairs, list):
            raise ValueError("not a list of pairs")
        keys = {
            key_of(site.model, str(key)): int(grants) if grants is not None else None
            for key, grants in pairs[:MOST]
        }
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PermissionDenied(
            "The selection is not valid: go back to the list and select again."
        ) from error
    return Picked(keys)


def _with_state(rows: Any) -> Any:
    return rows.with_state() if hasattr(rows, "with_state") else rows


def _row_url(site: ReadOnlyAdmin, picked: Picked) -> str | None:
    """The form of the row that was picked, while there is one."""
    meta = site.model._meta
    rows: list[Model] = list(site.rows().filter(pk__in=list(picked.keys)).only("pk")[:2])
    if len(rows) != 1:
        return None
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(rows[0].pk)])
