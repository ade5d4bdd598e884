"""The runbook, for those who are on call: a page for each alert, with the first action on top."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import mark_safe

from leasing.web.access import page
from tasks.monitoring import runbook_page

VIEW = "leasing_tasks.view_task"


@page(VIEW)
def runbook(request: HttpRequest, name: str = "index") -> HttpResponse:
    """A page of the runbook; ``index`` lists all."""
    try:
        fragment = runbook_page(name, "html")
    except LookupError as error:
        raise Http404("The runbook has no such page.") from error
    # It comes with the package.
    return render(request, "leasing_tasks/runbook.html", {"fragment": mark_safe(fragment)})
