"""What an operator does to tasks: to one from its page, to many from a list.

To many in two steps: a page that states what would happen to how many, and the deed, which is
sent from there. What was picked is fixed by the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from leasing.humanize import plural
from leasing.web.access import READ_ONLY, may, page, verb
from tasks.dashboard import listing, selection
from tasks.dashboard.operator_actions import VERBS, Outcome, Verb, outlook, perform
from tasks.views.detail import detail

#: How many of the tasks a page that asks names.
NAMED = 20


def act(request: HttpRequest, pk: int, name: str) -> HttpResponseBase:
    """Do something to one task."""
    chosen = _verb(name)

    def do(request: HttpRequest) -> HttpResponse:
        task = get_object_or_404(listing.tasks(), pk=pk)
        form = chosen.blank(request.POST)
        if not form.is_valid():
            return detail(request, pk, {chosen.name: form}, status=400)
        seen = request.POST.get("seen", "")
        grants = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 10 else None
        outcome = perform(request, chosen, {task.pk: grants}, form.cleaned_data)
        _tell_one(request, chosen, outcome)
        if chosen.name == "discard" and outcome.changed:
            return redirect("leasing_tasks:list")
        return redirect("leasing_tasks:detail", task.pk)

    return verb(chosen.permission)(do)(request)


def bulk(request: HttpRequest, name: str) -> HttpResponseBase:
    """Ask whether to do something to many tasks (GET), and do it (POST)."""
    chosen = _verb(name)

    def ask(request: HttpRequest) -> HttpResponse:
        if not may(request, chosen.permission):
            raise PermissionDenied(READ_ONLY)
        return _ask(request, chosen, selection.pick(request.GET), chosen.blank())

    def do(request: HttpRequest) -> HttpResponse:
        picked = selection.picked_before(request.POST)
        form = chosen.blank(request.POST)
        if not form.is_valid():
            return _ask(request, chosen, picked, form, status=400)
        outcome = perform(request, chosen, picked.tasks, form.cleaned_data, picked.wanted)
        _tell_many(request, chosen, outcome)
        return redirect(_list(picked.wanted or picked.back))

    guard = verb if request.method == "POST" else page
    return guard(chosen.permission)(do if request.method == "POST" else ask)(request)


def _ask(
    request: HttpRequest,
    chosen: Verb,
    picked: selection.Picked,
    form: forms.Form,
    status: int = 200,
) -> HttpResponse:
    view = outlook(chosen, picked.tasks, {})
    named = listing.tasks().filter(pk__in=view.fitting[:NAMED]).order_by("pk")
    context = {
        "verb": chosen,
        "form": form,
        "picked": picked,
        "count": len(view.fitting),
        "skipped": _reasons(view.skipped),
        "staying": sum(view.skipped.values()),
        "named": named.only("name") if view.fitting else [],
        "more": max(0, len(view.fitting) - NAMED),
        "back": _list(picked.wanted or picked.back),
        "most": selection.MOST,
    }
    return render(request, "leasing_tasks/confirm.html", context, status=status)


def _verb(name: str) -> Verb:
    try:
        return VERBS[name]
    except KeyError as error:
        raise Http404("There is no such action.") from error


def _list(asked: Mapping[str, str]) -> str:
    query = urlencode(asked)
    return reverse("leasing_tasks:list") + (f"?{query}" if query else "")


def _tell_one(request: HttpRequest, chosen: Verb, outcome: Outcome) -> None:
    if outcome.changed:
        messages.success(request, f"{chosen.done}.", fail_silently=True)
        return
    why = next(iter(outcome.skipped), "changed meanwhile")
    messages.warning(request, f"Nothing changed: {why}.", fail_silently=True)


def _tell_many(request: HttpRequest, chosen: Verb, outcome: Outcome) -> None:
    text = f"{chosen.done}: {outcome.changed:,} of {plural(outcome.asked, 'task')}."
    if outcome.skipped:
        text += f" Not changed: {_reasons(outcome.skipped)}."
    level = messages.WARNING if outcome.skipped else messages.SUCCESS
    messages.add_message(request, level, text, fail_silently=True)


def _reasons(skipped: Mapping[str, int]) -> str:
    """ "3 running, 1 gone": the most first."""
    most_first = sorted(skipped.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {why}" for why, count in most_first)
