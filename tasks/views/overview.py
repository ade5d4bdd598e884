"""The first page: is all well, and what needs you."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from leasing.web.access import page
from leasing.web.polling import answer
from tasks.dashboard import overview as overview_page
from tasks.dashboard.forms import OverviewForm

VIEW = "leasing_tasks.view_task"


@page(VIEW)
def overview(request: HttpRequest) -> HttpResponse:
    """Is all well, what needs you, how it went lately, what waits, who works."""
    form = OverviewForm(request.GET)
    span = form.cleaned_data["span"] if form.is_valid() else OverviewForm.DEFAULT
    context = overview_page.read(request, span) | {"form": form}
    status = 400 if form.errors else 200
    return answer(
        request,
        "leasing_tasks/overview.html",
        context,
        status,
        late=lambda: overview_page.read_charts(context["now"], span),
    )
