"""The operator's page about handlers: their durations and failures."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse

from leasing.web.access import is_live, page
from leasing.web.polling import answer, read_list
from tasks.dashboard.forms import OverviewForm
from tasks.dashboard.overview import SPANS
from tasks.diagnosis.handlers import recent


@page("leasing_tasks.view_task")
def handlers(request: HttpRequest) -> HttpResponse:
    """Handlers: their runs, failures and durations; those that fail most and take longest first."""
    form = OverviewForm(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        span = form.cleaned_data["span"]
        uses = recent(now, SPANS[span], fresh=not is_live(request)).values()
        none = timedelta(0)
        worst = sorted(uses, key=lambda use: (-use.failures, -(use.run_p95 or none), use.name))
        return {"handlers": worst, "span": span}

    return answer(
        request, "leasing_tasks/handlers.html", {"form": form}, read_list(request, form, read)
    )
