"""The operator's page about the generator."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from leasing.conf import leasing_settings
from leasing.dashboard.forms import ReasonForm
from leasing.functions import database_now
from leasing.models import AuditEntry
from leasing.validation.names import recorded_name
from leasing.web.access import check_may_see, may, page, verb
from leasing.web.polling import answer
from tasks.dashboard import worker_rows
from tasks.dashboard.badges import GENERATOR_BADGES, WORKER_BADGES
from tasks.generator import GeneratorStatus, generator_status, start_generator, stop_generator
from tasks.models import GeneratorDesiredState, Worker, WorkerState

VIEW, CONTROL = "leasing_tasks.view_task", "leasing_tasks.control_generator"

#: More instances than this are not listed.
INSTANCES_SHOWN = 20
COMMANDS_SHOWN = 10


@page(VIEW)
def generator(request: HttpRequest) -> HttpResponse:
    """The desired and the present state of the generator, its processes and acknowledgements."""
    return _generator(request)


@verb(CONTROL)
def generator_start(request: HttpRequest) -> HttpResponse:
    """Set the desired state to running."""
    return _set(request, start_generator, "start_form")


@verb(CONTROL)
def generator_stop(request: HttpRequest) -> HttpResponse:
    """Set the desired state to stopped."""
    return _set(request, stop_generator, "stop_form")


def _set(
    request: HttpRequest, set_desired: Callable[..., GeneratorStatus], form_name: str
) -> HttpResponse:
    form = ReasonForm(request.POST)
    if not form.is_valid():
        check_may_see(request, VIEW, form)
        return _generator(request, status=400, **{form_name: form})
    set_desired(by=recorded_name(request.user), reason=form.cleaned_data["reason"], via="page")
    return redirect("leasing_tasks:generator")


def _generator(request: HttpRequest, status: int = 200, **forms: ReasonForm) -> HttpResponse:
    current = generator_status()
    instances = Worker.objects.home().present().generators().with_state().order_by("name")
    may_see_audit = request.user.has_perm("leasing.view_auditentry")
    context = {
        "status": current,
        "badge": GENERATOR_BADGES[current.status],
        "lease": current.lease,
        "standby": [
            (
                worker_rows.WorkerRow(each, []),
                WORKER_BADGES[WorkerState(worker_rows.state_of(each))],
            )
            for each in instances[:INSTANCES_SHOWN]
            if each.name != current.holder
        ],
        "start_form": ReasonForm(),
        "stop_form": ReasonForm(),
        **forms,
        "commands": _commands() if may_see_audit else [],
        "may_control": may(request, CONTROL),
        "may_see_audit": may_see_audit,
        "may_see_leases": request.user.has_perm("leasing.view_lease"),
        "may_see_workers": request.user.has_perm("leasing_tasks.view_worker"),
        "now": database_now(leasing_settings.DATABASE),
    }
    return answer(request, "leasing_tasks/generator.html", context, status=status)


def _commands() -> list[AuditEntry]:
    """Return the latest starts and stops of the generator."""
    entries = AuditEntry.objects.home()
    return list(entries.filter(model=GeneratorDesiredState._meta.label_lower)[:COMMANDS_SHOWN])
