"""Leases that more than half of several independent Redis servers keep.

    LEASING = {"STORES": {"majority": {
        "BACKEND": "leasing.stores.majority.MajorityStore",
        "MEMBERS": ["redis://a.example.com/0", "redis://b.example.com/0", "redis://c.example.com/0"],
    }}}

Acquiring
    reads the last token and the clock of all members, and chooses a token above every last one. The
    members then grant it one after the other, and a member grants what is free and has a token
    above its last. Two majorities share a member, and that orders them. Of those who ask at once,
    the first at a member goes on. What fewer granted is given back.

Trust
    is what more than half still grant, counted from before the members were asked: the clock of a
    member is compared with itself alone. The token is above the clock of more than half, so that
    one which is far ahead does not draw it along. One whose clock jumps ahead finds all its grants
    expired: where another member still keeps the grant, it is not believed.

What happens when
    fewer than half are away    nothing
    more are                    nothing is granted, and holds live as long as their trust
    a member is late            the others are not kept waiting, and it is left out for a moment
    a member was emptied        it has no vote, since two might believe: see
    or restarted                ``leasing.stores.redis_scripts``. An operator admits it, with what
                                the others know
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from leasing.exceptions import LeaseError, LeaseHeld, LeaseLost, StoreError
from leasing.holding.errand import RenewsApart, send
from leasing.holding.term import Term
from leasing.runtime.clock import system_clock
from leasing.store import Incumbent, Renewal, Renewals
from leasing.stores.base import BaseStore
from leasing.stores.redis import Answer, RedisStore, moment
from leasing.validation.terms import Terms

Result = TypeVar("Result")

#: Seconds for which others are awaited once a majority has answered, and for which one that was
#: late is not asked.
PATIENCE: Final = 0.25
LEFT_OUT: Final = 1.0


class Member(RedisStore):
    """One of the servers. What it kept over a restart may not be all."""

    remembers_restarts = False


Call: TypeAlias = Callable[[Member], Result]


class MajorityStore(RenewsApart, BaseStore):
    """Keeps leases in an odd number of Redis servers. One for all threads of a process.

    Args:
        members: The addresses of the servers, three or more, each as that of a RedisStore.
        prefix: The beginning of the keys.
        timeout: Seconds until a member must answer.

    Raises ValueError for members that make no majority, and for other options that are impossible.
    """

    member_class: ClassVar[type[Member]] = Member

    def __init__(
        self, *, members: Sequence[str], prefix: str = "leasing:", timeout: float = 1.0
    ) -> None:
        if isinstance(members, str) or len(members) < 3 or len(members) % 2 == 0:
            raise ValueError("MEMBERS must be a list of servers of an odd number, three or more.")
        self.members = [
            self.member_class(url=url, prefix=prefix, timeout=timeout) for url in members
        ]
        addresses = [each.address for each in self.members]
        if twice := [each for each in addresses if addresses.count(each) > 1]:
            raise ValueError(f"MEMBERS has {twice[0]} twice.")
        self.timeout = timeout
        #: The number of members that decide.
        self.majority = len(members) // 2 + 1
        self._left_out: dict[Member, float] = {}

    def __repr__(self) -> str:
        return f"the majority of Redis at {', '.join(each.address for each in self.members)}"

    def disconnect(self) -> None:
        for each in self.members:
            each.disconnect()

    # The verbs

    def renew_here(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        answers = self._answers(lambda member: member.renew_here(grants, timeout), timeout)
        found = Renewals()
        for key in grants:
            renewed = [each.renewed[key] for each in answers.values() if key in each.renewed]
            lost = [each.lost[key] for each in answers.values() if key in each.lost]
            if len(renewed) >= self.majority:
                found.renewed[key] = Renewal(
                    self._agreed(each.expires_at for each in renewed),
                    self._agreed(each.remaining for each in renewed),
                )
            elif len(lost) >= self.majority:
                found.lost[key] = lost[0]
        return found

    def grant(self, resource: str, terms: Terms) -> Term:
        known = self._read(resource)
        # A grant that one member keeps is kept where it has expired: a clock may have jumped ahead.
        kept = {each.grant for each in known.values() if each.holder}
        if sum(each.grant not in kept for each in known.values()) < self.majority:
            held = self._incumbent(known.values())
            raise LeaseHeld(resource, *((held.holder, held.expires_at) if held else ()))
        last = max(each.token for each in known.values())
        token = max(last, self._agreed(each.now for each in known.values())) + 1
        asked = resource, terms, uuid.uuid4(), token
        granted: list[Term] = []
        refusals: list[LeaseError] = []
        for member in known:
            answer = self._ask(lambda each: each.grant(*asked), [member])[member]
            if isinstance(answer, Term):
                granted.append(answer)
            else:
                refusals.append(answer)
                if len(known) - len(refusals) < self.majority:
                    break
        if len(granted) >= self.majority:
            term = granted[0]
            term.remaining = self._agreed(each.remaining for each in granted)
            term.expires_at = self._agreed(each.expires_at for each in granted)
            return term
        # Also of those whose answers did not arrive.
        self._ask(lambda each: each.end(resource, asked[2]), known)
        raise next(
            (each for each in refusals if isinstance(each, LeaseHeld)), self._too_few(refusals)
        )

    def give_back(self, term: Term) -> bool:
        call = partial(Member.end, resource=term.key, grant_id=term.grant_id)
        answers = list(self._ask(call, self.members).values())
        lost = [each for each in answers if isinstance(each, LeaseLost)]
        if len(lost) >= self.majority:
            raise lost[0]
        if True not in answers:
            raise self._too_few(answers)
        return True

    def take_back(self, resource: str, reason: str, by: str) -> Incumbent | None:
        answers = self._answers(lambda member: member.revoke_here(resource))
        held = self._incumbent(answers.values())
        token = max(each.token for each in answers.values())
        return held and Incumbent(held.holder, token, held.expires_at)

    def current(self, resource: str) -> Incumbent | None:
        return self._incumbent(self._read(resource).values())

    # For operators

    def held(self) -> dict[str, Incumbent]:
        """Return who holds what, by name."""
        known: dict[str, list[Answer]] = defaultdict(list)
        for answers in self._answers(lambda member: dict(member.leases())).values():
            for name, each in answers.items():
                known[name].append(each)
        held = ((name, self._incumbent(each)) for name, each in known.items())
        return {name: each for name, each in held if each}

    def admit(self, is_nothing_held: bool) -> list[str]:
        """Give a vote to members that may have forgotten leases, with what the others know. Return
        their addresses. Raises StoreError if too few others are left.

        Args:
            is_nothing_held: True if the operator says that nobody holds a lease of the store.
        """
        sure: list[Member] = []
        forgetful: list[Member] = []
        for member in self.members:
            until = self._ask(Member.remembers_from, [member])[member]
            if not isinstance(until, LeaseError):
                (sure if until is None else forgetful).append(member)
        if forgetful and len(sure) < self.majority and not is_nothing_held:
            raise StoreError(
                f"{len(sure)} servers have forgotten nothing, and {self.majority} must know what "
                "is held. Stop every process that holds a lease, and confirm that."
            )
        known = united(chain.from_iterable(member.leases() for member in sure))
        for member in forgetful:
            member.learn(known)
        return [member.address for member in forgetful]

    # Asking

    def _read(self, resource: str) -> Mapping[Member, Answer]:
        return self._answers(lambda member: member.read([resource])[resource])

    def _answers(self, call: Call[Result], timeout: float = 0) -> dict[Member, Result]:
        """Return what ``call`` returns for each member that answers. Raises StoreError if these are
        too few."""
        now = system_clock()
        asked = [each for each in self.members if self._left_out.get(each, now) <= now]
        if len(asked) < self.majority:
            asked = self.members
        answers = self._ask(call, asked, timeout)
        found: dict[Member, Any] = {}
        for member in asked:  # in one order: see ``grant``
            if not isinstance(answers[member], LeaseError):
                found[member] = answers[member]
        if len(found) < self.majority:
            raise self._too_few(answers.values())
        if len({member.run_id for member in found}) < len(found):
            raise StoreError(f"Two members of {self} are one server. Name each once.")
        return found

    def _ask(
        self, call: Call[Result], members: Iterable[Member], timeout: float = 0
    ) -> dict[Member, Result | LeaseError]:
        """Return what ``call`` returns or raises for each of ``members``, which are asked at once.
        Those that have not answered soon after a majority are left behind, all after ``timeout``
        seconds (0: the TIMEOUT)."""
        sent = {send(partial(_tried, call, member)): member for member in members}
        late, answers = set(sent), dict[Member, Any]()
        ends = system_clock() + (timeout or self.timeout)
        while late and (left := ends - system_clock()) > 0:
            done, late = wait(late, left, FIRST_COMPLETED)
            answers |= {sent[each]: each.result() for each in done}
            good = [each for each in answers.values() if not isinstance(each, LeaseError)]
            if len(good) >= self.majority:
                ends = min(ends, system_clock() + PATIENCE)
        for member in (sent[each] for each in late):
            self._left_out[member] = system_clock() + LEFT_OUT
            answers[member] = StoreError(f"{member} does not answer in time.")
        return answers

    # Judging

    def _agreed(self, values: Iterable[Any]) -> Any:
        """Return the greatest value that more than half of the members have, or a greater one."""
        return sorted(values, reverse=True)[self.majority - 1]

    def _incumbent(self, answers: Iterable[Answer]) -> Incumbent | None:
        of_grant: dict[str, list[Answer]] = defaultdict(list)
        for each in answers:
            if each.holder:
                of_grant[each.grant].append(each)
        for found in of_grant.values():
            if len(found) >= self.majority:
                # A token that a member was only told of may be greater.
                token = min(each.token for each in found)
                ends = self._agreed(each.ends for each in found)
                return Incumbent(found[0].holder, token, moment(ends))
        return None

    def _too_few(self, errors: Iterable[object]) -> StoreError:
        words = " ".join(sorted(str(each) for each in errors if isinstance(each, LeaseError)))
        return StoreError(f"Fewer than {self.majority} of {len(self.members)} agree. {words}")


def _tried(call: Call[Result], member: Member) -> Result | LeaseError:
    try:
        return call(member)
    except LeaseError as error:
        return error


def united(leases: Iterable[tuple[str, Answer]]) -> dict[str, Answer]:
    """Return of each name the greatest token, and the grant that ends last."""
    known: dict[str, Answer] = {}
    for name, each in leases:
        other = known.get(name, each)
        longest = max(each, other, key=lambda one: one.ends - one.now if one.holder else 0)
        known[name] = longest._replace(token=max(each.token, other.token))
    return known
