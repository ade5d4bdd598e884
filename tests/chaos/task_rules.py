"""What must hold of tasks: pure functions over a history and the facts that the database has.

Operations that the rules know
    enqueue   ``value``: ``tag``, or ``tags`` of many. ``failed``: rolled back. ``result`` has
              ``duplicate``, the key's holder, if the unique key was taken
    cancel    ``value``: ``tag``
    handler   an attempt. ``value``: ``task``, ``token``, ``limit_key``, ``limit``. ``result`` has
              ``held``: from when until when it is proven to have believed that the task was its own
    fault     of the harness
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from tests.chaos.history import FAILED, Operation
from tests.chaos.ledger import ENDED, Change, TaskFacts
from tests.chaos.workload import Violation

#: Seconds within which a worker works again after a fault; and those that a loaded machine may take
#: to start one, where some were killed.
AGAIN_WITHIN, START_SLACK = 10.0, 10.0
#: Of tasks that were in hand as their worker was killed, the share that may have been marked as
#: begun and had not reached the first line of the handler.
BRINK = 0.1
#: The words of an attempt that a parent took from a worker that it saw die.
SEEN_TO_DIE = "its worker was killed"

SECOND = 1_000_000_000


def check_tasks(
    operations: Sequence[Operation], facts: TaskFacts, again_within: float = AGAIN_WITHIN
) -> list[Violation]:
    """Return what breaks any of the rules."""
    rules = (
        stored_as_answered,
        each_ends_once,
        completed_by_its_holder,
        begun_before_it_failed,
        begun_once_a_grant,
        cancelled_by_somebody,
        one_holder_a_unique_key,
        no_more_than_the_limit,
        one_believer_a_task,
        partial(worked_again, within=again_within),
    )
    return [violation for rule in rules for violation in rule(operations, facts)]


def stored_as_answered(operations: Sequence[Operation], facts: TaskFacts) -> Iterator[Violation]:
    """An acknowledged enqueue stored one task, one that was rolled back none, any other at most
    one; nothing else is stored."""
    stored = Counter(each.tag for each in facts.changes if each.is_stored and each.tag)
    tries: defaultdict[str, list[Operation]] = defaultdict(list)
    for each in _named(operations, "enqueue"):
        for tag in each.value.get("tags") or [each.value["tag"]]:
            tries[tag].append(each)
    for tag, found in tries.items():
        count = stored.pop(tag, 0)
        least = any(each.is_ok and not each.result.get("duplicate") for each in found)
        most = 0 if all(each.outcome == FAILED or _is_duplicate(each) for each in found) else 1
        if not least <= count <= most:
            what = "is lost" if count < least else "is stored though nothing was to be"
            text = f"task {tag} {what}" if count < 2 else f"task {tag} is stored {count} times"
            yield Violation("stored as answered", text, tuple(found))
    for tag in stored:
        yield Violation("stored as answered", f"task {tag} was stored, and nobody enqueued it")


def each_ends_once(operations: Sequence[Operation], facts: TaskFacts) -> Iterator[Violation]:
    """A stored task ends, once; what has ended does not change."""
    handlers = _handlers(operations)
    for task, changes in _by_task(facts.changes).items():
        ends = [each for each in changes if each.is_end]
        shown = tuple(handlers.get(task, ()))
        if len(ends) > 1:
            states = ", ".join(each.status for each in ends)
            yield Violation("ends once", f"{_name(changes[0])} ended as {states}", shown)
        elif any(each.was in ENDED and each.status != each.was for each in changes):
            yield Violation("ends once", f"{_name(changes[0])} changed after its end", shown)
        elif not ends and changes[0].tag:
            last = changes[-1]
            text = f"{_name(last)} never ended: {last.status} since {last.at / SECOND:.6f}"
            yield Violation("ends once", text, shown)


def completed_by_its_holder(
    operations: Sequence[Operation], facts: TaskFacts
) -> Iterator[Violation]:
    """A completion is that of the attempt that the row is in, whose handler has returned."""
    returned = {
        (each.value["task"], each.value["token"])
        for each in _named(operations, "handler")
        if each.is_ok
    }
    handlers = _handlers(operations)
    for each in facts.changes:
        # Other tasks are of the schedules that the site has.
        if not (each.is_end and each.status == "succeeded" and each.name.startswith("chaos.")):
            continue
        shown = tuple(handlers.get(each.task, ()))
        token = each.output.get("token") if isinstance(each.output, dict) else None
        if token != each.token:
            text = f"{_name(each)} was completed by attempt {token} while {each.token} had it"
            yield Violation("completed by its holder", text, shown)
        elif (each.task, token) not in returned:
            text = f"{_name(each)} was completed, and no handler of {token} has returned"
            yield Violation("completed by its holder", text, shown)


def begun_before_it_failed(
    operations: Sequence[Operation], facts: TaskFacts
) -> Iterator[Violation]:
    """No task is failed that never began, where a parent saw its worker die, or where nothing
    befell any worker. Whoever finds an expired claim alone cannot know what had begun."""
    began = {(each.value["task"], each.value["token"]) for each in _named(operations, "handler")}
    lost = [each for each in facts.attempts if each.outcome == "lost"]
    seen = [each for each in lost if each.error.startswith(SEEN_TO_DIE)]
    unbegun = [each for each in seen if (each.task, each.token) not in began]
    if len(unbegun) > 2 + BRINK * len(seen):
        text = f"{len(unbegun)} of {len(seen)} attempts that a parent ended had not begun: "
        yield Violation(
            "begun before it failed", text + _first(f"task:{each.task}" for each in unbegun)
        )
    taken = {each.task for each in lost}
    ran = {task for task, _ in began}
    for change in facts.changes:
        if not (change.is_end and change.status == "failed"):
            continue
        is_excused = change.task in taken and _faults(operations)
        if change.task not in ran and not is_excused:
            yield Violation("begun before it failed", f"{_name(change)} failed and never began")
        if change.attempts < change.max_attempts:
            count = f"{change.attempts} of {change.max_attempts}"
            yield Violation("begun before it failed", f"{_name(change)} failed after {count}")


def begun_once_a_grant(operations: Sequence[Operation], facts: TaskFacts) -> Iterator[Violation]:
    """A grant begins once; and what began, and was not heard of since, is not handed back as if it
    had not begun."""
    by_grant: defaultdict[tuple[int, int], list[Operation]] = defaultdict(list)
    for each in _named(operations, "handler"):
        by_grant[each.value["task"], each.value["token"]].append(each)
    for (task, token), calls in by_grant.items():
        if len(calls) > 1:
            text = f"task:{task} began {len(calls)} times under {token}"
            yield Violation("begun once a grant", text, tuple(calls))
    last_return: dict[int, int] = {}
    for attempt in facts.attempts:
        # The last attempt of a task that was lost beside a suspect is not counted (decision 30).
        is_spared = attempt.outcome == "lost" and attempt.error.endswith(": not counted")
        if attempt.outcome in ("returned", "snoozed") or is_spared:
            last_return[attempt.task] = max(attempt.token, last_return.get(attempt.task, 0))
    for change in facts.changes:
        calls = by_grant.get((change.task, change.token), [])
        is_silent = calls and all(call.ended is None for call in calls)
        # Records of returns that are alike replace one another.
        if change.is_refund and is_silent and change.token > last_return.get(change.task, -1):
            text = f"{_name(change)} was handed back by {change.token} as if it had not begun"
            yield Violation("begun once a grant", text, tuple(calls))


def cancelled_by_somebody(operations: Sequence[Operation], facts: TaskFacts) -> Iterator[Violation]:
    """A task is cancelled because somebody asked for it, and one that was cancelled while it waited
    never begins."""
    asked = {each.value["tag"] for each in _named(operations, "cancel")}
    began = _handlers(operations)
    for each in facts.changes:
        if not (each.is_end and each.status == "cancelled"):
            continue
        if each.tag not in asked:
            yield Violation("cancelled by somebody", f"{_name(each)}: nobody asked for it")
        late = [call for call in began.get(each.task, ()) if call.value["token"] > each.token]
        if late:
            text = f"{_name(each)} was cancelled, and began after"
            yield Violation("cancelled by somebody", text, tuple(late))


def one_holder_a_unique_key(
    operations: Sequence[Operation], facts: TaskFacts
) -> Iterator[Violation]:
    """A unique key has one holder at a time; and an enqueue that was a duplicate met a task that
    had the key while it was called."""
    terms: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)  # task, from, until
    held: dict[int, tuple[str, int]] = {}
    for each in facts.changes:
        key, since = held.get(each.task, (None, 0))
        if each.unique_key == key:
            continue
        if key is not None:
            terms[key].append((each.task, since, each.at))
        held.pop(each.task, None)
        if each.unique_key is not None:
            others = [task for task, (taken, _) in held.items() if taken == each.unique_key]
            if others:
                text = f"{each.unique_key!r} is of task:{others[0]} and of {_name(each)}"
                yield Violation("one holder a unique key", text)
            held[each.task] = each.unique_key, each.at
    for task, (key, since) in held.items():
        terms[key].append((task, since, 1 << 63))
    for call in _named(operations, "enqueue"):
        if not _is_duplicate(call) or call.ended is None:
            continue
        of = [
            term
            for term in terms[call.value["unique_key"]]
            if term[0] == call.result["duplicate"]
            # The ledger's moments are those of statements, up to a transaction before the commit.
            and term[1] <= call.ended
            and term[2] + SECOND >= call.began
        ]
        if not of:
            text = f"task:{call.result['duplicate']} did not have the key of its duplicate"
            yield Violation("one holder a unique key", text, (call,))


def no_more_than_the_limit(
    operations: Sequence[Operation], facts: TaskFacts
) -> Iterator[Violation]:
    """No more tasks of a concurrency key run than its limit, in the rows and as their handlers
    believe."""
    running: defaultdict[str, set[int]] = defaultdict(set)
    for each in facts.changes:
        if not each.limit_key or each.limit is None:
            continue
        if each.status == "running":
            running[each.limit_key].add(each.task)
        else:
            running[each.limit_key].discard(each.task)
        if len(running[each.limit_key]) > each.limit:
            text = f"{sorted(running[each.limit_key])} run with {each.limit_key!r} of {each.limit}"
            yield Violation("no more than the limit", text)
    believed: defaultdict[tuple[str, int], list[Operation]] = defaultdict(list)
    for call in _named(operations, "handler"):
        if call.value.get("limit_key") and call.result.get("held"):
            believed[call.value["limit_key"], call.value["limit"]].append(call)
    for (key, limit), calls in believed.items():
        together = _most_together(calls)
        if len(together) > limit:
            text = f"{len(together)} handlers believed that they had {key!r}, of {limit}"
            yield Violation("no more than the limit", text, tuple(together))


def one_believer_a_task(operations: Sequence[Operation], facts: TaskFacts) -> Iterator[Violation]:
    """Two attempts never both believe that a task is theirs."""
    for task, calls in _handlers(operations).items():
        together = _most_together([call for call in calls if call.result.get("held")])
        if len(together) > 1:
            text = f"{len(together)} attempts believed that they had task:{task}"
            yield Violation("one believer a task", text, tuple(together))


def worked_again(
    operations: Sequence[Operation], facts: TaskFacts, within: float = AGAIN_WITHIN
) -> Iterator[Violation]:
    """A handler begins soon after a fault has ended, if a task is due."""

    def waiting(since: int, until: int) -> list[str]:
        return [f"task:{task}" for task in _due_throughout(facts.changes, since, until)]

    return again_after_faults(operations, "handler", waiting, within)


def again_after_faults(
    operations: Sequence[Operation],
    name: str,
    waiting: Callable[[int, int], Sequence[str]],
    within: float = AGAIN_WITHIN,
) -> Iterator[Violation]:
    """An operation of this name begins soon after a fault has ended, if anything was ``waiting``
    for it all the time and no other fault comes. Time in which the machine did not let the harness
    run does not count."""
    begins = sorted(each.began for each in _named(operations, name))
    last = max((each.ended or each.began for each in operations), default=0)
    faults = _faults(operations)
    for fault in faults:
        if fault.ended is None:
            continue
        since = fault.ended
        stalls = [(each.began, each.ended or each.began) for each in _named(operations, "stall")]
        stalled = sum(end - began for began, end in stalls if end >= since)
        slack = START_SLACK if fault.resource.startswith("kill") else 0.0
        until = since + int((within + slack) * SECOND) + stalled
        others = [each for each in faults if each is not fault]
        if until > last or any(_overlaps(each, since, until) for each in others):
            continue
        place = bisect_right(begins, since)
        works = place < len(begins) and begins[place] <= until
        if not works and (left := waiting(since, until)):
            text = f"no {name} began for {within + slack:g} s after {fault.resource}: "
            yield Violation("worked again", text + _first(left), (fault,))


def slots_served_once(facts: TaskFacts, name: str, every: int) -> Iterator[Violation]:
    """Each moment of the schedule of ``name``, which misses none, is served once, by a task of its
    own; ``every`` so many microseconds."""
    slots = [slot for slot in facts.slots if slot.schedule == name]
    for before, after in pairwise(sorted(slots, key=lambda slot: slot.at)):
        if after.at - before.at != every:
            what = "twice" if after.at == before.at else f"and then {after.at}"
            yield Violation("slots served once", f"{name} served {before.at} {what}")
    tasks = Counter(slot.task for slot in slots if not slot.skipped)
    stored = {each.task for each in facts.changes if each.is_stored and each.name == name}
    for task, count in tasks.items():
        if task not in stored or count > 1:
            yield Violation("slots served once", f"task:{task} is of {count} slots of {name}")
    for task in stored - tasks.keys():
        yield Violation("slots served once", f"task:{task} is of no slot of {name}")


def published_in_order(operations: Sequence[Operation]) -> Iterator[Violation]:
    """An acknowledged message comes, one that was rolled back does not, and those of one key come
    first in the order of their sequence. Operations: ``publish`` (``value``: ``tag``), and
    ``receive`` of a key (``value``: ``tag``, ``sequence``)."""
    received = {each.value["tag"] for each in _named(operations, "receive")}
    for each in _named(operations, "publish"):
        if each.is_ok and each.value["tag"] not in received:
            yield Violation("published", f"{each.value['tag']} is lost", (each,))
        if each.outcome == FAILED and each.value["tag"] in received:
            yield Violation("published", f"{each.value['tag']} was rolled back and came", (each,))
    newest: dict[str, Operation] = {}
    seen: set[str] = set()
    for each in _named(operations, "receive"):
        key, tag = each.resource, each.value["tag"]
        if tag in seen or not key:
            continue
        seen.add(tag)
        if key in newest and newest[key].value["sequence"] > each.value["sequence"]:
            text = f"{key!r}: {each.value['sequence']} came after {newest[key].value['sequence']}"
            yield Violation("published in order", text, (newest[key], each))
        newest[key] = each


#: What so many hits of these faults must have provoked; those of processes count for workers alone.
PROVOKED = {
    "take-overs": (5, {"kill", "kill-worker", "kill-parent", "stop"}),
    "late writes refused": (10, {"stop"}),
    "unknown enqueues": (6, {"postgres-crash", "terminate", "cut", "black", "drop-replies"}),
}


def must_happen(
    operations: Sequence[Operation], facts: TaskFacts, always: Iterable[str], workers: Iterable[str]
) -> dict[str, int]:
    """Return what happened, and a zero of what did not and had to.

    Args:
        operations: The history.
        facts: What the database has.
        always: What happens in each run.
        workers: Names of actors that run tasks.
    """
    needed = {*always}
    for name, (least, kinds) in PROVOKED.items():
        hits = 0
        for each in _faults(operations):
            victims = each.value.get("victims")
            is_of_worker = victims is None or {name.rpartition("-")[0] for name in victims} & {
                *workers
            }
            hits += bool(each.resource in kinds and each.value.get("hits") and is_of_worker)
        needed |= {name} if hits >= least else set()
    found = counts(operations, facts)
    return {name: count for name, count in found.items() if count or name in needed}


def counts(operations: Sequence[Operation], facts: TaskFacts) -> dict[str, int]:
    """Return what happened, by what it is called in the report."""
    began = {(each.value["task"], each.value["token"]) for each in _named(operations, "handler")}
    enqueues = [*_named(operations, "enqueue")]
    attempts = facts.attempts
    ends = Counter(each.status for each in facts.changes if each.is_end)
    refunds = [each for each in facts.changes if each.is_refund]
    return {
        "tasks stored": sum(each.is_stored for each in facts.changes),
        "grants": sum(each.status == "running" and each.was == "ready" for each in facts.changes),
        "succeeded": ends["succeeded"],
        "failed": ends["failed"],
        "cancelled": ends["cancelled"],
        "rolled back": sum(each.outcome == FAILED for each in enqueues),
        "unknown enqueues": sum(each.outcome not in ("ok", FAILED) for each in enqueues),
        "duplicates": sum(map(_is_duplicate, enqueues)),
        "take-overs": sum(each.outcome == "lost" for each in attempts),
        "seen to die": sum(each.error.startswith(SEEN_TO_DIE) for each in attempts),
        "unbegun handed back": sum((each.task, each.token) not in began for each in refunds),
        "late writes refused": sum(bool(each.refused) for each in attempts),
        "slots of schedules": len(facts.slots),
    }


def _named(operations: Iterable[Operation], name: str) -> Iterator[Operation]:
    return (each for each in operations if each.name == name)


def _faults(operations: Sequence[Operation]) -> list[Operation]:
    return [*_named(operations, "fault")]


def _handlers(operations: Sequence[Operation]) -> dict[int, list[Operation]]:
    found: defaultdict[int, list[Operation]] = defaultdict(list)
    for each in _named(operations, "handler"):
        found[each.value["task"]].append(each)
    return found


def _by_task(changes: Iterable[Change]) -> dict[int, list[Change]]:
    found: defaultdict[int, list[Change]] = defaultdict(list)
    for each in changes:
        found[each.task].append(each)
    return found


def _is_duplicate(call: Operation) -> bool:
    return call.is_ok and bool(call.result.get("duplicate"))


def _most_together(calls: Iterable[Operation]) -> list[Operation]:
    """Return the calls that believed at the moment at which most did."""
    moments: list[tuple[int, int, int, Operation]] = []
    for number, call in enumerate(calls):
        since, until = call.result["held"]
        moments += [(since, 0, number, call), (until, 1, number, call)]
    now: dict[int, Operation] = {}
    most: list[Operation] = []
    for _, ends, number, call in sorted(moments, key=lambda moment: moment[:3]):
        if ends:
            del now[number]
        else:
            now[number] = call
            most = max(most, [*now.values()], key=len)
    return most


def _due_throughout(changes: Sequence[Change], since: int, until: int) -> list[int]:
    """Return the tasks that could be claimed all the time."""
    due: dict[int, Change] = {}
    touched: set[int] = set()
    for each in changes:
        if each.at > since:
            touched |= {each.task} if each.at <= until else set()
        elif each.status == "ready" and each.due <= since and not each.limit_key:
            due[each.task] = each
        else:
            due.pop(each.task, None)
    return [task for task in due if task not in touched]


def _name(change: Change) -> str:
    return f"task:{change.task} {change.tag or change.name}"


def _overlaps(fault: Operation, since: int, until: int) -> bool:
    return fault.began < until and (fault.ended is None or fault.ended > since)


def _first(names: Iterable[str]) -> str:
    few = [*names]
    return ", ".join(few[:5]) + (", ..." if len(few) > 5 else "")
