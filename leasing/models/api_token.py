"""Tokens with which programs call the API."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.urls import get_resolver

from leasing.exceptions import InvalidResource
from leasing.functions import DbNow
from leasing.querysets.api_tokens import ApiTokenQuerySet, hash_of, new_secret
from leasing.runtime.terminal import closest
from leasing.validation.names import MAX_NAME, TOKEN, check_name

#: The permissions that routes of the API require, as far as they are imported.
_required: set[str] = set()


def add_scope(permission: str) -> None:
    """Make ``permission`` one that tokens can have."""
    _required.add(permission)


def known_scopes() -> set[str]:
    """Return the permissions that routes of this site require: a token can have each as a scope.
    Empty for a site without an API."""
    if getattr(settings, "ROOT_URLCONF", None):
        get_resolver().url_patterns  # noqa: B018, which imports the routes
    return _required


class TokenState(models.TextChoices):
    """States of a token."""

    USABLE = "usable"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiToken(models.Model):
    """A bearer token: the name of a program, and what it may do.

    Its scopes are the permissions that routes require, the ones that users have too.
    """

    id = models.BigAutoField(primary_key=True)
    #: The name in lists and ledgers. That of a revoked token stays taken: a ledger names one token.
    name = models.CharField(max_length=MAX_NAME - len(TOKEN), unique=True)
    #: See ``leasing.querysets.api_tokens.hash_of``. The secret itself is stored nowhere.
    token_hash = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    #: The beginning of the names of resources that it may use; empty: any.
    prefix = models.CharField(max_length=MAX_NAME, blank=True, default="")
    #: The queues whose tasks it may use; empty: all.
    queues = models.JSONField(blank=True, default=list)
    created_at = models.DateTimeField(db_default=DbNow(), editable=False)
    #: The moment from which on it is refused; null: never.
    expires_at = models.DateTimeField(blank=True, null=True, default=None)
    #: Accurate to about a minute: see ``note_use``.
    last_used_at = models.DateTimeField(null=True, default=None, editable=False)
    revoked_at = models.DateTimeField(null=True, default=None, editable=False)

    audit_name = "name"

    objects: ClassVar = ApiTokenQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = "API token"
        # Deleting one would free its name, which ledgers know; changing one, widen what was given.
        default_permissions = ("add", "view")
        permissions: ClassVar = [("revoke_apitoken", "Can revoke an API token")]
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return self.name

    def state_at(self, now: datetime) -> TokenState:
        """Return the state at ``now``, the database's clock."""
        if self.revoked_at is not None:
            return TokenState.REVOKED
        is_over = self.expires_at is not None and self.expires_at <= now
        return TokenState.EXPIRED if is_over else TokenState.USABLE

    def draw_secret(self) -> str:
        """Give the token a new secret and return it. Only of a token that is not stored yet."""
        secret = new_secret()
        self.token_hash = hash_of(secret)
        return secret

    def unique_error_message(self, model_class: Any, unique_check: Any) -> ValidationError:
        if tuple(unique_check) != ("name",):
            return super().unique_error_message(model_class, unique_check)
        return ValidationError(f"There is already a token called {self.name}.", code="unique")

    def clean(self) -> None:
        errors = {
            "name": _wrong_name(self.name),
            "scopes": _wrong_scopes(self.scopes),
            "prefix": _wrong_prefix(self.prefix),
            "queues": next(filter(None, map(_wrong_name, self.queues)), ""),
        }
        if any(errors.values()):
            raise ValidationError({field: text for field, text in errors.items() if text})


def _wrong_name(name: Any) -> str:
    try:
        check_name(name, "name")
    except InvalidResource as error:
        return str(error)
    return ""


def _wrong_scopes(given: Any) -> str:
    if not given:
        return "A token needs at least one scope."
    known = known_scopes()
    unknown = sorted(set(given) - known)
    if not unknown:
        return ""
    close = closest(unknown[0], known)
    hint = f"Did you mean {close!r}? " if close else ""
    return f"Unknown scope {unknown[0]}. {hint}`api_tokens scopes` lists them."


def _wrong_prefix(prefix: str) -> str:
    # The beginning of a name, and so all but its end is as in a name.
    return _wrong_name(f"{prefix}x"[:MAX_NAME]).replace("name", "prefix", 1) if prefix else ""
