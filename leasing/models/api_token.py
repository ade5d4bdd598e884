"""Tokens with which programs call the API: issued, looked up by their secret, revoked.

issue    the secret is made here and returned once; the row keeps its hash
bearing  the hash matches, and the token is usable: not revoked, and its time is not over
revoke   not revoked yet
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError, models
from django.db.models import Q
from django.urls import get_resolver

from leasing.db.routing import RoutedQuerySet
from leasing.db.row_reader import read_by
from leasing.exceptions import InvalidResource
from leasing.functions import DbNow, after
from leasing.runtime.terminal import closest
from leasing.validation.names import MAX_NAME, TOKEN, check_name

#: Scanners for secrets that were published by mistake recognize it.
MARK = "leasing_"
_SECRET = re.compile(MARK + "[A-Za-z0-9_-]{43}")
#: The use of a token is noted at most once in this time.
NOTED_EVERY = timedelta(minutes=1)


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


def hash_of(secret: str) -> str:
    """Return the hash by which a token is found.

    A password is hashed slowly and with salt because it can be guessed. A secret has 256 random
    bits: nobody tries those, so one fast round is enough, and the hash finds its row by an index.
    Comparing hashes in the database tells nothing by its duration: nobody chooses a hash.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenState(models.TextChoices):
    """States of a token."""

    USABLE = "usable"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiTokenQuerySet(RoutedQuerySet["ApiToken"]):
    """Tokens of the API: ``ApiToken.objects``."""

    def issue(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        prefix: str = "",
        queues: Iterable[str] = (),
        expires_at: datetime | None = None,
    ) -> tuple[ApiToken, str]:
        """Store a new token. Returns it with its secret, which nothing can show again.

        Args:
            name: The name in lists and ledgers; no other token has it.
            scopes: The permissions that it gives, such as "leasing.change_lease".
            prefix: The beginning of the names of resources that it may use; empty: any.
            queues: The queues whose tasks it may use; empty: all.
            expires_at: The moment from which on it is refused; None: it stays valid.

        Raises ValidationError.
        """
        token = self.model(
            name=name,
            scopes=sorted(set(scopes)),
            prefix=prefix,
            queues=sorted(set(queues)),
            expires_at=expires_at,
        )
        secret = token.draw_secret()
        token.full_clean()
        token.save(using=self.home().db, force_insert=True)
        return token, secret

    def usable(self) -> Self:
        """Return the tokens that are neither revoked nor expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=DbNow()), revoked_at=None)

    def expired(self) -> Self:
        """Return the tokens of which the time is over, and that nobody has revoked."""
        return self.filter(expires_at__lte=DbNow(), revoked_at=None)

    def revoked(self) -> Self:
        """Return the tokens that were revoked."""
        return self.filter(revoked_at__isnull=False)

    def bearing(self, secret: str) -> ApiToken | None:
        """Return of all tokens the usable one with that secret, None if there is none."""
        if not _SECRET.fullmatch(secret):
            return None
        found: list[ApiToken] = read_by(self.model, self.home().db, "token_hash", [hash_of(secret)])
        usable = [token for token in found if token.state_at(token.now) == TokenState.USABLE]  # type: ignore[attr-defined]
        return usable[0] if usable else None

    def revoke(self) -> int:
        """Revoke the tokens that are not revoked yet. Returns how many. They are refused from the
        next request on; what they hold stays held until it ends."""
        return self.home().filter(revoked_at=None).update(revoked_at=DbNow())

    revoke.alters_data = True  # type: ignore[attr-defined]

    def note_use(self, token: Any) -> None:
        """Note that ``token``, as ``bearing`` returned it, is in use: about once a minute, so that
        requests only read. A note that cannot be written fails no request."""
        if token.last_used_at is not None and token.now < token.last_used_at + NOTED_EVERY:
            return
        rows = self.home().filter(pk=token.pk)
        unnoted = rows.filter(Q(last_used_at=None) | Q(last_used_at__lte=after(-NOTED_EVERY)))
        with suppress(DatabaseError):
            unnoted.update(last_used_at=DbNow())


class ApiToken(models.Model):
    """A bearer token: the name of a program, and what it may do.

    Its scopes are the permissions that routes require, the ones that users have too.
    """

    id = models.BigAutoField(primary_key=True)
    #: The name in lists and ledgers. That of a revoked token stays taken: a ledger names one token.
    name = models.CharField(max_length=MAX_NAME - len(TOKEN), unique=True)
    #: See ``leasing.models.api_token.hash_of``. The secret itself is stored nowhere.
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
        secret = MARK + secrets.token_urlsafe(32)
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
