"""The requests about leases, each written once, as steps for threads and for coroutines."""

from __future__ import annotations

import math
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote, urlencode

from leasing.client.exceptions import InvalidAnswer, RequestRefused, ServiceError
from leasing.client.messages import (
    Answer,
    Request,
    batch_of,
    checked_field,
    checked_seconds,
    in_portions,
)
from leasing.client.transport import Transport
from leasing.exceptions import LeaseHeld, LeaseLost, LeaseTimeout
from leasing.holding.term import Term
from leasing.runtime.aio import Steps
from leasing.runtime.clock import clock
from leasing.store import MAX_RENEWED, Renewal, Renewals
from leasing.validation.names import MAX_RENEWAL_BODY, check_duration, check_name, default_holder
from leasing.waiting.waiter import Rest, pauses

#: Seconds for which one request waits for a lease, at most; a longer wait is several requests.
LONG_POLL: Final = 5.0
#: Leases on one page of a list, at most.
LONGEST_PAGE: Final = 1000
#: A grant that took longer than this share of its ttl to arrive is renewed at once: trust counts
#: from before its request was sent.
STALE_AFTER: Final = 0.25

#: The refusal of a request that would wait longer than the service is configured to let it.
_WAIT_ALLOWED: Final = re.compile(r"\bwait: must be from 0 to ([0-9]+(?:\.[0-9]+)?)")
_WAITED: Final = re.compile(r"^Waited [0-9.]+ s: ")


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of a grant to the service."""

    resource: str
    lease_key: str = field(repr=False)

    @property
    def item(self) -> dict[str, str]:
        """The fields that identify the grant in a request."""
        return {"resource": self.resource, "lease_key": self.lease_key}


@dataclass(slots=True)
class ServiceLease:
    """A lease that a service keeps, as its answers show it."""

    resource: str
    holder: str
    fencing_token: int
    grant_id: uuid.UUID
    expires_at: datetime
    lease_key: str = field(repr=False)

    @property
    def lease_resource(self) -> str:
        return self.resource


class LeaseCalls:
    """The requests about leases of one service."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        #: Seconds for which one request may wait at the service.
        self._longest_poll = LONG_POLL

    def acquire(
        self,
        resource: str,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: float | timedelta | None = 0.0,
        stopping: threading.Event | None = None,
    ) -> Steps[Term]:
        """Acquire ``resource``: see ``LeaseClient.acquire``. Raises LeaseHeld, LeaseTimeout."""
        fields: dict[str, Any] = {
            "resource": check_name(resource, "resource"),
            "holder": default_holder() if holder is None else check_name(holder, "holder"),
        }
        if ttl is not None:
            fields["ttl"] = check_duration(ttl, "ttl").total_seconds()
        patience = math.inf if wait is None else check_duration(wait, "wait").total_seconds()
        began_at = clock()
        ends_at = began_at + patience
        for pause in pauses():
            left = max(0.0, ends_at - clock())
            is_stopping = stopping is not None and stopping.is_set()
            longest = 0.0 if is_stopping else self._longest_poll
            poll = min(left, longest)
            try:
                term = yield from self._acquire_once(fields, poll, stopping)
                return (yield from self._fresh(term))
            except LeaseHeld as held:
                if not patience:
                    raise
                waited = clock() - began_at
                is_stopping = stopping is not None and stopping.is_set()
                # The same expression as in ``left``: with ``waited``, rounding might miss the end.
                if is_stopping or clock() >= ends_at:
                    late = LeaseTimeout(resource, waited=waited, remaining=held.remaining)
                    late.args = (f"Waited {waited:.1f} s: {held}",)
                    raise late from held
            except RequestRefused as refusal:
                allowed = wait_allowed(refusal)
                if allowed is None or allowed >= poll:
                    raise
                self._longest_poll = allowed
                continue
            yield Rest(min(pause, left), stopping)
        raise AssertionError("the pauses have no end")

    def _acquire_once(
        self, fields: dict[str, Any], wait: float, stopping: threading.Event | None
    ) -> Steps[Term]:
        """Send a request with a key of its own; send a second one, with another key, if the first
        was served before and its grant has ended in the meantime."""
        body = fields | ({"wait": round(wait, 3)} if wait >= 0.001 else {})
        for is_last in (False, True):
            request = Request("POST", "/leases", body, key=uuid.uuid4(), wait=wait)
            answer: Answer = yield from self.transport.sending(
                request, stopping=stopping, undo=self._undo
            )
            if answer.status == 201:
                return term_of(answer)
            if answer.status == 409 and answer.retry_after:
                held = LeaseHeld(fields["resource"], remaining=answer.retry_after)
                # The service reports how long this request waited; the caller may wait longer.
                held.args = (_WAITED.sub("", answer.message),)
                raise held
            if answer.status != 409 or is_last:
                break
        raise RequestRefused(answer.status, answer.message)

    @staticmethod
    def _undo(transport: Transport, answer: Answer) -> None:
        """Release a grant that nobody waits for any more."""
        if answer.status == 201:
            transport.exchange(_releasing(term_of(answer).key))

    def _fresh(self, term: Term) -> Steps[Term]:
        if clock() - term.sent_at < STALE_AFTER * term.ttl:
            return term
        try:
            renewal, sent_at = yield from self._renew(
                term.key,
                patience=0.0,
                undo=lambda transport, _: transport.exchange(_releasing(term.key)),
            )
        except ServiceError:
            return term  # its deadline stays as it was
        term.row.expires_at = renewal.expires_at
        return term.extend(sent_at, renewal)

    def renew(self, term: Term) -> Steps[Term]:
        """Renew ``term``, and return it with its new deadline. Raises LeaseLost."""
        renewal, sent_at = yield from self._renew(term.key)
        return term.extend(sent_at, renewal)

    def _renew(self, proof: Proof, **options: Any) -> Steps[tuple[Renewal, float]]:
        request = Request("PUT", "/leases/renew", proof.item)
        answer: Answer = yield from self.transport.sending(request, **options)
        if answer.status in (404, 409):
            raise LeaseLost(proof.resource, reason_of(proof.resource, answer.message))
        if answer.status != 201:
            raise RequestRefused(answer.status, answer.message)
        return renewal_of(answer.data), answer.sent_at

    def renew_many(self, proofs: Sequence[Proof], timeout: float | None = None) -> Steps[Renewals]:
        """Renew many leases. Return those that are renewed and those that are lost; a lease that is
        in neither list was locked.

        Args:
            proofs: The proofs of their grants.
            timeout: Seconds until all must be answered; if it is set, no request is sent twice.
        """
        portions = in_portions((each.item for each in proofs), MAX_RENEWED, MAX_RENEWAL_BODY)

        def ask(portion: list[bytes], timeout: float | None) -> Request:
            body = batch_of("leases", portion)
            return Request("PUT", "/leases/renew/batch", body, timeout=timeout)

        def note(found: Renewals, proof: Proof, result: Any) -> None:
            status = checked_field(result, "status", int)
            if status == 201:
                found.renewed[proof] = renewal_of(result.get("lease"))
            else:
                text = refusal_of(result, status)
                found.lost[proof] = reason_of(proof.resource, text)

        return renewing(self.transport, proofs, portions, ask, note, timeout)

    def release(self, term: Term) -> Steps[None]:
        """Release ``term``. A second call changes nothing. Raises LeaseLost."""
        answer: Answer = yield from self.transport.sending(_releasing(term.key))
        if answer.status in (404, 409):
            raise LeaseLost(term.resource, reason_of(term.resource, answer.message))
        if answer.status != 201:
            raise RequestRefused(answer.status, answer.message)

    def get(self, resource: str) -> Steps[dict[str, Any] | None]:
        """Return the lease of ``resource`` as the API shows it; None: nobody has ever held it."""
        name = quote(check_name(resource, "resource"), safe="")
        answer: Answer = yield from self.transport.sending(
            Request("GET", f"/leases/named?resource={name}")
        )
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise RequestRefused(answer.status, answer.message)
        return answer.data

    def active(self) -> Steps[list[Any]]:
        """Return the named leases that are held, as the API shows them."""
        found: list[Any] = []
        following: Any = ""
        while following is not None:
            page = urlencode({"limit": LONGEST_PAGE, "cursor": following})
            answer: Answer = yield from self.transport.sending(
                Request("GET", f"/leases/active?{page}")
            )
            if answer.status != 200:
                raise RequestRefused(answer.status, answer.message)
            for each in answer.value("leases", list):
                if isinstance(checked_field(each, "id", int, str), int):  # others are of rows
                    found.append(each)
            following = answer.data.get("next")
        return found

    def revoke(self, resource: str, reason: str) -> Steps[bool]:
        """Take the lease of ``resource`` from its holder, as an operator. Returns False if nobody
        holds it. The request is sent once: after ServiceUnavailable, it may have been served."""
        lease = yield from self.take_back(resource, reason)
        return lease is not None

    def take_back(self, resource: str, reason: str) -> Steps[dict[str, Any] | None]:
        """``revoke`` the lease, and return it as the API shows it afterwards; None if nobody holds
        it."""
        lease = yield from self.get(resource)
        if lease is None:
            return None
        key = checked_field(lease, "id", int)
        request = Request("PUT", f"/leases/{key}/revoke", {"reason": reason})
        # Sent once: a second request might revoke the lease of the next holder.
        answer: Answer = yield from self.transport.sending(request, patience=0.0)
        if answer.status == 200:
            return answer.data
        if answer.status in (404, 409):
            return None
        raise RequestRefused(answer.status, answer.message)


def wait_allowed(refusal: RequestRefused) -> float | None:
    """Return the longest wait, in seconds, that the service allows; None if ``refusal`` has another
    reason."""
    found = _WAIT_ALLOWED.search(str(refusal))
    return None if refusal.status != 400 or found is None else float(found[1])


def term_of(answer: Answer) -> Term:
    """Return the term in ``answer``. Raises InvalidAnswer."""
    lease_key = answer.value("lease_key", str)
    renewal = renewal_of(answer.data)
    grant_id = grant_id_of(lease_key)
    resource, holder = answer.value("resource", str), answer.value("holder", str)
    token = answer.value("fencing_token", int)
    return Term(
        key=Proof(resource, lease_key),
        grant_id=grant_id,
        fencing_token=token,
        holder=holder,
        resource=resource,
        ttl=checked_seconds(answer.data, "ttl"),
        remaining=renewal.remaining,
        sent_at=answer.sent_at,
        expires_at=renewal.expires_at,
        row=ServiceLease(resource, holder, token, grant_id, renewal.expires_at, lease_key),
    )


def grant_id_of(lease_key: str) -> uuid.UUID:
    """Return an id of a grant for this process: the service does not disclose its own id."""
    digest = blake2b(lease_key.encode(errors="replace"), digest_size=16).digest()
    return uuid.UUID(int=int.from_bytes(digest, "big"))


def renewal_of(data: Any) -> Renewal:
    """Return the renewal in the fields of an answer. Raises InvalidAnswer."""
    return Renewal(
        expires_at=moment_of(checked_field(data, "expires_at", str)),
        remaining=checked_seconds(data, "remaining"),
        yield_to=checked_field(data, "yield_to", str),
        is_last=checked_field(data, "is_last", bool),
    )


def moment_of(text: str) -> datetime:
    """Return a time of an answer. Raises InvalidAnswer."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidAnswer(f"{text[:50]!r} in an answer is no time.") from error
    if moment.tzinfo is None:
        raise InvalidAnswer(f"{text[:50]!r} in an answer has no time zone.")
    return moment


def results_of(answer: Answer, count: int) -> Iterable[Any]:
    """Return the results of a batch. Raises InvalidAnswer if they are not ``count``."""
    results: list[Any] = answer.value("results", list)
    if len(results) != count:
        raise InvalidAnswer(f"The answer has {len(results)} results, not {count}.")
    return results


def renewing(
    transport: Transport,
    proofs: Sequence[Proof],
    portions: Iterable[list[bytes]],
    ask: Callable[[list[bytes], float | None], Request],
    note: Callable[[Renewals, Proof, Any], None],
    timeout: float | None,
) -> Steps[Renewals]:
    """Renew with one request for each portion. If a request fails, the leases that are not answered
    yet are in neither list.

    Args:
        transport: Sends the requests.
        proofs: The proofs of the grants.
        portions: The items that identify the grants, in the same order.
        ask: Returns the request for a portion, to be answered within that many seconds.
        note: Notes the result of one item.
        timeout: Seconds until all must be answered; if it is set, no request is sent twice.
    """
    found, left = Renewals(), list(proofs)
    until = None if timeout is None else clock() + timeout
    patience = None if timeout is None else 0.0
    for portion in portions:
        batch, left = left[: len(portion)], left[len(portion) :]
        rest = None if until is None else until - clock()
        if rest is not None and rest <= 0:
            break
        try:
            answer: Answer = yield from transport.sending(ask(portion, rest), patience=patience)
            if answer.status != 200:
                raise RequestRefused(answer.status, answer.message)
            for proof, result in zip(batch, results_of(answer, len(batch)), strict=True):
                note(found, proof, result)
        except ServiceError:
            if not found.renewed:
                raise
            break
    return found


def refusal_of(result: Any, status: int) -> str:
    """Return the text with which one item of a batch was refused. Raises RequestRefused for an
    error of the service, which says nothing about the item."""
    text = str(result.get("error") or result.get("message") or "")
    if status >= 500:
        raise RequestRefused(status, text)
    return text


def reason_of(resource: str, message: str) -> str:
    """Return the reason why a lease was lost from the ``message`` of the service."""
    return message.removeprefix(f"{resource} was lost: ").rstrip(".") or "no reason given"


def _releasing(proof: Proof) -> Request:
    return Request("DELETE", "/leases/release", proof.item)
