"""Act on tasks: on one from its page, on many from a list.

An action on many has two steps: a confirmation page that says what would happen to how many, and
the action, which is sent from there. The first step fixes the selection.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse

from leasing.dashboard.operator_actions import MAX_NAMED, MAX_SELECTED
from leasing.web.access import (
    READ_ONLY,
    check_may_see,
    may,
    page,
    report,
    seen_grants,
    verb,
)
from tasks.dashboard import listing, selection
from tasks.dashboard.exports import VIEW_PAYLOAD
from tasks.dashboard.operator_actions import ACTIONS, TaskAction
from tasks.models import Task
from tasks.views.detail import VIEW, detail


def act(request: HttpRequest, pk: int, name: str) -> HttpResponseBase:
    """Do an action to one task.

    Args:
        request: The operator's request.
        pk: The key of the task.
        name: The name of the action.
    """
    action = _action(name)

    def do(request: HttpRequest) -> HttpResponse:
        task = listing.find(listing.tasks(), pk)
        form = action.form_for(listing.tasks(), {pk: None}, request.POST)
        if not form.is_valid():
            check_may_see(request, VIEW, form)
            return detail(request, pk, {action.name: form}, status=400)
        keys = {task.pk: seen_grants(request)}
        outcome = action.perform(
            listing.tasks(), keys, form.cleaned_data, user=request.user, via="page"
        )
        why = next(iter(outcome.skipped), "changed meanwhile")
        report(request, outcome.changed, f"{action.done}.", f"Nothing changed: {why}.")
        if action.name == "discard" and outcome.changed:
            return redirect("leasing_tasks:list")
        return redirect("leasing_tasks:detail", task.pk)

    return verb(action.permission)(do)(request)


def bulk(request: HttpRequest, name: str) -> HttpResponseBase:
    """Show the confirmation page of an action on many tasks (GET), and do the action (POST)."""
    action = _action(name)

    def ask(request: HttpRequest) -> HttpResponse:
        if not may(request, action.permission):
            raise PermissionDenied(READ_ONLY)
        sees_payload = request.user.has_perm(VIEW_PAYLOAD)
        selected = selection.select(request.GET, sees_payload=sees_payload)
        return _confirmation(request, action, selected, action.form_for(listing.tasks(), {}))

    def do(request: HttpRequest) -> HttpResponse:
        selected = selection.confirmed(request.POST)
        form = action.form_for(listing.tasks(), selected.keys, request.POST)
        if not form.is_valid():
            return _confirmation(request, action, selected, form, status=400)
        outcome = action.perform(
            listing.tasks(),
            selected.keys,
            form.cleaned_data,
            user=request.user,
            via="page",
            by_filter=selected.by_filter,
        )
        message = action.report(Task, outcome)
        report(request, not outcome.skipped, message, message)
        return redirect(_list(selected.by_filter or selected.ticked_in))

    guard = verb if request.method == "POST" else page
    return guard(action.permission)(do if request.method == "POST" else ask)(request)


def _confirmation(
    request: HttpRequest,
    action: TaskAction,
    selected: selection.TaskSelection,
    form: forms.Form,
    status: int = 200,
) -> HttpResponse:
    check_may_see(request, VIEW, form)
    preview = action.preview(listing.tasks(), selected.keys, {})
    named = listing.tasks().filter(pk__in=preview.applicable[:MAX_NAMED]).order_by("pk")
    context = {
        "verb": action,
        "form": form,
        "selection": selected,
        "count": len(preview.applicable),
        "preview": preview,
        "named": named.only("name") if preview.applicable else [],
        "more": max(0, len(preview.applicable) - MAX_NAMED),
        "back": _list(selected.by_filter or selected.ticked_in),
        "most": MAX_SELECTED,
    }
    return render(request, "leasing_tasks/confirm.html", context, status=status)


def _action(name: str) -> TaskAction:
    try:
        return ACTIONS[name]
    except KeyError as error:
        raise Http404("There is no such action.") from error


def _list(list_filter: Mapping[str, str]) -> str:
    query = urlencode(list_filter)
    return reverse("leasing_tasks:list") + (f"?{query}" if query else "")
