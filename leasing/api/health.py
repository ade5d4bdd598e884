"""Routes for probes, which need no credentials. A site without the routes of leases mounts them
alone."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.log import log_response
from ninja import Router, Status

from leasing.api.bodies import Error, Notice, rendered
from leasing.api.errors import RETRY_AFTER, try_again_in
from leasing.api.readiness import Readiness, probe

router = Router(tags=["health"])


@router.get("/healthz", auth=None, response=Notice)
@router.api_operation(["HEAD"], "/healthz", auth=None, response=Notice, include_in_schema=False)
def healthz(request: HttpRequest) -> Notice:
    """Report that this process answers. Runs no query."""
    return Notice(message="ok")


#: The answers about the readiness of a process.
READY: dict[int, Any] = {200: Notice, 503: Error}


@router.get("/readyz", auth=None, response=READY)
@router.api_operation(["HEAD"], "/readyz", auth=None, response=READY, include_in_schema=False)
def readyz(request: HttpRequest) -> Notice | HttpResponse:
    """Report that this process can serve: its database answers within two seconds and all
    migrations are applied. Otherwise 503 with what is missing."""
    return told(request, probe.read())


def told(request: HttpRequest, readiness: Readiness) -> Notice | HttpResponse:
    """Return the answer to a probe: ``readiness``. Only the log gets the database's error."""
    if not readiness.missing:
        return Notice(message="ok")
    response = rendered(Status(503, Error(error=readiness.missing)))
    try_again_in(response, RETRY_AFTER)
    # Otherwise Django would log an error for each probe during an outage.
    why = f"{readiness.missing} {readiness.error}".rstrip()
    log_response("Not ready: %s", why, response=response, request=request, level="warning")
    return response
