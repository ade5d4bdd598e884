"""The operator's pages about tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from leasing.access import page, user_name, verb
from leasing.conf import leasing_settings
from leasing.forms import RevokeForm
from leasing.functions import database_now
from leasing.paging import InvalidCursor, Page, capped_count, page_of
from tasks.diagnosis import diagnose, look_around
from tasks.forms import PageFilter, RetryForm, TaskFilter
from tasks.models import Task, TaskAttempt, TaskStatus
from tasks.signs import SEVERITY_SIGNS, task_sign

VIEW, RETRY = "tasks.view_task", "tasks.retry_task"

#: What a list never loads.
LARGE = ("task_data", "task_output", "last_error", "progress", "checkpoint")
#: Facts of a diagnosis that the page tells by itself, with times that tick.
TOLD = {
    "Held by",
    "Since",
    "Last heartbeat",
    "Until",
    "Attempts",
    "Last error",
    "Ended",
    "Not before",
    "Due since",
}
#: How much of an error a list shows.
ERROR_SHOWN = 200


@page(VIEW)
def task_list(request: HttpRequest) -> HttpResponse:
    """Tasks by state, newest first."""
    form = TaskFilter(request.GET)
    shown: Page[Task] = Page([])
    tabs: list[dict[str, Any]] = []
    if form.is_valid():
        asked = _search(_tasks(), form.cleaned_data["q"])
        state = form.cleaned_data["state"]
        shown = _page(form, _in_state(asked, state).defer(*LARGE))
        tabs = _tabs(asked, form)
    context = {"form": form, "tabs": tabs, "page": shown, "now": _now()}
    return _answer(request, "tasks/list.html", context)


@page(VIEW)
def stuck(request: HttpRequest) -> HttpResponse:
    """Tasks whose holder let a deadline pass: who, since when, what happens next."""
    form = PageFilter(request.GET)
    form.is_valid()
    rows = _page(form, _tasks().lapsed().defer(*LARGE))
    around = look_around()
    diagnosed = [(task, diagnose(task, around.now, around)) for task in rows.rows]
    context = {"form": form, "page": rows, "diagnosed": diagnosed, "now": around.now}
    return _answer(request, "tasks/stuck.html", context)


@page(VIEW)
def task_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One task: its diagnosis, its attempts, what it was given and what it gave back."""
    around = look_around()
    now = around.now
    task = get_object_or_404(_tasks(), pk=pk)
    form = PageFilter(request.GET)
    form.is_valid()
    attempts = _page(form, TaskAttempt.objects.using(task._state.db).filter(task=task))
    diagnosis = diagnose(task, now, around)
    context = {
        "form": form,
        "task": task,
        "now": now,
        "sign": task_sign(task, now),
        "diagnosis": diagnosis,
        "severity": SEVERITY_SIGNS[diagnosis.severity],
        "facts": [fact for fact in diagnosis.facts if fact[0] not in TOLD],
        "attempts": attempts,
        "revoke_form": RevokeForm(),
        "may_retry": request.user.has_perm(RETRY),
        "may_revoke": request.user.has_perm("leasing.revoke_lease"),
        "may_see_leases": request.user.has_perm("leasing.view_lease"),
    }
    return _answer(request, "tasks/detail.html", context)


@verb(RETRY)
def retry(request: HttpRequest, pk: int) -> HttpResponse:
    """Set a failed or cancelled task ready again."""
    task = get_object_or_404(_tasks().only("pk"), pk=pk)
    if RetryForm(request.POST).is_valid() and _tasks().filter(pk=pk).retry(by=user_name(request)):
        messages.success(request, "It is ready again.", fail_silently=True)
    else:
        text = "Nothing changed: only a task that failed or was cancelled can be tried again."
        messages.warning(request, text, fail_silently=True)
    return redirect("tasks:detail", task.pk)


def _answer(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    return render(request, template, context, status=400 if context["form"].errors else 200)


def _page(form: Any, rows: Any) -> Page[Any]:
    """The page of ``rows`` that ``form`` asks for; none when it asks for nonsense."""
    try:
        return page_of(rows, form.cleaned_data.get("at"))
    except InvalidCursor:
        form.add_error("at", form.fields["at"].error_messages["invalid"])
        return Page([])


def _tabs(asked: Any, form: TaskFilter) -> list[dict[str, Any]]:
    return [
        _tab(form, state, label, capped_count(_in_state(asked, state)))
        for state, label in TaskFilter.STATES
    ]


def _tab(form: Any, state: str, label: str, count: object) -> dict[str, Any]:
    is_default = state == form.STATES[0][0]
    return {
        "state": None if is_default else state,
        "label": label,
        "count": count,
        "is_current": form.cleaned_data["state"] == state,
    }


def _tasks() -> Any:
    return Task.objects.home()


def _search(rows: Any, text: str) -> Any:
    """The rows with that id ("17", "#17"), or whose name is or begins with ``text``."""
    number = text.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 20:
        return rows.filter(pk=int(number))
    return rows.filter(name__startswith=text) if text else rows


def _in_state(rows: Any, state: str) -> Any:
    if state == TaskStatus.FAILED:
        rows = rows.annotate(error_start=Left("last_error", ERROR_SHOWN))
    return rows if state == "all" else getattr(rows, state)()


def _now() -> datetime:
    return database_now(leasing_settings.DATABASE)
