"""Act on tasks: on one from its page, on many from a list.

To many in two steps: a page that states what would happen to how many, and the deed, which is
sent from there. What was picked is fixed by the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse

from leasing.dashboard.operator_actions import MAX_SELECTED, NAMED
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
    chosen = _action(name)

    def do(request: HttpRequest) -> HttpResponse:
        task = listing.find(listing.tasks(), pk)
        form = chosen.form_for(listing.tasks(), {pk: None}, request.POST)
        if not form.is_valid():
            check_may_see(request, VIEW, form)
            return detail(request, pk, {chosen.name: form}, status=400)
        keys = {task.pk: seen_grants(request)}
        outcome = chosen.perform(
            listing.tasks(), keys, form.cleaned_data, user=request.user, via="page"
        )
        why = next(iter(outcome.skipped), "changed meanwhile")
        report(request, outcome.changed, f"{chosen.done}.", f"Nothing changed: {why}.")
        if chosen.name == "discard" and outcome.changed:
            return redirect("leasing_tasks:list")
        return redirect("leasing_tasks:detail", task.pk)

    return verb(chosen.permission)(do)(request)


def bulk(request: HttpRequest, name: str) -> HttpResponseBase:
    """Ask whether to do something to many tasks (GET), and do it (POST)."""
    chosen = _action(name)

    def ask(request: HttpRequest) -> HttpResponse:
        if not may(request, chosen.permission):
            raise PermissionDenied(READ_ONLY)
        picked = selection.pick(request.GET, sees_payload=request.user.has_perm(VIEW_PAYLOAD))
        return _ask(request, chosen, picked, chosen.form_for(listing.tasks(), {}))

    def do(request: HttpRequest) -> HttpResponse:
        picked = selection.picked_before(request.POST)
        form = chosen.form_for(listing.tasks(), picked.keys, request.POST)
        if not form.is_valid():
            return _ask(request, chosen, picked, form, status=400)
        outcome = chosen.perform(
            listing.tasks(),
            picked.keys,
            form.cleaned_data,
            user=request.user,
            via="page",
            by_filter=picked.wanted,
        )
        said = chosen.report(Task, outcome)
        report(request, not outcome.skipped, said, said)
        return redirect(_list(picked.wanted or picked.back))

    guard = verb if request.method == "POST" else page
    return guard(chosen.permission)(do if request.method == "POST" else ask)(request)


def _ask(
    request: HttpRequest,
    chosen: TaskAction,
    picked: selection.Picked,
    form: forms.Form,
    status: int = 200,
) -> HttpResponse:
    check_may_see(request, VIEW, form)
    view = chosen.outlook(listing.tasks(), picked.keys, {})
    named = listing.tasks().filter(pk__in=view.fitting[:NAMED]).order_by("pk")
    context = {
        "verb": chosen,
        "form": form,
        "picked": picked,
        "count": len(view.fitting),
        "view": view,
        "named": named.only("name") if view.fitting else [],
        "more": max(0, len(view.fitting) - NAMED),
        "back": _list(picked.wanted or picked.back),
        "most": MAX_SELECTED,
    }
    return render(request, "leasing_tasks/confirm.html", context, status=status)


def _action(name: str) -> TaskAction:
    try:
        return ACTIONS[name]
    except KeyError as error:
        raise Http404("There is no such action.") from error


def _list(asked: Mapping[str, str]) -> str:
    query = urlencode(asked)
    return reverse("leasing_tasks:list") + (f"?{query}" if query else "")
