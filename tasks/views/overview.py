"""The first page: the state of the site, and the issues that need you."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from leasing.web.access import is_live, may, page
from leasing.web.polling import answer, shared_reading
from tasks.dashboard import overview as overview_page
from tasks.dashboard.forms import OverviewForm

VIEW = "leasing_tasks.view_task"


@page(VIEW)
def overview(request: HttpRequest) -> HttpResponse:
    """The state of the site, open issues, charts of the recent past, queues and workers."""
    form = OverviewForm(request.GET)
    span = form.cleaned_data["span"] if form.is_valid() else OverviewForm.DEFAULT
    fresh = not is_live(request)
    reading = shared_reading(request, lambda now: overview_page.read(span, now, fresh=fresh))
    context: dict[str, Any] = {
        "form": form,
        "may_see_workers": request.user.has_perm("leasing_tasks.view_worker"),
        "may_see_queues": request.user.has_perm("leasing_tasks.view_queue"),
        "may_control": may(request, "leasing_tasks.control_generator"),
    }
    return answer(request, "leasing_tasks/overview.html", context, reading)
