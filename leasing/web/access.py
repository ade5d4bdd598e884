"""Guard pages and actions by permissions: closed by default."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import Permission
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from leasing.conf import leasing_settings
from leasing.db.unapplied import unapplied_reason_of
from leasing.web import navigation

View = Callable[..., HttpResponseBase]

#: The header of a poll of live.js. The answer is then the page without its frame.
LIVE_HEADER = "X-Live"
#: The answer to a change while the site is read-only.
READ_ONLY = "This site is read-only: LEASING['READ_ONLY'] is set."


def page(permission: str) -> Callable[[View], View]:
    """A view that only reads. Nobody without ``permission`` sees it: an anonymous visitor is
    sent to sign in, anyone else gets a page with status 403. While migrations of this package are
    missing, it says so (503). It is outside of transactions: after an error PostgreSQL answers
    nothing in this one.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def with_headers(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            try:
                response = view(request, *args, **kwargs)
            except DatabaseError as error:
                reason = unapplied_reason_of(error)
                if not reason:
                    raise
                response = render(
                    request, "leasing/unmigrated.html", {"reason": reason}, status=503
                )
            patch_vary_headers(response, [LIVE_HEADER])
            return response

        return outside_transactions(never_cache(require_safe(_guarded(permission, with_headers))))

    return decorate


def verb(permission: str) -> Callable[[View], View]:
    """A view that changes something: only by POST, only with ``permission``, and never while
    the site is read-only."""

    def decorate(view: View) -> View:
        @wraps(view)
        def unless_read_only(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if is_read_only():
                raise PermissionDenied(READ_ONLY)
            return view(request, *args, **kwargs)

        return never_cache(require_POST(_guarded(permission, unless_read_only)))

    return decorate


def outside_transactions(view: View) -> View:
    """Return ``view``, called outside of transactions also under ATOMIC_REQUESTS."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def is_read_only() -> bool:
    """Return True if LEASING["READ_ONLY"] forbids every change by pages, admin and API."""
    return bool(leasing_settings.READ_ONLY)


def may(request: HttpRequest, permission: str) -> bool:
    """Return True if the user of ``request`` may now do what needs ``permission``. All that
    shows a control calls this."""
    return not is_read_only() and request.user.has_perm(permission)


def why_not(what: str) -> str:
    """Return why ``what`` cannot be done now by a user who lacks its control: see ``may``."""
    if is_read_only():
        return "This site is read-only: no changes are possible."
    return f"{what} requires a permission that you do not have."


def check_may_see(request: HttpRequest, permission: str, form: Form) -> None:
    """Raise PermissionDenied unless the user may see the page that shows ``form`` again: that to
    act is another permission.

    Args:
        request: The request of the user.
        permission: The permission of the page.
        form: The form that was filled in wrongly, or not yet.
    """
    if not request.user.has_perm(permission):
        wrong = [str(each) for errors in form.errors.values() for each in errors]
        raise PermissionDenied(" ".join(["Nothing has been changed.", *wrong]))


def seen_grants(request: HttpRequest) -> int | None:
    """Return how often the row had been granted when its page was shown, as the page sends it; None
    where it does not."""
    seen = request.POST.get("seen", "")
    return int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 10 else None


def is_live(request: HttpRequest) -> bool:
    """Return True if ``request`` is a poll of live.js."""
    return LIVE_HEADER in request.headers


def report(request: HttpRequest, done: object, said: str, otherwise: str) -> None:
    """Show the result of an action on the user's next page.

    Args:
        request: The request of the user.
        done: A true value if anything was changed.
        said: The text in that case.
        otherwise: The text in the other case.
    """
    level = messages.SUCCESS if done else messages.WARNING
    messages.add_message(request, level, said if done else otherwise, fail_silently=True)


def _guarded(permission: str, view: View) -> View:
    """Return ``view`` for users with ``permission``. It answers 403 and 404 with pages of this
    package: those of a project need not exist, and know neither the permission nor the menu."""

    @login_required
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.has_perm(permission):
            return _refusal(request, 403, permission=permission, title=_title_of(permission))
        try:
            return view(request, *args, **kwargs)
        except PermissionDenied as error:
            return _refusal(request, 403, reason=str(error))
        except Http404 as error:
            return _refusal(request, 404, reason=str(error))

    return guarded


def _refusal(request: HttpRequest, status: int, **context: str) -> HttpResponse:
    entries = navigation.menu(request)
    # To the list of which this is a part, or else to the first page that this user may open.
    back = next((each for each in entries if each["current"]), entries[0] if entries else None)
    return render(request, f"leasing/{status}.html", {**context, "back": back}, status=status)


def _title_of(permission: str) -> str:
    """Return the title of ``permission`` where the admin grants it: "Tasks | task | Can view
    task"."""
    app, _, codename = permission.partition(".")
    rows = Permission.objects.select_related("content_type")
    found = rows.filter(content_type__app_label=app, codename=codename).first()
    return str(found or permission)
