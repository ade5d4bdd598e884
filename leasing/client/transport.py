"""Requests to a service: sent, repeated where that is safe, and their answers checked.

A request may be sent twice without a second effect, because of its lease_key or its
Idempotency-Key. (A revocation has neither, and is sent once.) So a request is repeated, after
pauses with jitter, when the service could not be reached, when no answer came (the request may have
been served, and a proxy may have lost the answer), and when the status was 429, 502, 503 or 504.
Nothing else is repeated. Redirects are not followed: the token goes only to the configured address.

What an answer says about time counts from ``sent_at``, the moment on this process's own clock
before the request was sent; the wall clocks of both ends do not matter.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

import httpx

from leasing.client.address import checked_token, checked_url
from leasing.client.body import Chunks
from leasing.client.exceptions import AccessDenied, InvalidAnswer, ServiceUnavailable
from leasing.client.messages import Answer, Request, encoded, object_of, seconds_of
from leasing.runtime.aio import Steps, in_thread, run_later
from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log
from leasing.runtime.terminal import plain
from leasing.validation.names import is_unencrypted
from leasing.waiting.waiter import Rest, pauses

#: The longest pause between two tries, in seconds, unless the service asks for a longer one.
LONGEST_PAUSE: Final = 5.0
#: Statuses after which a request is sent again.
BUSY: Final = frozenset({429, 502, 503, 504})
#: Characters of an unexpected answer that an error quotes.
QUOTED: Final = 200

#: Returns the token for the next request; it may have been renewed since the last.
Token = str | Callable[[], str]
#: Called with a transport, and an answer that nobody waits for.
Undo = Callable[["Transport", Answer], object]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One try of a request, for a driver: a thread or an event loop."""

    transport: Transport
    request: Request
    #: Called with a transport and the answer if the waiting coroutine was cancelled.
    undo: Undo | None

    def wait(self) -> Answer:
        """Send it from this thread, and return the answer."""
        return self.transport.exchange(self.request)

    async def await_(self) -> Answer:
        """``wait``, for an event loop."""
        try:
            return await self.transport.aexchange(self.request)
        except asyncio.CancelledError:
            if self.undo is not None:
                run_later(self._undo_unanswered, waits=bool(self.request.wait))
            raise

    def _undo_unanswered(self) -> None:
        # The same request, sent again, finds the grant of the first, or gets that grant now. A twin
        # sends it, because the client's connections may be closed by then.
        assert self.undo is not None
        with closing(self.transport.twin()) as transport:
            self.undo(transport, transport.exchange(self.request))


class Transport:
    """Sends requests to one service, from threads; coroutines send by threads, too.

    Args:
        url: The address of the API: ``https://leases.example.com/api``.
        token: The token, or a function that returns it for each request; None: none. A request
            for which the function fails counts as not answered.
        timeout: Seconds until one try must be answered.
        patience: Seconds for which a request is tried again while the service does not answer.
        verify: False accepts any certificate; an SSLContext decides which ones are accepted.
        transport: Sends for httpx, in tests.
    """

    _client: httpx.Client | None

    def __init__(
        self,
        url: str,
        token: Token | None = None,
        *,
        timeout: float = 10.0,
        patience: float = 15.0,
        verify: bool | ssl.SSLContext = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = checked_url(url)
        if isinstance(token, str):
            checked_token(token)
        if token is not None and is_unencrypted(self.url) and self.url not in _warned_of:
            _warned_of.add(self.url)
            log.token_unencrypted(url=self.url)
        self.timeout = timeout
        self.patience = patience
        self._token = token
        self._verify = verify
        self._transport = transport
        #: The number of requests that the service has answered, and not with an error of its own.
        self.answered = 0
        #: True after the log has reported that the service is unavailable, until it answers.
        self._is_away = False
        self.forget()
        _all.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    # For steps

    def sending(
        self,
        request: Request,
        *,
        patience: float | None = None,
        stopping: threading.Event | None = None,
        undo: Undo | None = None,
    ) -> Steps[Answer]:
        """Return the steps that send ``request``, repeatedly if needed, and produce its answer.

        Args:
            request: The request.
            patience: Seconds for which it is tried again; None: those of the transport.
            stopping: An event that ends the tries.
            undo: Called with a transport and the answer if the waiting coroutine was cancelled.

        Raises ServiceUnavailable, InvalidAnswer, AccessDenied.
        """
        until = clock() + (self.patience if patience is None else patience)
        for pause in pauses(longest=LONGEST_PAUSE):
            try:
                answer: Answer = yield Exchange(self, request, undo)
                if answer.status not in BUSY:
                    return answer
                problem = ServiceUnavailable(
                    f"{self.url} is not available (status {answer.status}): {answer.message}"
                )
                if answer.retry_after:
                    pause = answer.pause * random.uniform(1.0, 1.25)
            except ServiceUnavailable as error:
                if error.is_permanent:
                    raise
                problem = error
            if clock() + pause > until or (stopping is not None and stopping.is_set()):
                raise problem
            if not self._is_away:  # logged at the first failure: the address may be wrong
                self._is_away = True
                log.service_away(error=problem, seconds=until - clock())
            yield Rest(pause, stopping)
        raise AssertionError("the pauses have no end")

    # One try

    def exchange(self, request: Request) -> Answer:
        """Send ``request`` once and return the answer, a JSON object, or one of status BUSY. Raises
        as ``sending`` does."""
        sent_at = clock()
        deadline = sent_at + self._allowed(request)
        try:
            with self.http().stream(**self._arguments(request)) as response:
                chunks = Chunks(response, deadline)
                for chunk in response.iter_bytes():
                    chunks.add(chunk)
        except httpx.HTTPError as error:
            raise self._unreachable(request, error) from error
        return self._checked(request, response, chunks.body, sent_at)

    async def aexchange(self, request: Request) -> Answer:
        """``exchange``, for an event loop."""
        return await in_thread(self.exchange, request, waits=bool(request.wait))

    def twin(self) -> Transport:
        """Return a transport to the same service, with connections of its own, for threads."""
        return Transport(
            self.url,
            self._token,
            timeout=self.timeout,
            patience=self.patience,
            verify=self._verify,
            transport=self._transport,
        )

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        with self.opening:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def forget(self) -> None:
        """Start with no connections and a new lock. In a forked child, the connections are the
        parent's, and no thread of the child would release a lock that the parent held."""
        self.opening = threading.Lock()
        self._client = None

    def http(self) -> httpx.Client:
        client = self._client
        if client is None:
            with self.opening:
                client = self._client
                if client is None:
                    client = httpx.Client(transport=self._transport, **self._options())
                    self._client = client
        return client

    def _options(self) -> dict[str, Any]:
        # The number of connections is not limited: no request waits for another one's connection.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        return {"verify": self._verify, "limits": limits, "follow_redirects": False}

    def _allowed(self, request: Request) -> float:
        timeout = self.timeout if request.timeout is None else request.timeout
        return timeout + request.wait

    def _arguments(self, request: Request) -> dict[str, Any]:
        headers = {"Accept": "application/json", "User-Agent": "django-leasing-client"}
        token = self._read_token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if request.key is not None:
            headers["Idempotency-Key"] = str(request.key)
        content = None
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            body = request.body
            content = body if isinstance(body, bytes) else encoded(body)
        allowed = self._allowed(request)
        return {
            "method": request.method,
            "url": self.url + request.path,
            "headers": headers,
            "content": content,
            "timeout": httpx.Timeout(allowed, connect=min(allowed, self.timeout)),
        }

    def _read_token(self) -> str | None:
        if not callable(self._token):
            return self._token
        try:
            return checked_token(self._token())
        except Exception as error:  # the token may be about to be replaced: a retry reads it again
            what = plain(f"{type(error).__name__}: {error}")
            raise ServiceUnavailable(f"There is no token for {self.url} ({what})") from error

    def _unreachable(self, request: Request, error: Exception) -> ServiceUnavailable:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if (refusal := _certificate_refusal(error)) is not None:
            problem = ServiceUnavailable(f"The certificate of {self.url} is refused: {refusal}")
            problem.is_permanent = True
            return problem
        return ServiceUnavailable(
            f"No answer from {self.url} to {request.method} {request.path} ({plain(what)})"
        )

    def _checked(
        self, request: Request, response: httpx.Response, body: bytes, sent_at: float
    ) -> Answer:
        status = response.status_code
        if 300 <= status < 400:
            target = plain(response.headers.get("Location", "nowhere"))[:QUOTED]
            raise InvalidAnswer(
                f"{self.url}{request.path} redirects to {target}. Redirects are not followed: "
                "configure the address of the API itself."
            )
        data = object_of(body)
        if data is None and status == 413:  # said by a proxy
            data = {"error": "The request is too large for a proxy before the service."}
        retry_after = seconds_of(response.headers.get("Retry-After", ""))
        if status in BUSY:  # a proxy may say so, in HTML
            return Answer(status, data or {}, sent_at, retry_after, request=request)
        if status >= 500:
            problem = ServiceUnavailable(
                f"{self.url} failed to serve {request.method} {request.path} (status {status})"
            )
            problem.is_permanent, problem.status = True, status
            raise problem
        self.answered, self._is_away = self.answered + 1, False
        if data is None:
            raise InvalidAnswer(
                f"{self.url}{request.path} answered with status {status} and no JSON object, so "
                f"this is not the address of the API: {_quoted(body)}"
            )
        answer = Answer(status, data, sent_at, retry_after, request=request)
        if status in (401, 403):
            raise AccessDenied(status, f"{self.url} denies access: {answer.message}")
        if status == 405 or (status == 404 and NO_ADDRESS in answer.message):
            raise InvalidAnswer(
                f"{self.url} has no {request.method} {request.path}: it is none of this API, or "
                "one of another version."
            )
        return answer


#: The addresses for which the log has warned that the token is sent unencrypted.
_warned_of: set[str] = set()
#: Every transport of this process.
_all: WeakSet[Transport] = WeakSet()


def _forget_all() -> None:
    for transport in list(_all):
        transport.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)

#: The answer of the API to a path that it does not have.
NO_ADDRESS: Final = "There is no such address"


class AsyncTransport(Transport):
    """A transport whose coroutines send without threads.

    Args:
        async_transport: Sends for httpx in coroutines, in tests.

    Further arguments are those of ``Transport``.
    """

    def __init__(
        self,
        url: str,
        token: Token | None = None,
        *,
        async_transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        super().__init__(url, token, **options)
        self._async_transport = async_transport

    async def aexchange(self, request: Request) -> Answer:
        sent_at = clock()
        deadline = sent_at + self._allowed(request)
        try:
            async with self.async_http().stream(**self._arguments(request)) as response:
                chunks = Chunks(response, deadline)
                async for chunk in response.aiter_bytes():
                    chunks.add(chunk)
        except httpx.HTTPError as error:
            raise self._unreachable(request, error) from error
        return self._checked(request, response, chunks.body, sent_at)

    def forget(self) -> None:
        super().forget()
        self.async_clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    async def aclose(self) -> None:
        """``close``, and the connections of this event loop."""
        client = self.async_clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        self.close()

    def async_http(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self.async_clients.get(loop)
        if client is None:  # each loop has its own connections; those of closed loops are dropped
            client = httpx.AsyncClient(transport=self._async_transport, **self._options())
            open_ones = {at: of for at, of in self.async_clients.items() if not at.is_closed()}
            self.async_clients = {**open_ones, loop: client}
        return client


def _quoted(body: bytes) -> str:
    text = " ".join(body[: 4 * QUOTED].decode(errors="replace").split())
    return plain(text[:QUOTED]) or "(nothing)"


def _certificate_refusal(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None
