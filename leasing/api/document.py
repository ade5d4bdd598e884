"""The OpenAPI document, as far as it is not derived from the routes by ninja."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from leasing.api.access import Access
from leasing.conf import leasing_settings

SESSION: Final = "session"
TOKEN: Final = "token"


class Document(OpenAPISchema):
    """The document of one API. Every operation names the permission that it requires; in the
    compatible mode none requires any."""

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
