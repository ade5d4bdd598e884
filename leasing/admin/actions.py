"""Operator actions in Django's admin: it asks first, and states the consequence and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from leasing.dashboard.operator_actions import (
    MAX_SELECTED,
    NAMED,
    OperatorAction,
    Said,
    Selection,
    keys_of,
)

if TYPE_CHECKING:
    from leasing.admin.base import ReadOnlyAdmin


def ask_or_do(
    action: OperatorAction, site: ReadOnlyAdmin, request: HttpRequest, rows: QuerySet[Any]
) -> HttpResponse | None:
    """Ask the operator to confirm an action, or do it when the confirmation was sent.

    Args:
        action: The action that the operator has chosen.
        site: The admin of its rows.
        request: The operator's request.
        rows: The rows that the operator has selected; a confirmation names its own.
    """
    is_answer = "confirmed" in request.POST
    sent = is_answer and "picked" in request.POST
    picked = _sent(site, request.POST["picked"]) if sent else Selection.of(rows)
    form = action.form_for(site.rows(), picked.keys, request.POST if is_answer else None)
    if form.is_bound and form.is_valid():
        return _do(action, site, request, picked, form.cleaned_data)
    return _ask(action, site, request, picked, form)


def _ask(
    action: OperatorAction,
    site: ReadOnlyAdmin,
    request: HttpRequest,
    picked: Selection,
    form: forms.Form,
) -> HttpResponse:
    view = action.outlook(site.rows(), picked.keys, {})
    context = {
        **site.admin_site.each_context(request),
        "title": action.question,
        "opts": site.model._meta,
        "act": action,
        "form": form,
        "picked": picked,
        "first": next(iter(picked.keys), ""),
        "across": request.POST.get("select_across") == "1" or "across" in request.POST,
        "view": view,
        "named": list(site.rows().filter(pk__in=view.fitting[:NAMED]).order_by("pk")),
        "unnamed": max(0, len(view.fitting) - NAMED),
        "most": MAX_SELECTED,
        "back": _row_url(site, picked) if "from_row" in request.POST else None,
        "media": site.media,
    }
    return TemplateResponse(request, "leasing/admin_confirm.html", context)


def _do(
    action: OperatorAction, site: ReadOnlyAdmin, request: HttpRequest, picked: Selection, said: Said
) -> HttpResponse | None:
    view = action.outlook(site.rows(), picked.keys, said)
    # Before they are changed: some actions delete.
    logged = list(site.rows().filter(pk__in=view.fitting))
    by_filter = request.GET.dict() if "across" in request.POST else None
    user: Any = request.user
    try:
        outcome = action.perform(
            site.rows(), picked.keys, said, user=user, via="admin", by_filter=by_filter
        )
    except action.refusals as error:
        site.message_user(request, f"Not completed: {error}", messages.ERROR)
        return None
    reason = said.get("reason", "")
    if outcome.changed:
        message = f"{action.done}: {reason}" if reason else action.done
        flag = DELETION if action.deletes else CHANGE
        LogEntry.objects.log_actions(user.pk, logged, flag, message)
    level = messages.WARNING if outcome.skipped else messages.SUCCESS
    site.message_user(request, action.report(site.model, outcome), level)
    back = _row_url(site, picked) if "from_row" in request.POST else None
    return HttpResponseRedirect(back) if back else None


def _sent(site: ReadOnlyAdmin, text: str) -> Selection:
    """Return the earlier selection, as the page that asks sends it."""
    try:
        return Selection(keys_of(site.model, text))
    except ValueError as error:
        raise PermissionDenied(
            "The selection is not valid: go back to the list and select again."
        ) from error


def _row_url(site: ReadOnlyAdmin, picked: Selection) -> str | None:
    """The form of the row that was picked, while there is one."""
    meta = site.model._meta
    rows: list[Model] = list(site.rows().filter(pk__in=list(picked.keys)).only("pk")[:2])
    if len(rows) != 1:
        return None
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(rows[0].pk)])
