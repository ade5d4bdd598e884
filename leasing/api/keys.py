"""Proofs of terms over HTTP: the key of a grant, and requests that may be sent again.

**The lease key** is sent only in the answers to a grant and to its renewals. It is Django's
signature of the model, the primary key and the grant, so nothing is stored; a signature that was
made with one of SECRET_KEY_FALLBACKS is accepted. A client that sends the lease key acts for that
grant, whatever holder it names. The key of an earlier grant, the key of another row and an invented
key are refused with the same text. In the closed mode, every verb that acts for a holder requires
the lease key.

**The Idempotency-Key** is a UUID in a header. The id of the grant is computed from it, the client,
the path and the body. When the same request is sent again, it finds its own grant on the row and
gets the same answer: a lost answer does not lose the lease. Once the grant has ended, the request
is refused instead of granted again, because it may be an old request that was delayed on its way;
the row stores the id for this until its next grant. A claim of tasks has no row of its own:
``tasks.querysets.claim_key`` stores its key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import uuid
from base64 import urlsafe_b64encode
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Final

from django.conf import settings
from django.http import HttpRequest
from django.utils.encoding import force_bytes
from ninja.errors import HttpError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

from leasing.api.access import caller
from leasing.api.bodies import Request, document_fields
from leasing.api.principals import principal_of
from leasing.conf import leasing_settings
from leasing.models import Leasable

_SALT = "leasing.lease_key"

HEADER: Final = "Idempotency-Key"
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

#: The answer to a wrong key and to a wrong grant.
WRONG_KEY: Final = "The lease_key is not that of the current grant."


def _required(lease_key: str | None, info: ValidationInfo) -> str | None:
    if lease_key is not None:
        return lease_key
    assert info.context is not None  # the API validates the bodies of requests
    if principal_of(info.context["request"]).proves_grants:
        raise ValueError("required: it was told with the grant")
    return lease_key


def _document_key(schema: dict[str, Any], model: type[BaseModel]) -> None:
    document_fields(schema, model)
    closed = leasing_settings.API_ACCESS != "compatible"
    for name in ("holder", "processor", "lease_key"):
        required = (name == "lease_key") == closed
        if required and name in schema["properties"]:
            known = schema["properties"][name]
            (kind, _) = known.pop("anyOf", (known, None))
            schema["properties"][name] = {**known, **kind}
            schema["required"] = [*schema.get("required", ()), name]


class HoldersRequest(Request):
    """A request of a holder, which proves its grant."""

    model_config = ConfigDict(json_schema_extra=_document_key)

    lease_key: Annotated[str | None, AfterValidator(_required)] = Field(
        None,
        validate_default=True,
        repr=False,
        max_length=100,
        examples=["f3Qh0bW7m2rZ1cVx9yTnLk5sJ8dPgA4uEoRiHvBqXwM"],
        description="The lease_key from the answer to the grant: it alone proves the request. Only "
        "clients without credentials, in the compatible mode, may leave it out.",
    )


class TermOut(BaseModel):
    """The part of an answer that only the holder gets, to a grant and to a renewal."""

    lease_key: str = Field(
        repr=False,
        examples=["f3Qh0bW7m2rZ1cVx9yTnLk5sJ8dPgA4uEoRiHvBqXwM"],
        description="Proof of the grant: send it with every later request for it.",
    )
    ttl: float = Field(description="Seconds for which a renewal is valid.", examples=[30])
    remaining: float = Field(
        description="Seconds until the deadline, by the database's clock. Count them from before "
        "you sent the request, on a clock that nobody sets."
    )
    yield_to: str = Field(
        description="The caller with a higher priority who asked for the lease, or empty."
    )
    is_last: bool = Field(description="True if no renewal can extend the deadline any further.")


def term_shown(row: Leasable, now: datetime) -> dict[str, Any]:
    """Return the fields of ``TermOut``.

    Args:
        row: The row, which the client of the request holds.
        now: The database's clock when the row was written: ``row.now`` after a grant,
            ``row.renewed_at`` after a renewal.
    """
    row.now = now
    renewal = row.renewal_now()
    return {
        "lease_key": lease_key_of(row),
        "ttl": row.ttl.total_seconds(),
        "remaining": renewal.remaining,
        "yield_to": renewal.yield_to,
        "is_last": renewal.is_last,
    }


def lease_key_of(row: Leasable) -> str:
    """Return the key of the current grant of ``row``: the signature of ``Signer(salt=_SALT)``."""
    return _signature(settings.SECRET_KEY, _signed(row)).decode()


def check_lease_key(row: Leasable | None, lease_key: str) -> None:
    """Raise HttpError 409 unless ``lease_key`` is that of the current grant of ``row``. If there is
    no such row (None), the refusal takes as long and is the same."""
    signed = str(uuid.uuid4()) if row is None or row.grant_id is None else _signed(row)
    sent, secrets = lease_key.encode(), (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    keys = [_signature(secret, signed) for secret in secrets]
    if not sum([hmac.compare_digest(key, sent) for key in keys]):  # compare all, in constant time
        raise HttpError(409, WRONG_KEY)


def _signed(row: Leasable) -> str:
    return f"{row.leased_model()._meta.label_lower}:{row.pk}:{row.grant_id}"


def _signature(secret: str | bytes, signed: str) -> bytes:
    # A batch has hundreds of signatures, and a Signer derives its key anew for each.
    mac = _keyed(secret).copy()
    mac.update(signed.encode())
    return urlsafe_b64encode(mac.digest()).rstrip(b"=")


@lru_cache(maxsize=16)
def _keyed(secret: str | bytes) -> hmac.HMAC:
    """Return an HMAC, of no data yet, with the key that Django's signing derives from ``secret``
    for the salt of lease keys. To copy it takes half the time of making one from the key."""
    key = hashlib.sha256(f"{_SALT}signer".encode() + force_bytes(secret)).digest()
    return hmac.new(key, digestmod="sha256")


def request_id(request: HttpRequest, body: BaseModel) -> uuid.UUID | None:
    """Return the ``request_id`` of terms for a ``request`` with the header Idempotency-Key; None
    without the header. Another client, method, path or ``body`` has another id; the ``wait`` of the
    body makes no difference. Raises HttpError 400."""
    key = _key_of(request)
    if key is None:
        return None
    fields = body.model_dump(mode="json", exclude={"wait"})
    return _digest(caller(request), request.method, request.path, key, fields)


def wait_id(request: HttpRequest) -> uuid.UUID | None:
    """Return the id of the wait of a ``request`` with the header Idempotency-Key; None without one.
    The same client has the same one for every request with this key to the same address. Raises
    HttpError 400."""
    key = _key_of(request)
    return None if key is None else _digest(caller(request), "wait", request.path, key)


def _key_of(request: HttpRequest) -> str | None:
    key = request.META.get("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return None
    key = key.strip().removeprefix('"').removesuffix('"')
    if not _UUID.fullmatch(key):
        raise HttpError(400, f"{HEADER} must be a UUID.")
    return str(key.lower())


def _digest(*parts: Any) -> uuid.UUID:
    digest = blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).digest()
    return uuid.UUID(bytes=digest, version=5)


def documented(description: str, *, required: bool = False) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route that reads the header."""
    parameter = {
        "in": "header",
        "name": HEADER,
        "required": required,
        # Not of the format `uuid`: generated clients would send an object, not its text.
        "schema": {
            "type": "string",
            "format": "idempotency-key",
            "pattern": f"^{_UUID.pattern}$",
        },
        "description": description,
    }
    return {"parameters": [parameter]}


#: The ``openapi_extra`` of a route whose requests may be sent again.
IDEMPOTENT: Final = documented(
    "A UUID that the client makes for each request and sends again with it: a repetition is "
    "answered with the grant of the first."
)
