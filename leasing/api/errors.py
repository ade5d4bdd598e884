"""Errors of the lease and the task routes: their statuses and texts, in one format."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from hashlib import blake2b
from inspect import iscoroutinefunction
from typing import Any

from django.core.exceptions import (
    ImproperlyConfigured,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.core.signals import got_request_exception, setting_changed
from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, UnreadablePostError
from django.urls import Resolver404, URLPattern, URLResolver, re_path, resolve
from django.utils.cache import get_conditional_response
from django.utils.log import log_response
from django.views import defaults
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from leasing.api.access import Access
from leasing.api.bodies import BodyParser, Error, refuse_body, rendered
from leasing.api.dispatch import Dispatch, View
from leasing.api.document import Document
from leasing.api.page import DocumentPage
from leasing.db.unapplied import unapplied_reason_of
from leasing.exceptions import InvalidResource, InvalidTTL, LeaseHeld, LeaseLost
from leasing.web.access import outside_transactions
from leasing.web.cursors import InvalidCursor

_AWAY = "The database is not reachable. Try again later."

#: The status and the text of each error; empty: the text of the error itself. An error is a fault
#: of this package (500) if neither its class nor a base class is in this table.
ERRORS: dict[type[Exception], tuple[int, str]] = {
    LeaseHeld: (409, ""),
    LeaseLost: (409, ""),
    InvalidResource: (400, ""),
    InvalidTTL: (400, ""),
    InvalidCursor: (400, "The cursor is not one of this list."),
    Http404: (404, ""),
    PermissionDenied: (403, "You do not have the permission for this."),
    RequestDataTooBig: (413, "The body is too large."),
    SuspiciousOperation: (400, "The request was refused."),
    UnreadablePostError: (400, "The body is incomplete."),
}

#: Errors of a database that is away: 503.
AWAY = (OperationalError, InterfaceError)

#: After how many seconds to try again when the database is away.
RETRY_AFTER = 1

#: No cache may store an answer: each answer is for one client and one moment.
NEVER_STORED = "max-age=0, no-cache, no-store, must-revalidate, private"

#: Maximum number of cached documents of an API: below a path with parameters there is one document
#: for each value, and clients choose the values.
MAX_DOCUMENTS = 16

#: Statuses of requests whose body is invalid, too large or not JSON.
BAD_BODY = (400, 413, 415)


def answers(good: dict[int, Any], *bad: int) -> dict[int, Any]:
    """Return the answers of a route for the OpenAPI document: the models of ``good`` answers by
    status, and the error of the ``bad`` statuses and of those that every route may return."""
    return {**dict.fromkeys((401, 403, *bad, 503), Error), **good}


def refusal_of(error: Exception) -> tuple[int, str] | None:
    """Return the status and the text of ``error`` for one item of a batch; None if the error is
    about the whole request: the database is not reachable, or this package has a fault."""
    if isinstance(error, HttpError):
        return error.status_code, str(error)
    for kind in type(error).__mro__:
        if kind in ERRORS:
            status, text = ERRORS[kind]
            return status, text or str(error)
    return None


class LeasingAPI(NinjaAPI):
    """The API that the routers of ``leasing.api`` and ``tasks.api`` are mounted on::

        api = LeasingAPI()
        api.add_router("", leasing.api.router)
        api.add_router("", tasks.api.router)
        urlpatterns = [path("api/", api.urls)]

    Every error is ``{"error": "..."}``. Bodies are JSON objects. Access is closed by default:
    a route without ``auth`` requires the permission to change leases. ``openapi.json`` and its page
    ``docs`` require the permission to see leases. Arguments are those of NinjaAPI. Views that a
    site adds must be plain functions.
    """

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "title": "Leases and tasks",
            "urls_namespace": "leasing-api",
            "docs": DocumentPage(),
            "docs_decorator": self._for_readers,
            "auth": Access("leasing.change_lease"),
            "parser": BodyParser(),
        }
        super().__init__(**(defaults | options))
        self._documents: dict[tuple[str, int], Document] = {}
        setting_changed.connect(self._forget_documents)

    @property
    def urls(self) -> tuple[list[URLResolver | URLPattern], str, str]:
        patterns, app_name, namespace = super().urls
        for pattern in patterns:
            assert isinstance(pattern, URLPattern)
            view = self.not_found if pattern.name == "api-root" else pattern.callback
            if iscoroutinefunction(view):
                raise ImproperlyConfigured(
                    f"The view {pattern.name} is async. Views of a LeasingAPI are plain functions, "
                    "which threads run under ASGI too."
                )
            pattern.callback = self._guarded(view)
        patterns.append(re_path("", self._guarded(self.not_found)))
        return patterns, app_name, namespace

    def get_openapi_operation_id(self, operation: Any) -> str:
        return str(operation.view_func.__name__)

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> Document:
        if path_prefix is None:
            path_prefix = self.get_root_path(path_params or {})
        # Making it takes as long as a hundred requests.
        made_for = (path_prefix, len(self._routers))
        document = self._documents.get(made_for)
        if document is None:
            document = Document(self, path_prefix)
            if len(self._documents) >= MAX_DOCUMENTS:
                self._documents.clear()
            self._documents[made_for] = document
        # A copy: a method that overrides this one may change it.
        return copy.deepcopy(document, {id(self): self})

    def _forget_documents(self, **kwargs: Any) -> None:
        # Bounds, access and the session's cookie come from settings, which tests change.
        self._documents.clear()

    def set_default_exception_handlers(self) -> None:
        self.add_exception_handler(Exception, self._answer_error)

    def refuse(self, request: HttpRequest, status: int, text: str) -> HttpResponse:
        """Return the answer of every error.

        Args:
            request: The request that is refused.
            status: The HTTP status.
            text: The error, for the client.
        """
        response = self.create_response(request, {"error": text}, status=status)
        if status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def not_found(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer a path without a route."""
        return self.refuse(request, 404, "There is no such address.")

    def _guarded(self, view: View) -> View:
        """Return ``view`` with all its errors answered in the format of this API, and outside of
        transactions: no lease can be acquired inside of one (see LeaseInTransaction)."""

        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            try:
                refuse_body(request)
                response = view(request, *args, **kwargs)
            except Exception as error:
                response = self.on_exception(request, error)
            if response.status_code == 405:
                response = self._not_allowed(request, response)
            return _with_headers(request, response)

        return outside_transactions(Dispatch(self, guarded, self._complete))

    def _complete(self, request: HttpRequest, outcome: Callable[[], Any]) -> HttpResponseBase:
        """Answer a request that has waited.

        Args:
            request: The client's request.
            outcome: Returns the answer that the view would have returned, or raises its error.
        """
        try:
            answer = outcome()
            response = answer if isinstance(answer, HttpResponse) else rendered(answer)
        except Exception as error:
            response = self.on_exception(request, error)
        return _with_headers(request, response)

    def _not_allowed(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponse:
        allowed = ", ".join(sorted(response.headers["Allow"].split(", ")))
        refusal = self.refuse(
            request, 405, f"{request.method} is not allowed here. Allowed: {allowed}."
        )
        refusal.headers["Allow"] = allowed
        return refusal

    def _for_readers(self, view: Any) -> Any:
        may_read = Access("leasing.view_lease")

        @functools.wraps(view)
        def for_readers(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            may_read(request)
            answer: HttpResponseBase = view(request, *args, **kwargs)
            return answer

        return for_readers

    def _answer_error(self, request: HttpRequest, error: Any) -> HttpResponse:
        if isinstance(error, ValidationError):
            return self.refuse(request, 400, _what_is_wrong(error))
        if isinstance(error, HttpError) and isinstance(error.__cause__, HttpError):
            # ninja wraps an error of the parser into one with a text of its own.
            error = error.__cause__
        reason = unapplied_reason_of(error) if isinstance(error, DatabaseError) else ""
        if reason:
            return self._answer_later(request, reason)
        if isinstance(error, AWAY):
            return self._answer_later(request, _AWAY)
        refusal = refusal_of(error)
        if refusal is None:
            return self._answer_fault(request, error)
        response = self.refuse(request, *refusal)
        if hasattr(error, "remaining"):  # of a lease that is held, or a claim that is under way
            try_again_in(response, error.remaining or 0)
        return response

    def _answer_later(self, request: HttpRequest, text: str) -> HttpResponse:
        """Tell the client to try again: the database is away, or lacks migrations."""
        response = self.refuse(request, 503, text)
        try_again_in(response, RETRY_AFTER)
        return response

    def _answer_fault(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Report a server error to the log and to Django's receivers, not to the client."""
        got_request_exception.send(sender=None, request=request)
        response = self.refuse(request, 500, "Internal error. It has been logged.")
        log_response(
            "%s: %s",
            "Internal Server Error",
            request.path,
            response=response,
            request=request,
            exception=error,
        )
        return response


def try_again_in(response: HttpResponseBase, seconds: float) -> None:
    """Set Retry-After of ``response`` to ``seconds``, at least one."""
    response.headers["Retry-After"] = str(max(1, math.ceil(seconds)))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that a middleware refused before any view ran, such as one with an unknown
    Host: in JSON below the path of an API, as Django does elsewhere. Set this function as
    ``handler400`` of the root URLconf."""
    try:
        view = resolve(request.path_info, getattr(request, "urlconf", None)).func
    except Resolver404:
        view = None
    api = getattr(view, "api", None)
    if not isinstance(api, LeasingAPI):
        return defaults.bad_request(request, exception)
    response = api.on_exception(request, exception)
    response.headers["Cache-Control"] = NEVER_STORED
    return response


def _with_headers(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if response.status_code == 200 and request.method == "GET":
        response = _unless_known(request, response)
    elif (seconds := getattr(request, "try_again_in", 0)) and "Retry-After" not in response.headers:
        try_again_in(response, seconds)
    response.headers["Cache-Control"] = NEVER_STORED
    return response


def _unless_known(request: HttpRequest, response: Any) -> HttpResponseBase:
    """Return ``response`` with the ETag of its content; 304 without content if the client sends the
    same ETag."""
    tag = f'"{blake2b(response.content, digest_size=16).hexdigest()}"'
    response.headers["ETag"] = tag
    known: HttpResponseBase | None = get_conditional_response(request, tag, None, response)
    return response if known is None else known


def _what_is_wrong(error: ValidationError) -> str:
    """Return all validation errors in one line, each with its field."""
    complaints = (
        f"{_field_of(each['loc'])}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors
    )
    return "; ".join(complaints) + "."


def _field_of(place: tuple[str | int, ...]) -> str:
    """Return the path of a field: ``leases.0.resource``."""
    source, *inner = place
    # In a body, the name of the view's argument precedes the path.
    return ".".join(map(str, inner[1:] if source == "body" else inner)) or str(source)
