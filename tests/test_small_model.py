"""Leases in the small: every order of what two and three clients, a network and time can do.

A message is in the network from when it was sent, and may arrive at any later moment, again and
again, or never: so it is late, repeated and lost by one rule. A client that does nothing is one
that was suspended or has died. The search goes breadth first: its counterexample is the shortest.

Of the conditions of the protocol none can be spared: without any one there is a counterexample. The
verbs themselves are tried against a model in ``leasing/test_model.py`` and ``tasks/querysets``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

#: The time at which the world ends.
LAST = 4


class Client(NamedTuple):
    """What a client knows: its grant, 0 for none, and until when it trusts it."""

    grant: int = 0
    token: int = 0
    until: int = 0
    is_done: bool = False


class State(NamedTuple):
    """The world at a moment. The row is pruned while its token is -1."""

    clients: tuple[Client, ...]
    ttl: int
    now: int = 0
    grant: int = 0
    token: int = 0
    expires_at: int = 0
    fence: int = 0
    #: The greatest token that was granted, and that was written.
    granted: int = 0
    written: int = 0
    #: Requests (verb, client, time of sending) and answers (client, token, time of the request).
    network: frozenset[tuple[str, int, int]] = frozenset()
    answers: frozenset[tuple[int, int, int]] = frozenset()
    #: Grants that were seen to have ended.
    over: frozenset[int] = frozenset()
    is_revoked: bool = False

    @property
    def is_held(self) -> bool:
        return self.expires_at > self.now


class Violation(Exception):
    """A promise that was broken."""


def steps(state: State, without: str) -> Iterator[tuple[str, State]]:
    """Return what may happen next, by its name, with one condition left out."""
    now = state.now
    if now < LAST:
        yield f"{now + 1} o'clock", state._replace(now=now + 1)
    if state.token > 0 and not state.is_revoked and state.is_held:
        yield "revoke", state._replace(token=state.token + 1, expires_at=now, is_revoked=True)
    if state.token > 0 and state.expires_at < now:
        yield "prune", state._replace(grant=0, token=-1, expires_at=0)
    for number, client in enumerate(state.clients, 1):
        yield from sending(state, number, client, without)
    for message in state.network:
        yield f"{message} arrives", arrived(state, *message, without)
    for number, token, sent_at in state.answers:
        client = state.clients[number - 1]
        since = now if without == "trust counts from the request" else sent_at
        if not client.is_done and since + state.ttl > client.until:
            knows = Client(number, token, since + state.ttl)
            yield f"{number} hears of token {token}", with_client(state, number, knows)


def sending(state: State, number: int, client: Client, without: str) -> Iterator[tuple[str, State]]:
    """Return what ``client`` may do by itself."""
    verbs = ["renew", "write", "release"] if client.until > state.now else []
    if not client.grant and not client.is_done:
        verbs = ["acquire"]
    for verb in verbs:
        sent = (verb, number, client.token if verb == "write" else state.now)
        if sent in state.network:
            continue
        then = state._replace(network=state.network | {sent})
        if verb == "release":
            then = with_client(then, number, client._replace(until=0, is_done=True))
        if verb == "renew" and without == "no answer is no renewal":
            then = with_client(then, number, client._replace(until=state.now + state.ttl))
        yield f"{number} sends {verb}", then


def arrived(state: State, verb: str, number: int, sent: int, without: str) -> State:
    """Return the state after the server did what a message asks for, if its conditions hold."""
    is_mine = state.grant == number or without == f"{verb}: of this grant"
    is_live = state.is_held or without == f"{verb}: before the deadline"
    until = state.now + state.ttl
    match verb:
        case "acquire":
            is_free = not state.is_held or without == "acquire: only what is free"
            is_new = state.grant != number or without == "acquire: once a request"
            # Behind another's grant a repetition is a new grant, which has no number here.
            if is_free and is_new and number not in state.over - {state.grant}:
                return granted(state, number, sent, without)
        case "renew" if is_mine and is_live:
            answers = state.answers | {(number, state.token, sent)}
            return state._replace(expires_at=until, answers=answers)
        case "release" if is_mine and state.is_held:
            return state._replace(expires_at=state.now)
        case "write" if sent >= state.fence or without == "write: no older token":
            if sent < state.written:
                raise Violation("a stale write was accepted")
            return state._replace(fence=max(sent, state.fence), written=sent)
    return state


def granted(state: State, number: int, sent: int, without: str) -> State:
    before = 0 if state.token < 0 else state.token
    clock = 0 if without == "a token is no less than the clock" else 10 * state.now
    token = max(before + (without != "a token rises with each grant"), clock)
    if token <= state.granted:
        raise Violation("a token was granted twice, or a lower one")
    answers = state.answers | {(number, token, sent)}
    row = {"grant": number, "token": token, "expires_at": state.now + state.ttl}
    return state._replace(**row, granted=token, answers=answers)  # type: ignore[arg-type]


def with_client(state: State, number: int, client: Client) -> State:
    clients = (*state.clients[: number - 1], client, *state.clients[number:])
    return state._replace(clients=clients)


def judged(state: State) -> State:
    """Return ``state`` with the grants that are over. Raises Violation."""
    if state.is_held and state.grant in state.over:
        raise Violation("a grant came back after its end")
    # Who was revoked may trust its lease a while: the fence is what refuses its writes.
    if not state.is_revoked and sum(each.until > state.now for each in state.clients) > 1:
        raise Violation("two clients believe that they hold it")
    ended = state.grant and not state.is_held
    return state._replace(over=state.over | {state.grant}) if ended else state


def search(clients: int, ttl: int, depth: int, without: str = "") -> tuple[int, list[str]]:
    """Return the number of states within ``depth`` steps, and the way to a violation, if any. The
    first of the clients holds the lease already."""
    others = (Client(),) * (clients - 1)
    start = State((Client(1, 1, ttl), *others), ttl, 0, 1, 1, ttl, granted=1)
    ways: dict[State, tuple[State, str] | None] = {start: None}
    level = [start]
    for _ in range(depth):
        reached = []
        for state in level:
            try:
                for name, then in steps(state, without):
                    after = judged(then)
                    if after not in ways:
                        ways[after] = (state, name)
                        reached.append(after)
            except Violation as error:
                return len(ways), [*way_to(state, ways), str(error)]
        level = reached
    return len(ways), []


def way_to(state: State, ways: dict[State, tuple[State, str] | None]) -> list[str]:
    before = ways[state]
    return [] if before is None else [*way_to(before[0], ways), before[1]]


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "ttl", "depth"), [(2, 2, 10), (3, 1, 8)])
def test_the_conditions_together_keep_every_promise(clients: int, ttl: int, depth: int) -> None:
    states, counterexample = search(clients, ttl, depth)

    assert (counterexample, states > 10_000) == ([], True), states


@pytest.mark.parametrize(
    "without",
    [
        *("acquire: only what is free", "acquire: once a request", "renew: of this grant"),
        *("renew: before the deadline", "write: no older token"),
        pytest.param("release: of this grant", marks=pytest.mark.slow),
        *("a token rises with each grant", "a token is no less than the clock"),
        *("trust counts from the request", "no answer is no renewal"),
    ],
)
def test_without_any_one_condition_there_is_a_counterexample(without: str) -> None:
    # What the second lost by it, a third has to get.
    clients, ttl = (3, 1) if without == "release: of this grant" else (2, 2)

    _, counterexample = search(clients, ttl, 11, without)

    assert counterexample
