"""The operator's pages about workers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse

from leasing.humanize import span
from leasing.web.access import page
from leasing.web.counts import capped_count
from leasing.web.paging import Page, page_of
from leasing.web.polling import answer, read_list, shared_reading
from tasks.dashboard import worker_rows
from tasks.dashboard.badges import badge_of_worker
from tasks.dashboard.forms import WorkerFilter
from tasks.models import Worker, WorkerState

VIEW = "leasing_tasks.view_worker"

#: The refusal to show a worker that has no row.
GONE = (
    "There is no such worker. Its row was deleted a day after its last heartbeat, or when another "
    "process took its place; or it never existed."
)

#: The meaning of a state, and the next step.
NEXT = {
    WorkerState.LIVE: "It claims due tasks of its queues as slots become free.",
    WorkerState.LATE: "It sends a heartbeat soon, or is reported as gone after "
    f"{span(Worker.GONE_AFTER)}. It keeps its tasks until their leases expire.",
    WorkerState.GONE: "Other workers take over its tasks when their leases expire. If it comes "
    "back, its late results are refused.",
    WorkerState.STOPPED: "Nothing. It gave back the tasks that it could not finish.",
}


#: NEXT of a worker that has a parent.
NEXT_IN_FLEET = {
    WorkerState.LATE: "It sends a heartbeat soon. If it dies, its parent replaces it at once and "
    "hands back its tasks.",
    WorkerState.GONE: "If its parent has died too, other workers take over its tasks when their "
    "leases expire.",
}


def _next(worker: Worker, state: WorkerState) -> str:
    if worker.death:
        return "Nothing. Its parent has handed back its tasks."
    next_ = NEXT_IN_FLEET.get(state, NEXT[state]) if worker.fleet else NEXT[state]
    if state in (WorkerState.LATE, WorkerState.GONE):
        next_ += f" {worker_rows.if_frozen([worker])}"
    return next_


@page(VIEW)
def workers(request: HttpRequest) -> HttpResponse:
    """Workers, and the tasks that each of them holds."""
    form = WorkerFilter(request.GET)

    def read(now: datetime) -> dict[str, Any]:
        state = form.cleaned_data["state"]
        shown = page_of(_in_state(state), form.cleaned_data["at"])
        return {
            "tabs": [_tab(value, label, value == state) for value, label in WorkerFilter.STATES],
            "moved": shown.moved,
            "page_links": Page((), shown.newer, shown.older, shown.moved),
            "worker_rows": worker_rows.by_fleet(worker_rows.with_tasks(shown.rows)),
            "remote_rows": worker_rows.remote_rows() if state == "present" else [],
        }

    context = {
        "form": form,
        "seen_every": Worker.SEEN_EVERY,
        "late_after": Worker.LATE_AFTER,
        "gone_after": Worker.GONE_AFTER,
    }
    reading = read_list(request, form, read)
    return answer(request, "leasing_tasks/workers.html", context, reading)


@page(VIEW)
def worker_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One worker: its state, its current tasks, its recent work."""
    rows = Worker.objects.home().with_state()

    def read(now: datetime) -> dict[str, Any]:
        worker = rows.filter(pk=pk).first()
        if worker is None:
            raise Http404(GONE)
        (worker_row,) = worker_rows.with_tasks([worker])
        state = WorkerState(worker_row.state)
        return {
            "worker_row": worker_row,
            "state": state.value,
            "badge": badge_of_worker(worker),
            "next": _next(worker, state),
            "siblings": worker_rows.siblings_of(worker),
            "ends": worker.former_ends,
            "past": worker_rows.past_of(worker),
            "looked_through": worker_rows.LOOKED_THROUGH,
        }

    context = {"may_see_tasks": request.user.has_perm("leasing_tasks.view_task")}
    return answer(request, "leasing_tasks/worker.html", context, shared_reading(request, read))


def _in_state(state: str) -> Any:
    rows: Any = Worker.objects.home().defer("handlers")
    if state == "present":
        return rows.present().with_state()
    return rows.with_state().filter(state=state)


def _tab(state: str, label: str, is_current: bool) -> dict[str, Any]:
    is_default = state == WorkerFilter.STATES[0][0]
    return {
        "state": None if is_default else state,
        "label": label,
        "count": capped_count(_in_state(state)),
        "is_current": is_current,
    }
