"""Metrics for a scraper with the token, or for a user with the permission."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from leasing.conf import leasing_settings
from leasing.metrics import registry

VIEW = "leasing.view_metrics"
PLAIN = "text/plain; charset=utf-8"


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Show the figures of the database, and the counts of the processes of this server."""
    refused = _refusal(request)
    if refused is not None:
        return refused
    if not registry.can_count():
        return HttpResponse(registry.EXTRA, status=501, content_type=PLAIN)
    from leasing.metrics.exposition import exposition

    text, content_type = exposition(request.headers.get("Accept", ""))
    return HttpResponse(text, content_type=content_type)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    token = leasing_settings.METRICS_TOKEN
    if scheme.lower() == "bearer":
        if token and constant_time_compare(sent.strip(), token):
            return None
    else:
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated:
            if user.is_active and user.has_perm(VIEW):
                return None
            says = f"You do not have the permission {VIEW}."
            return HttpResponse(says, status=403, content_type=PLAIN)
    response = HttpResponse("Metrics require a token.", status=401, content_type=PLAIN)
    response["WWW-Authenticate"] = 'Bearer realm="metrics"'
    return response
