"""The clients of the API, each with its permissions.

| who | comes with | may do |
|---|---|---|
| a user | a session, and for changes Django's CSRF token | what its permissions say |
| a token | ``Authorization: Bearer ...`` | its scopes, on its resources and queues |
| a stranger | nothing, in the compatible mode, from API_COMPATIBLE_HOSTS | everything |

``Access`` identifies the client; a route then finds out from ``principal_of(request)`` whether the
client may use a name or a queue, and which rows of a list it may see.
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.core.exceptions import FieldDoesNotExist
from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Left
from django.db.models.lookups import Exact
from django.http import HttpRequest
from ninja.errors import HttpError

from leasing.models import ApiToken, Lease
from leasing.validation.names import TOKEN, recorded_name

Rows = TypeVar("Rows", bound=QuerySet[Any])


class Principal:
    """An admitted client, limited to no resources or queues."""

    #: The queues whose tasks it may use; None: all.
    queues: list[str] | None = None
    #: True if it has to send the ``lease_key`` with requests of a holder. A client of the sample
    #: service, which has none, is known by the holder's name.
    proves_grants = False

    def __init__(self, name: str) -> None:
        #: Its name in the ledgers.
        self.name = name

    def may(self, permission: str) -> bool:
        """Return True if it has ``permission``."""
        return True

    def lacks(self, permission: str) -> str:
        """Return the refusal of one that does not have ``permission``."""
        return f"You do not have the permission {permission}."

    def check_resource(self, resource: str) -> None:
        """Raise HttpError 403 if it may not use the named lease of ``resource``."""

    def check_queue(self, queue: str) -> None:
        """Raise HttpError 403 if it may not use tasks of ``queue``."""

    def uses_queue(self, queue: str) -> bool:
        """Return True if it may use tasks of ``queue``."""
        return self.queues is None or queue in self.queues

    def leases(self, rows: Rows) -> Rows:
        """Return those of ``rows``, of any leasable model, that it may see in lists of leases."""
        return rows

    def tasks(self, rows: Rows) -> Rows:
        """Return those of ``rows``, which have a queue, that it may use."""
        return rows


class User(Principal):
    """A user who is signed in."""

    proves_grants = True

    def __init__(self, user: Any) -> None:
        super().__init__(recorded_name(user))
        self._user = user

    def may(self, permission: str) -> bool:
        return bool(self._user.is_active and self._user.has_perm(permission))


class Token(Principal):
    """A program with a token."""

    proves_grants = True

    def __init__(self, token: ApiToken) -> None:
        super().__init__(f"{TOKEN}{token.name}")
        self.token = token
        self.queues = list(token.queues) or None

    def may(self, permission: str) -> bool:
        return permission in self.token.scopes

    def lacks(self, permission: str) -> str:
        return f"This token does not have the scope {permission}."

    def check_resource(self, resource: str) -> None:
        if not resource.startswith(self.token.prefix):
            raise HttpError(
                403, f"This token is for resources that begin with {self.token.prefix!r} only."
            )

    def check_queue(self, queue: str) -> None:
        if not self.uses_queue(queue):
            raise HttpError(
                403,
                f"This token is for tasks of these queues only: {', '.join(self.token.queues)}.",
            )

    def leases(self, rows: Rows) -> Rows:
        prefix = self.token.prefix
        if rows.model is not Lease:
            # Names of rows come from the model and the primary key: none begins with the prefix.
            return rows.none() if prefix else self.tasks(rows)
        if not prefix:
            return rows
        # An index serves the first condition; the second is exact where SQLite ignores case.
        beginning = Exact(Left(F("resource"), len(prefix)), Value(prefix))
        return rows.filter(Q(resource__startswith=prefix), beginning)

    def tasks(self, rows: Rows) -> Rows:
        if self.queues is None or not _has_queue(rows.model):
            return rows
        return rows.filter(queue__in=self.queues)


def _has_queue(model: Any) -> bool:
    try:
        model._meta.get_field("queue")
    except FieldDoesNotExist:
        return False
    return True


def let_in(request: HttpRequest, principal: Principal) -> Principal:
    """Record ``principal`` as the sender of ``request``, and return it."""
    request.leasing_principal = principal  # type: ignore[attr-defined]
    return principal


def principal_of(request: HttpRequest) -> Principal:
    """Return the sender of ``request``, which its route has admitted."""
    principal: Principal = request.leasing_principal  # type: ignore[attr-defined]
    return principal
