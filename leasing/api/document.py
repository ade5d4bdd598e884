"""The parts of the OpenAPI document that ninja does not derive from the routes."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from leasing.api.access import Access
from leasing.conf import leasing_settings

SESSION: Final = "session"
TOKEN: Final = "token"


#: Refusals that may say when to try again.
RETRIED: Final = {409, 503}
RETRY_AFTER: Final = {
    "schema": {"type": "integer", "minimum": 1},
    "description": "Seconds after which to try again; of a lease that is held, until it ends.",
}
ETAG: Final = {"schema": {"type": "string"}, "description": "A tag of the content."}
IF_NONE_MATCH: Final = {
    "in": "header",
    "name": "If-None-Match",
    "required": False,
    "schema": {"type": "string"},
    "description": "The ETag of an answer that the client has: 304 if it would be the same.",
}


def linked(status: int, **links: dict[str, Any]) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route whose answer has values that other operations need.

    Args:
        status: The status of the answer.
        links: The ``parameters`` and ``requestBody`` of each operation, by its id.
    """
    named = {name: {"operationId": name, **link} for name, link in links.items()}
    return {"responses": {status: {"links": named}}}


class Document(OpenAPISchema):
    """The document of one API. Every operation names the permission that it requires; in the
    compatible mode none requires any."""

    def operation_details(self, operation: Operation) -> dict[str, Any]:
        details: dict[str, Any] = super().operation_details(operation)
        parameters, responses = details["parameters"], details["responses"]
        for each in parameters:
            if each["name"] == "cursor":  # only a cursor from an answer is valid
                each["schema"]["format"] = "cursor"
        for status in RETRIED & responses.keys():
            responses[status]["headers"] = {"Retry-After": RETRY_AFTER}
        if operation.methods == ["GET"] and 200 in responses:
            responses[200]["headers"] = {"ETag": ETAG}
            responses[304] = {"description": "The client has the answer already."}
            parameters.append(IF_NONE_MATCH)
        if any(each["in"] == "path" for each in parameters) and 404 in responses:
            # An address such as /leases/renew looks like that of a row.
            responses[405] = {**responses[404], "description": "Method Not Allowed"}
        return details

    def operation_security(self, operation: Operation) -> list[dict[str, Any]] | None:
        required = [
            each.permission for each in operation.auth_callbacks if isinstance(each, Access)
        ]
        if not required or leasing_settings.API_ACCESS == "compatible":
            return None
        self.securitySchemes.update(_schemes())
        return [{SESSION: required}, {TOKEN: required}]


def _schemes() -> dict[str, dict[str, str]]:
    return {
        SESSION: {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "The session of a signed-in user with the permission. Requests that "
            "change something must send the CSRF token in X-CSRFToken.",
        },
        TOKEN: {
            "type": "http",
            "scheme": "bearer",
            "description": "A token with the permission among its scopes.",
        },
    }
