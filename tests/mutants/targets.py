"""Choose the files that are bent, the tests near them, and the mutants that no rule makes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from leasing.holding import term
from leasing.holding.term import State
from tests.mutants.making import ROOT, Mutant, of_constant, of_file, of_text

#: The files of the verbs' conditions: each condition in them is bent.
FILES = (
    *(f"leasing/stores/{name}.py" for name in ("rows", "portable")),
    "leasing/querysets.py",
    *(f"leasing/models/{name}.py" for name in ("lease", "once", "beat", "api_token")),
    "leasing/db/sql.py",
    "leasing/fencing.py",
    "leasing/functions.py",
    "tasks/bounds.py",
    "tasks/fleet/hand_back.py",
    *(
        f"tasks/querysets/{name}.py"
        for name in (
            *(
                "base",
                "claim_key",
                "duplicates",
                "ends",
                "operator",
                "outbox",
                "producer",
                "queues",
            ),
            *("recovery", "relay", "schedule", "slots", "transitions"),
            *("unique", "worker"),
        )
    ),
    *(f"tasks/querysets/sql/{name}.py" for name in ("claim", "ends", "plans", "insert")),
)
#: Functions that choose between two forms of one verb, or whether a compiled text is kept: what is
#: bent there makes the verb slower, and no row what it must not be.
CHOOSING = frozenset({"can_grant", "is_plain", "key_of", "planned", "plan_took", "serves", "suits"})
#: Those that only PostgreSQL runs.
ON_POSTGRESQL = ("leasing/db/sql.py", "tasks/querysets/sql/")


def nearest_of(path: str) -> tuple[str, ...]:
    """Return beginnings of the paths of tests that may look at a file, the nearest first: of its
    name and of its folder's, of conditions, in the folders that mirror its own, of its package, and
    of the other package."""
    package, *folders, name = path.removesuffix(".py").split("/")
    depths = range(len(folders), 0, -1)
    mirrors = ["/".join(("tests", package, *folders[:depth])) for depth in depths]
    other = "tasks" if package == "leasing" else "leasing"
    return (
        *(f"{folder}/test_{name}" for folder in (*mirrors, f"tests/{package}")),
        *(f"tests/{package}/test_{folder}" for folder in folders),
        *(f"{folder}/test_conditions.py" for folder in (*mirrors, f"tests/{package}/querysets")),
        *(f"{folder}/" for folder in mirrors),
        f"tests/{package}/",
        f"tests/{other}/",
    )


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant, in the order of the files."""
    return tuple(_made())


def _made() -> Iterator[Mutant]:
    for path in FILES:
        yield from (m for m in of_file(path) if m.place.rpartition(".")[2] not in CHOOSING)
    yield from _of_terms()
    yield from _of_trust()
    yield from _of_outcomes()
    yield from _of_clients()


#: Events by which more comes about than the state.
TOLD = frozenset({"KEEP", "LOSE", "REFUSE"})


def _of_terms() -> Iterator[Mutant]:
    """Each cell of the table of states and events: what changes the state does not, and what does
    not, does. To come into the state in which it is already is another bend where that is an
    event: a term that is kept anew is trusted anew, and a loss is told."""
    path = "leasing/holding/term.py"
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        event, is_row, _ = line.partition(" = {State.")
        if not is_row:
            continue
        table: dict[State, State] = getattr(term, event)
        for state in State:
            if state in table:
                bent, cells = f"nothing for {state.name}", table.keys() - {state}
                yield Mutant(path, event, number, bent, value={one: table[one] for one in cells})
            elif (after := next(iter(table.values()))) is not state or event in TOLD:
                bent = f"{after.name} for {state.name}"
                yield Mutant(path, event, number, bent, value={**table, state: after})


def _of_trust() -> Iterator[Mutant]:
    """Trust counts from before the request was sent, and ends before the database's expiry."""
    late = "the clock is read after the answer"
    for path, place, before, after in (
        (
            "leasing/db/sql.py",
            "Statements.grant",
            "row.now, row.sent_at = row.acquired_at, sent_at",
            "row.now, row.sent_at = row.acquired_at, clock()",
        ),
        (
            "leasing/stores/portable.py",
            "grant",
            "row.sent_at = sent_at",
            "row.sent_at = clock()",
        ),
        ("tasks/querysets/sql/claim.py", "_sent", "return sent_at, ", "return clock(), "),
        (
            "leasing/stores/base.py",
            "BaseStore.granted",
            "term.sent_at = sent_at",
            "term.sent_at = self.clock()",
        ),
        (
            "leasing/holding/term.py",
            "Term.renew",
            "self.renewed(sent_at",
            "self.renewed(keeper.clock()",
        ),
        (
            "leasing/holding/keeper.py",
            "Keeper._renew_batch",
            "hold.renewed(sent_at",
            "hold.renewed(self.clock()",
        ),
    ):
        yield of_text(path, place, before, after, late)
    yield of_text(
        "leasing/holding/keeper.py",
        "Keeper._renew_batch",
        "hold.due_at = sent_at + hold.interval * jitter",
        "hold.due_at = math.inf",
        "renews each hold once",
    )
    yield of_text(
        "leasing/holding/term.py",
        "Term.renew",
        "self.ensure()\n                return",
        "return",
        "without the second `self.ensure()`",
    )
    overdue = "if self._keeper.clock() >= self.trusted_until:"
    answered_late = (
        f"{overdue}\n            self.mark_lost(self.overdue_reason)\n        with _lock:"
    )
    yield of_text(
        "leasing/holding/term.py",
        "Term.renewed",
        answered_late,
        answered_late.replace(overdue, "if False:"),
        "takes an answer that is late",
    )
    limited = "min(wanted, ttl / 3)"
    yield of_text("leasing/holding/term.py", "margin", limited, "wanted", f"wanted for {limited}")
    yield of_text("leasing/holding/term.py", "margin", limited, "0.0", f"0.0 for {limited}")
    yield of_text(
        "leasing/holding/keeper.py",
        "Keeper._renew_batch",
        "self.clock() < breaker.opens_again_at",
        "False",
        "an open breaker lets pass",
    )


def _of_outcomes() -> Iterator[Mutant]:
    """Outcomes are stored in the order of their keys, on a connection that works; with what a
    handler writes, in one commit."""
    yield of_text(
        "tasks/execution/context.py",
        "Context._complete_after",
        "with self._losing(), transaction.atomic(using=using):",
        "with self._losing():",
        "commits what the handler wrote before its completion",
    )
    yield of_text(
        "tasks/execution/context.py",
        "Context._load",
        "rows.filter(grant_id=task.grant_id)",
        "rows",
        "loads the row of another grant",
    )
    yield of_text(
        "tasks/execution/completer.py",
        "_store_until_stored",
        "connections[using].close()\n        answers",
        "answers",
        "keeps a broken connection",
    )
    unordered = "locks in no order"
    yield of_text(
        "tasks/querysets/ends.py",
        "_store",
        '.holding().order_by("pk")',
        ".holding()",
        unordered,
    )
    for name in ("COMPLETE", "RELEASE_UNSTARTED"):
        path, ordered = "tasks/querysets/sql/ends.py", "ORDER BY t.id FOR"
        yield of_constant(path, name, ordered, "FOR", unordered)


def _of_clients() -> Iterator[Mutant]:
    """A remote holder trusts from before its request left, begins nothing that it has lost, and
    ends an attempt by what its handler raised."""
    for path, places in (
        ("tasks/client/execution.py", {"Execution.begin", "Execution.judge", "Execution._limit"}),
        ("tasks/client/context.py", {"Context._write"}),
        ("tasks/runtime/attempt_context.py", {"AttemptContext.ensure", "AttemptContext.wait"}),
    ):
        yield from (mutant for mutant in of_file(path) if mutant.place in places)
    late = "the clock is read after the answer"
    path, answer = (
        "leasing/client/transport.py",
        "return self._checked(request, response, chunks.body, ",
    )
    failed = (
        "except httpx.HTTPError as error:\n"
        "            raise self._unreachable(request, error) from error"
    )
    for place, chunks in (
        ("Transport.exchange", "for chunk in response.iter_bytes()"),
        ("AsyncTransport.aexchange", "async for chunk in response.aiter_bytes()"),
    ):
        read = (
            f"{chunks}:\n                    chunks.add(chunk)\n        {failed}\n        {answer}"
        )
        yield of_text(path, place, f"{read}sent_at)", f"{read}clock())", late)
    path, renewed = "leasing/client/calls.py", "return renewal_of(answer.data), "
    yield of_text(path, "LeaseCalls._renew", f"{renewed}answer.sent_at", f"{renewed}clock()", late)
    yield of_text(path, "term_of", "sent_at=answer.sent_at", "sent_at=clock()", late)
    path = "tasks/client/calls.py"
    yield of_text(path, "claimed_of", "sent_at=answer.sent_at", "sent_at=clock()", late)
    path, begin = "tasks/client/execution.py", "Execution.begin"
    yield of_text(path, begin, "if not self.hold.valid:", "if False:", "begins what is lost")
    yield of_text(path, begin, "if self.stopping.is_set():", "if False:", "begins while it stops")
    yield of_text(
        path,
        begin,
        "if self._has_ended:\n                return False\n            self.has_begun",
        "if False:\n                return False\n            self.has_begun",
        "begins what has ended",
    )
