"""What must be true of a history of leases. Pure functions; times are nanoseconds of the host's
clock, but for those of ``Change``, which are seconds of the database's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.chaos.changes import Change
from tests.chaos.faults import OF_PROCESSES
from tests.chaos.history import FAILED, Operation
from tests.chaos.workload import WEB, Violation

#: Seconds within which a process works again after a fault, and those that a loaded machine may
#: take for it beyond the stalls that the harness has recorded: a process is started from nothing.
AGAIN_WITHIN, START_SLACK = 10.0, 10.0
#: Seconds after its expiry within which a lease that somebody waits for is granted: candidates look
#: once a second; and what a loaded machine may add.
SWEEP, SLACK = 1.0, 2.0
#: Seconds after a fault of a server or of the network in which its traces may still be seen.
RECOVERY = 12.0


class Belief(NamedTuple):
    """A time in which a process believes that it holds a lease."""

    token: int
    process: str
    began: int
    until: int
    operation: Operation


def beliefs(operations: Iterable[Operation]) -> dict[str, list[Belief]]:
    """Return the beliefs in each resource, in the order of their tokens.

    One begins with the answer of ``acquire``, whose result has ``token`` and ``trusted_until``;
    ``believe`` and ``renew`` extend it, ``release`` and ``lost`` end it.
    """
    found: dict[tuple[str, int, str], Belief] = {}
    for each in sorted(operations, key=lambda each: each.ended or each.began):
        if each.name == "acquire" and each.is_ok and each.ended is not None:
            token, until = each.result["token"], each.result["trusted_until"]
            key = each.resource, token, each.process
            found[key] = Belief(token, each.process, each.ended, until, each)
            continue
        key = each.resource, each.value.get("token", 0), each.process
        if key not in found:
            continue
        belief = found[key]
        if each.name == "believe" or (each.name == "renew" and each.is_ok):
            until = {**each.value, **each.result}["trusted_until"]
            found[key] = belief._replace(until=max(until, belief.until), operation=each)
        elif each.name in ("release", "lost"):
            # The call of ``release`` may last: the belief ended as it began.
            found[key] = belief._replace(until=min(each.began, belief.until))
    by_resource: dict[str, list[Belief]] = defaultdict(list)
    for (resource, _, _), belief in sorted(found.items()):
        by_resource[resource].append(belief)
    return by_resource


def beliefs_are_disjoint(operations: Sequence[Operation]) -> list[Violation]:
    """At no time do two processes believe that they hold one resource."""
    found = []
    for resource, of_resource in beliefs(operations).items():
        latest: Belief | None = None
        for belief in sorted(of_resource, key=lambda each: each.began):
            if latest is not None and belief.began < latest.until:
                overlap = (min(latest.until, belief.until) - belief.began) / 1e6
                words = (
                    f"{resource!r}: {latest.process} (token {latest.token}) and {belief.process} "
                    f"(token {belief.token}) both believed to hold it for {overlap:.1f} ms"
                )
                if overlap > 0:
                    shown = latest.operation, belief.operation
                    found.append(Violation("two holders at once", words, shown))
            if latest is None or belief.until > latest.until:
                latest = belief
    return found


def tokens_rise(operations: Sequence[Operation]) -> list[Violation]:
    """A later grant has a greater token, no two have one, and an older one is not renewed."""
    found = []
    granted: dict[str, list[Operation]] = defaultdict(list)
    renewed: dict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.is_ok and each.name in ("acquire", "renew"):
            (granted if each.name == "acquire" else renewed)[each.resource].append(each)
    for resource, of_resource in granted.items():
        # By the moments at which they were known: the greatest token known before each begins.
        ended = sorted(of_resource, key=_ended)
        seen: dict[int, Operation] = {}
        for each in of_resource:
            token = each.result["token"]
            if token in seen:
                words = f"{resource!r}: token {token} was granted twice"
                found.append(Violation("a token is granted once", words, (seen[token], each)))
            seen[token] = each
        place, highest = 0, None
        for each in sorted([*of_resource, *renewed[resource]], key=lambda each: each.began):
            while place < len(ended) and _ended(ended[place]) < each.began:
                if highest is None or ended[place].result["token"] > highest.result["token"]:
                    highest = ended[place]
                place += 1
            token = each.result["token"] if each.name == "acquire" else each.value["token"]
            if highest is not None and token < highest.result["token"]:
                words = (
                    f"{resource!r}: {each.name} of token {token} after {highest.result['token']}"
                )
                found.append(Violation("tokens rise", words, (highest, each)))
    return found


def _ended(each: Operation) -> int:
    assert each.ended is not None
    return each.ended


def none_granted_early(changes: Iterable[Change], slack: float = 0.002) -> list[Violation]:
    """Nobody is granted what has neither expired nor been released, by the database's clock.

    Args:
        changes: Those of all leases, of each in their order.
        slack: Seconds to which the database's record of a moment is exact.
    """
    found = []
    latest: dict[str, Change] = {}
    for each in changes:
        before = latest.get(each.resource)
        if before is not None and each.token != before.token and before.released_at is None:
            early = before.expires_at - each.at
            if early > slack:
                words = (
                    f"{each.resource!r}: token {each.token} of {each.holder} was granted "
                    f"{early:.3f} s before the grant of {before.holder} expired"
                )
                found.append(Violation("no grant before the expiry of the last", words))
        if before is not None and each.token < before.token:
            words = f"{each.resource!r}: token {each.token} after {before.token}"
            found.append(Violation("tokens rise in the table", words))
        latest[each.resource] = each
    return found


class Gap(NamedTuple):
    """The time in which a resource that somebody waited for was nobody's."""

    resource: str
    seconds: float
    #: The seconds that were allowed.
    allowed: float
    waiter: Operation


def takeovers(operations: Sequence[Operation], changes: Sequence[Change]) -> list[Gap]:
    """Return what happened after each expiry: of leases that a process, which no fault had hit,
    waited for all the time and then got, or saw another get."""
    waits: dict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.name == "acquire" and each.ended is not None and each.outcome != "unknown":
            waits[each.resource].append(each)
    offset = next((each.value["offset"] for each in operations if each.name == "clocks"), None)
    if offset is None:
        return []
    faults = [each for each in operations if each.name == "fault"]
    stalls = [each for each in operations if each.name == "stall"]
    slack = SLACK * max([1.0, *(each.value["share"] for each in operations if each.name == "load")])
    gaps = []
    latest: dict[str, Change] = {}
    for change in changes:
        before = latest.get(change.resource)
        latest[change.resource] = change
        if before is None or change.token == before.token or before.released_at is not None:
            continue
        began, ended = (int((at - offset) * 1e9) for at in (before.expires_at, change.at))
        for wait in waits[change.resource]:
            if wait.began < began and _ended(wait) >= ended and not _was_hit(wait, faults):
                hit = _during(faults, began, ended) + _during(stalls, began, ended)
                seconds = (ended - began) / 1e9
                gaps.append(Gap(change.resource, seconds, SWEEP + slack + hit, wait))
                break
    return gaps


def _was_hit(wait: Operation, faults: Iterable[Operation]) -> bool:
    return any(
        wait.process in fault.value.get("victims", ())
        and fault.began <= _ended(wait)
        and _ended(fault) + RECOVERY * 1e9 >= wait.began
        for fault in faults
    )


def _during(faults: Iterable[Operation], began: int, ended: int) -> float:
    """Return the seconds between these in which a server, the network or the machine was hit."""
    total, reached = 0, began
    for each in faults:
        if each.name == "fault" and each.resource in OF_PROCESSES and not _hits_server(each):
            continue
        # What was only stopped goes on where it was.
        after = RECOVERY * 1e9 if each.name == "fault" and each.resource != "stop" else 0
        first, last = max(each.began, reached), min(int(_ended(each) + after), ended)
        if last > first:
            total, reached = total + last - first, last
    return total / 1e9


def _hits_server(fault: Operation) -> bool:
    """Return True for a fault of processes that hit the web server: who has one in a workload asks
    it for everything."""
    return any(victim.startswith(f"{WEB}-") for victim in fault.value.get("victims", ()))


def taken_over_in_time(
    operations: Sequence[Operation], changes: Sequence[Change]
) -> list[Violation]:
    """A lease that somebody waits for is granted soon after its expiry."""
    return [
        Violation(
            "taken over in time",
            f"{gap.resource!r}: nobody's for {gap.seconds:.1f} s, allowed {gap.allowed:.1f} s",
            (gap.waiter,),
        )
        for gap in takeovers(operations, changes)
        if gap.seconds > gap.allowed
    ]


def works_again(operations: Sequence[Operation]) -> list[Violation]:
    """Each actor that made calls before a fault has one that is answered, a refusal too, within ten
    seconds of its end. Times of other faults and of stalls do not count."""
    of_harness = [each for each in operations if each.process == "chaos"]
    answers: dict[str, list[int]] = defaultdict(list)
    for each in operations:
        if each.process != "chaos" and each.ended and (each.is_ok or each.outcome == FAILED):
            answers[each.process.rpartition("-")[0]].append(each.ended)
    end = max((each.began for each in operations), default=0)
    found = []
    for fault in (each for each in of_harness if each.name == "fault"):
        over = _ended(fault)
        others = [each for each in of_harness if each is not fault and _ended(each) > over]
        for actor, moments in answers.items():
            if min(moments) > fault.began:
                continue
            first = min((moment for moment in moments if moment > over), default=end)
            quiet = (first - over) / 1e9 - _covered(others, over, first)
            if quiet > AGAIN_WITHIN + START_SLACK:
                words = f"{actor} had no answer for {quiet:.1f} s after {fault.resource}"
                found.append(Violation("works again after a fault", words, (fault,)))
    return found


def _covered(spans: Iterable[Operation], began: int, ended: int) -> float:
    """Return the seconds between these that the spans cover."""
    total, reached = 0, began
    for each in sorted(spans, key=lambda each: each.began):
        first, last = max(each.began, reached), min(_ended(each), ended)
        if last > first:
            total, reached = total + last - first, last
    return total / 1e9


# A guarded register


def writes_follow(
    operations: Sequence[Operation], final: dict[str, tuple[int, str]]
) -> list[Violation]:
    """Each acknowledged write of a register is the one that the next has read; a refused one is
    read by nobody.

    A ``write`` has the ``id`` of the write and, in its result, ``read`` (the number and the id that
    it found); it wrote the number after that.

    Args:
        operations: A history.
        final: The number and the id of the last write, by resource.
    """
    found = []
    by_resource: dict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.name == "write":
            by_resource[each.resource].append(each)
    for resource, writes in by_resource.items():
        refused = {each.value["id"]: each for each in writes if each.outcome == FAILED}
        written: dict[int, Operation] = {}
        for each in (each for each in writes if each.is_ok):
            number = each.result["read"][0] + 1
            if number in written:
                words = f"{resource!r}: write {number} was acknowledged twice"
                found.append(Violation("no update is lost", words, (written[number], each)))
            written[number] = each
        read = [(*each.result["read"], each) for each in writes if each.is_ok]
        last = max(written.values(), key=lambda each: each.began, default=None)
        if last is not None:
            read.append((*final[resource], last))
        for number, name, reader in read:
            if name in refused:
                words = f"{resource!r}: a refused write, number {number}, is in the table"
                found.append(
                    Violation("no stale write is accepted", words, (refused[name], reader))
                )
            elif number in written and written[number].value["id"] != name:
                words = f"{resource!r}: write {number} was acknowledged and is not in the table"
                shown = written[number], reader
                found.append(Violation("an acknowledged write is there", words, shown))
        if written and max(written) > final[resource][0]:
            words = f"{resource!r}: write {max(written)} of a number that is {final[resource][0]}"
            found.append(
                Violation("an acknowledged write is there", words, (written[max(written)],))
            )
    return found


def check_leases(operations: Sequence[Operation], changes: Sequence[Change]) -> list[Violation]:
    """Return what breaks any of the rules of leases."""
    return [
        *beliefs_are_disjoint(operations),
        *tokens_rise(operations),
        *none_granted_early(changes),
        *taken_over_in_time(operations, changes),
    ]


def count_leases(operations: Sequence[Operation], changes: Sequence[Change]) -> dict[str, int]:
    """Return what must have happened to leases in any run, and their take-overs."""
    grants = {(each.resource, each.token) for each in changes}
    before: dict[str, Change] = {}
    expired = 0
    for each in changes:
        last = before.get(each.resource)
        expired += last is not None and last.token != each.token and last.released_at is None
        before[each.resource] = each
    return {"grants": len(grants), "renewals": len(changes) - len(grants), "take-overs": expired}


def takeover_figures(operations: Sequence[Operation], changes: Sequence[Change]) -> str:
    """Return how long leases that somebody waited for were nobody's after their expiry."""
    gaps = sorted(gap.seconds for gap in takeovers(operations, changes))
    if not gaps:
        return ""
    p50, p99 = gaps[len(gaps) // 2], gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)]
    return f"{len(gaps)} waited for: p50 {p50:.2f}, p99 {p99:.2f}, max {gaps[-1]:.2f} s"
