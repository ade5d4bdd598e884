"""Leases that a Redis or a Valkey keeps.

    LEASING = {"STORES": {"redis": {
        "BACKEND": "leasing.stores.redis.RedisStore",
        "URL": "rediss://:password@redis.example.com/0",
    }}}

What happens when
    the server is away       renewals fail and are tried again, with pauses; a hold lives as long as
                             its trust. What acquires is refused with StoreError
    an answer is lost        the request is sent once more. The id of a grant is made here, so a
                             second request for it finds it
    the server restarts      it has what it wrote to its append-only file. One that has none of it,
                             or writes none, grants nothing until all that it may have granted has
                             ended, or it is admitted: see ``leasing.stores.redis_scripts``
    clocks differ            nothing: the server tells the seconds that are left. A clock of the
                             server that is set ahead ends leases early, though
    the network hangs        the renewing thread leaves the request behind at its limit
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, islice
from typing import Any, Final, NamedTuple

try:
    import redis
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "RedisStore needs redis-py: pip install 'django-leasing[redis]'.", name=error.name
    ) from error

from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from leasing.conf import is_number, leasing_settings
from leasing.exceptions import LeaseHeld, LeaseLost, StoreError
from leasing.holding.errand import RenewsApart
from leasing.holding.term import Term
from leasing.store import Incumbent, Reason, Renewal, Renewals, Why
from leasing.stores import redis_scripts as scripts
from leasing.stores.base import BaseStore
from leasing.validation.terms import Terms

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
#: The oldest version whose scripts may read the clock and write.
OLDEST: Final = 7
#: The lease by which a server is examined.
EXAMINED: Final = "leasing.check"
#: Names that are read by one request.
PAGE: Final = 500
#: Names are no patterns.
ESCAPED: Final = str.maketrans({each: f"\\{each}" for each in "*?[]\\"})

#: Why a term is over, by the word of the scripts.
OVER: Final[Mapping[str, Reason]] = {
    "gone": Reason(Why.GONE, "Redis does not know it: it was emptied"),
    "taken": Reason(Why.TAKEN, "somebody else has taken it"),
    "expired": Reason(Why.EXPIRED, "its deadline has passed by the clock of Redis"),
    "revoked": Reason(Why.REVOKED, "it was revoked"),
    "released": Reason(Why.ENDED, "it was released before"),
}


class WrongServer(errors.RedisError):
    """The server is none that may keep leases."""


#: What an error means, the first that fits.
SENTENCES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (WrongServer, "{}"),
    (errors.AuthenticationError, "refuses the user or the password of its URL."),
    (errors.ReadOnlyError, "is a read-only replica. Its URL must be that of the primary."),
    (errors.OutOfMemoryError, "is full: it has reached its maxmemory."),
    (errors.ConnectionError, "does not answer: {}"),
    (errors.TimeoutError, "does not answer: {}"),
    (errors.RedisError, "refuses the request: {}"),
)


class Answer(NamedTuple):
    """The answer of a server about a lease. Times are microseconds of its clock."""

    now: int
    token: int
    #: The grant that is held, or has expired; empty: neither.
    grant: str
    #: Empty if nobody holds it.
    holder: str
    ttl: int
    ends: int

    @property
    def incumbent(self) -> Incumbent | None:
        return Incumbent(self.holder, self.token, moment(self.ends)) if self.holder else None


class RedisStore(RenewsApart, BaseStore):
    """Keeps leases in one Redis, or one Valkey. One for all threads of a process.

    Args:
        url: The address: redis://, rediss:// or unix://, as redis-py takes it.
        prefix: The beginning of its keys. Stores of other prefixes know nothing of each other.
        timeout: Seconds until a request must be answered, which is sent once more if it is not.

    Raises ValueError for an address that is none, and for other options that are impossible.
    """

    #: False for a member of a majority: what it kept over a restart may not be all.
    remembers_restarts = True

    def __init__(self, *, url: str, prefix: str = "leasing:", timeout: float = 5.0) -> None:
        if not is_number(timeout) or timeout <= 0:
            raise ValueError("the TIMEOUT must be a number of seconds.")
        if not isinstance(prefix, str) or not prefix.isprintable():
            raise ValueError("the PREFIX must be printable text.")
        self.timeout, self.prefix = timeout, prefix
        #: The run of the server that was connected to last.
        self.run_id = ""
        self._pool: Any = redis.ConnectionPool.from_url(
            url,
            decode_responses=True,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 1),
            redis_connect_func=self._connected,
        )
        self._client: Any = redis.Redis(connection_pool=self._pool)
        self._script = cache(self._client.register_script)  # which computes its checksum

    def __repr__(self) -> str:
        return f"Redis at {self.address}"

    @property
    def address(self) -> str:
        """Its address, without a password."""
        of = self._pool.connection_kwargs
        where = of.get("path") or f"{of.get('host', 'localhost')}:{of.get('port', 6379)}"
        return f"{where}/{of.get('db', 0)}"

    def disconnect(self) -> None:
        self._pool.disconnect()

    # The verbs

    def renew_here(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        now, *answers = self.run(scripts.RENEW, grants, *map(str, grants.values()))
        found = Renewals()
        for resource, answer, ends in zip(grants, answers[::2], answers[1::2], strict=True):
            if answer == "renewed":
                found.renewed[resource] = Renewal(moment(ends), (ends - now) / 1e6)
            elif answer in OVER:
                found.lost[resource] = OVER[answer]
        return found

    def grant(
        self, resource: str, terms: Terms, grant_id: uuid.UUID | None = None, token: int = 0
    ) -> Term:
        """Grant ``resource``. Raises LeaseHeld, also if the token is not greater than its last:
        somebody else is acquiring it.

        Args:
            resource: The name of the resource.
            terms: The terms of the grant.
            grant_id: The id of the grant; None: a new one. If it was made already, it is found.
            token: Its token; 0: the next one.
        """
        grant_id = grant_id or uuid.uuid4()
        asked = str(grant_id), terms.holder, terms.ttl // MICROSECOND, token
        match self.run(scripts.GRANT, [resource], *asked):
            case "granted", granted, ends, now:
                return Term(
                    key=resource,
                    grant_id=grant_id,
                    fencing_token=granted,
                    holder=terms.holder,
                    resource=resource,
                    ttl=terms.ttl.total_seconds(),
                    remaining=(ends - now) / 1e6,
                    expires_at=moment(ends),
                )
            case "held", holder, ends, now:
                raise LeaseHeld(resource, holder, moment(ends), (ends - now) / 1e6)
            case "forgetful", until:
                raise StoreError(
                    f"{self} is new, or was emptied or restarted, and may have forgotten leases. "
                    f"It grants none until {moment(until):%Y-%m-%d %H:%M:%S} UTC, when all have "
                    "ended, or until an operator admits it: manage.py leases stores admit."
                )
            case ["behind"]:
                raise LeaseHeld(resource)
            case over:
                raise StoreError(f"The answer of {self} came too late: {OVER[over[0]]}.")

    def give_back(self, term: Term) -> bool:
        return self.end(term.key, term.grant_id)

    def end(self, resource: str, grant_id: uuid.UUID) -> bool:
        """End that grant of ``resource``. Return True. Raises LeaseLost."""
        over = self.run(scripts.RELEASE, [resource], str(grant_id))
        if over not in ("", "released"):
            raise LeaseLost(resource, OVER[over])
        return True  # the answer to an earlier request may have been lost

    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        return self.revoke_here(resource).incumbent

    def revoke_here(self, resource: str) -> Answer:
        """End the grant of ``resource`` and raise its token. Return both as they are then."""
        return Answer(*self.run(scripts.REVOKE, [resource]))

    def current(self, resource: str) -> Incumbent | None:
        return self.read([resource])[resource].incumbent

    def read(self, resources: Sequence[str]) -> dict[str, Answer]:
        """Return what the server knows of each."""
        answers = self.run(scripts.READ, resources)
        return {name: Answer(*each) for name, each in zip(resources, answers, strict=True)}

    # For operators

    def leases(self) -> Iterator[tuple[str, Answer]]:
        """Yield the names that the server remembers, in no order, with what it knows of each. Those
        that change meanwhile may be missing."""
        beginning = self._key("")
        with self._errors():
            keys = self._client.scan_iter(f"{beginning.translate(ESCAPED)}*", PAGE)
            names = (key.removeprefix(beginning) for key in keys)
            while page := list(islice(names, PAGE)):
                yield from self.read(page).items()

    def held(self) -> dict[str, Incumbent]:
        """Return who holds what, by name."""
        return {name: each.incumbent for name, each in self.leases() if each.incumbent}

    def examine(self) -> list[str]:
        """Grant a lease and end it. Return what of the server's set-up may cost leases, as ends of
        sentences. Raises StoreError if it grants none."""
        with suppress(LeaseHeld):  # others examine it, too
            self.give_back(self.grant(EXAMINED, Terms.check(holder="check")))
        if not self.remembers_restarts:
            return []
        with self._errors():
            told = self._client.info()
            try:
                sync = self._client.config_get("appendfsync")["appendfsync"]
            except errors.ResponseError:
                sync = "unknown, for its user may not ask"
        found = []
        if not told["aof_enabled"]:
            found.append(
                "has no append-only file: a restart forgets all leases, and it then grants none "
                "for MAX_TTL."
            )
        elif sync != "always":
            found.append(
                f"has an append-only file whose appendfsync is not always ({sync}): a power cut "
                "forgets its latest grants, and two may hold a lease."
            )
        if told["connected_slaves"]:
            found.append(
                "has replicas: if one is promoted, grants that had not reached it are forgotten, "
                "and two may hold a lease."
            )
        return found

    def remembers_from(self) -> datetime | None:
        """Return the moment until which the server grants nothing, since it may have forgotten
        leases; None if it has not."""
        now, since = self.run(scripts.MEMORY)
        return moment(since) if since > now else None

    def admit(self, is_nothing_held: bool) -> list[str]:
        """Have the server grant at once, though it may have forgotten leases. Return its address in
        a list; an empty one if it has forgotten nothing. Raises StoreError.

        Args:
            is_nothing_held: True if the operator says that nobody holds a lease of it.
        """
        if self.remembers_from() is None:
            return []
        if not is_nothing_held:
            raise StoreError(
                f"{self} may have forgotten leases, and nobody else knows them. Stop every process "
                "that holds one, and confirm that."
            )
        self.learn({})
        return [self.address]

    def learn(self, known: Mapping[str, Answer]) -> None:
        """Have the server grant from now on, with what other servers know."""
        found = iter(known.items())
        while page := dict(islice(found, PAGE)):
            facts = (
                (each.token, each.grant, each.holder, each.ttl, max(each.ends - each.now, 0))
                for each in page.values()
            )
            self.run(scripts.COPY, page, *chain.from_iterable(facts))
        self.run(scripts.ADMIT)

    def _key(self, resource: str) -> str:
        return f"{self.prefix}lease:{resource}"

    def run(self, script: str, resources: Iterable[str] = (), *args: Any) -> Any:
        """Return what ``script`` answers about ``resources``. Raises StoreError."""
        keys = [f"{self.prefix}mark", *map(self._key, resources)]
        restarts = "remembers" if self.remembers_restarts else "forgets"
        longest = int(leasing_settings.MAX_TTL * 1e6)
        with self._errors():
            return self._script(script)(keys, [longest, restarts, *args])

    # The server

    def _connected(self, connection: Any) -> None:
        """Refuse a server that may lose leases, before the first request over each connection."""
        connection.on_connect()
        connection.send_command("INFO")
        told = dict(
            line.split(":", 1) for line in connection.read_response().splitlines() if ":" in line
        )
        if int(told["redis_version"].partition(".")[0]) < OLDEST:
            raise WrongServer(f"is version {told['redis_version']}, and must be {OLDEST} or later.")
        mode = told.get("redis_mode") or told["server_mode"]  # a Valkey's
        if mode != "standalone":
            raise WrongServer(
                f"is a {mode}, where a lease may be lost in a failover. Leases are "
                "kept by one server, or by a majority of several: MajorityStore."
            )
        if told["role"] != "master":
            raise WrongServer("is a replica. Its URL must be that of the primary.")
        if told["maxmemory"] != "0" and told["maxmemory_policy"] != "noeviction":
            raise WrongServer(
                f"evicts keys when it is full (maxmemory-policy {told['maxmemory_policy']}), and "
                "leases would be among them. Set noeviction, or give leases a server of their own."
            )
        self.run_id = told["run_id"]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise StoreError for errors of redis-py."""
        try:
            yield
        except errors.RedisError as error:
            said = next(sentence for kind, sentence in SENTENCES if isinstance(error, kind))
            raise StoreError(f"{self} {said.format(error)}") from error


def moment(microseconds: int) -> datetime:
    """Return the moment that a server calls so."""
    return EPOCH + timedelta(microseconds=microseconds)
