"""Tokens of the API: issued, looked up by their secret, revoked.

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
from typing import TYPE_CHECKING, Any, Self

from django.db import DatabaseError
from django.db.models import Q

from leasing.db.compiled_queries import query_instance
from leasing.db.routing import RoutedQuerySet, kept_rows
from leasing.db.statements import Marker
from leasing.functions import DbNow, after

if TYPE_CHECKING:
    from leasing.models.api_token import ApiToken

#: Scanners for secrets that were published by mistake recognize it.
MARK = "leasing_"
_SECRET = re.compile(MARK + "[A-Za-z0-9_-]{43}")
#: The use of a token is noted at most once in this time.
NOTED_EVERY = timedelta(minutes=1)


def hash_of(secret: str) -> str:
    """Return the hash by which a token is found.

    A password is hashed slowly and with salt because it can be guessed. A secret has 256 random
    bits: nobody tries those, so one fast round is enough, and the hash finds its row by an index.
    Comparing hashes in the database tells nothing by its duration: nobody chooses a hash.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


class ApiTokenQuerySet(RoutedQuerySet["ApiToken"]):
    """Tokens of the API: ``ApiToken.objects``."""

    kept_for = frozenset({"bearing"})

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
        rows = kept_rows(type(self), self.model, None).home()

        def compiled() -> Any:
            token_hash = Marker("token_hash", rows.model._meta.get_field("token_hash"))
            return rows.usable().filter(token_hash=token_hash).annotate(now=DbNow())

        # Each request with a token asks this: see ``leasing.db.statements``.
        about = ("bearing", rows.model, rows.db)
        token: ApiToken | None = query_instance(about, compiled, {"token_hash": hash_of(secret)})
        return token

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


def new_secret() -> str:
    """Return the secret of a new token."""
    return MARK + secrets.token_urlsafe(32)
