"""Operator actions in Django's admin: a confirmation page states the consequence and the counts."""

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
    MAX_NAMED,
    MAX_SELECTED,
    FormData,
    OperatorAction,
    Selection,
    keys_of,
)

if TYPE_CHECKING:
    from leasing.admin.base import ReadOnlyAdmin


def confirm_or_perform(
    action: OperatorAction, site: ReadOnlyAdmin, request: HttpRequest, rows: QuerySet[Any]
) -> HttpResponse | None:
    """Ask the operator to confirm an action, or perform it once the confirmation was sent.

    Args:
        action: The action that the operator has chosen.
        site: The admin of its rows.
        request: The operator's request.
        rows: The rows that the operator has selected; a confirmation names its own.
    """
    is_confirmed = "confirmed" in request.POST
    is_fixed = is_confirmed and "selection" in request.POST
    selection = _sent_selection(site, request.POST["selection"]) if is_fixed else Selection.of(rows)
    form = action.form_for(site.rows(), selection.keys, request.POST if is_confirmed else None)
    if form.is_bound and form.is_valid():
        return _perform(action, site, request, selection, form.cleaned_data)
    return _confirmation(action, site, request, selection, form)


def _confirmation(
    action: OperatorAction,
    site: ReadOnlyAdmin,
    request: HttpRequest,
    selection: Selection,
    form: forms.Form,
) -> HttpResponse:
    preview = action.preview(site.rows(), selection.keys, {})
    context = {
        **site.admin_site.each_context(request),
        "title": action.question,
        "opts": site.model._meta,
        "act": action,
        "form": form,
        "selection": selection,
        "first": next(iter(selection.keys), ""),
        "across": request.POST.get("select_across") == "1" or "across" in request.POST,
        "preview": preview,
        "named": list(site.rows().filter(pk__in=preview.applicable[:MAX_NAMED]).order_by("pk")),
        "unnamed": max(0, len(preview.applicable) - MAX_NAMED),
        "most": MAX_SELECTED,
        "back": _row_url(site, selection) if "from_row" in request.POST else None,
        "media": site.media,
    }
    return TemplateResponse(request, "leasing/admin_confirm.html", context)


def _perform(
    action: OperatorAction,
    site: ReadOnlyAdmin,
    request: HttpRequest,
    selection: Selection,
    form_data: FormData,
) -> HttpResponse | None:
    preview = action.preview(site.rows(), selection.keys, form_data)
    # Read before the action: some actions delete.
    logged = list(site.rows().filter(pk__in=preview.applicable))
    by_filter = request.GET.dict() if "across" in request.POST else None
    user: Any = request.user
    try:
        outcome = action.perform(
            site.rows(), selection.keys, form_data, user=user, via="admin", by_filter=by_filter
        )
    except action.refusals as error:
        site.message_user(request, f"Not completed: {error}", messages.ERROR)
        return None
    reason = form_data.get("reason", "")
    if outcome.changed:
        message = f"{action.done}: {reason}" if reason else action.done
        flag = DELETION if action.deletes else CHANGE
        LogEntry.objects.log_actions(user.pk, logged, flag, message)
    level = messages.WARNING if outcome.skipped else messages.SUCCESS
    site.message_user(request, action.report(site.model, outcome), level)
    back = _row_url(site, selection) if "from_row" in request.POST else None
    return HttpResponseRedirect(back) if back else None


def _sent_selection(site: ReadOnlyAdmin, text: str) -> Selection:
    """Return the earlier selection, as the confirmation page sends it."""
    try:
        return Selection(keys_of(site.model, text))
    except ValueError as error:
        raise PermissionDenied(
            "The selection is not valid: go back to the list and select again."
        ) from error


def _row_url(site: ReadOnlyAdmin, selection: Selection) -> str | None:
    """Return the URL of the form of the selected row, while there is one."""
    meta = site.model._meta
    rows: list[Model] = list(site.rows().filter(pk__in=list(selection.keys)).only("pk")[:2])
    if len(rows) != 1:
        return None
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(rows[0].pk)])
