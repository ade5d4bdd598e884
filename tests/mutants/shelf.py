"""Choose the functions that are bent, the tests near them, and the mutants that no rule makes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tests.mutants.making import Mutant, of_file, of_text

#: The files of the verbs' conditions, and the tests that look at them, the nearest first.
NEAREST: dict[str, tuple[str, ...]] = {
    **{
        f"leasing/querysets/{name}.py": (
            "tests/leasing/querysets/test_conditions.py",
            "tests/leasing/querysets/",
            "tests/leasing/contract/",
            "tests/leasing/test_saving.py",
            "tests/leasing/test_prune.py",
            "tests/leasing/test_hold_rows.py",
            "tests/leasing/test_keeper_failures.py",
            "tests/leasing/stores/",
            "tests/tasks/querysets/test_conditions.py",
            "tests/tasks/querysets/test_claim",
        )
        for name in ("saving", "states", "holder", "granting", "leasable")
    },
    "leasing/querysets/lease.py": (
        "tests/leasing/querysets/",
        "tests/leasing/contract/",
        "tests/leasing/test_notifier.py",
        "tests/leasing/test_waiting.py",
    ),
    "leasing/querysets/once.py": ("tests/leasing/test_once.py", "tests/leasing/querysets/"),
    "leasing/querysets/beats.py": ("tests/leasing/celery/",),
    "leasing/querysets/api_tokens.py": ("tests/leasing/test_api_tokens.py",),
    "leasing/querysets/token_grants.py": ("tests/leasing/test_token_grants.py",),
    **{
        f"leasing/db/postgres/{name}.py": (
            "tests/leasing/querysets/",
            "tests/leasing/db/",
            "tests/leasing/contract/",
            "tests/tasks/querysets/test_claim",
        )
        for name in ("rows", "granting", "holding")
    },
    "leasing/fencing.py": ("tests/leasing/test_fencing.py", "tests/leasing/querysets/"),
    "leasing/functions.py": (
        "tests/leasing/test_functions.py",
        "tests/leasing/querysets/",
        "tests/leasing/test_prune.py",
    ),
    "tasks/fleet/hand_back.py": ("tests/tasks/fleet/test_hand_back.py",),
    **{
        f"tasks/querysets/{name}.py": (*nearest, "tests/tasks/querysets/")
        for name, nearest in {
            "base": (
                "tests/tasks/querysets/test_conditions.py",
                "tests/tasks/test_notifier.py",
                "tests/tasks/maintenance/test_prune_tasks.py",
                "tests/leasing/querysets/test_raise_tokens.py",
            ),
            "duplicates": ("tests/tasks/querysets/test_enqueue_unique.py",),
            "ends": (
                "tests/tasks/querysets/test_many.py",
                "tests/tasks/querysets/test_conditions.py",
            ),
            "operator": (
                "tests/tasks/querysets/test_cancel.py",
                "tests/tasks/querysets/test_retry.py",
                "tests/tasks/management/",
                "tests/tasks/maintenance/test_prune_tasks.py",
            ),
            "outbox": ("tests/tasks/outbox/", "tests/tasks/celery/"),
            "producer": ("tests/tasks/querysets/test_enqueue", "tests/tasks/test_producer.py"),
            "queues": (),
            "recovery": (
                "tests/tasks/querysets/test_recover.py",
                "tests/tasks/fleet/test_hand_back.py",
            ),
            "relay": ("tests/tasks/celery/",),
            "schedule": ("tests/tasks/maintenance/test_scheduler.py", "tests/tasks/scheduling/"),
            "claim_request": (
                "tests/tasks/querysets/test_kinds.py",
                "tests/tasks/worker/test_kinds.py",
            ),
            "slots": (
                "tests/tasks/querysets/test_slots.py",
                "tests/tasks/querysets/test_kinds.py",
            ),
            "task": ("tests/tasks/querysets/test_conditions.py",),
            "transitions": ("tests/tasks/querysets/test_conditions.py",),
            "unbegun": ("tests/tasks/querysets/test_unbegun.py",),
            "unique": ("tests/tasks/querysets/test_enqueue_unique.py",),
            "worker": (
                "tests/tasks/querysets/test_conditions.py",
                "tests/tasks/querysets/test_claim.py",
                "tests/tasks/querysets/test_kinds.py",
            ),
            "sql/claim": (
                "tests/tasks/querysets/test_claim",
                "tests/tasks/querysets/test_kinds.py",
                "tests/tasks/metrics/",
                "tests/tasks/celery/",
            ),
            "sql/claim_text": (
                "tests/tasks/querysets/test_claim",
                "tests/tasks/querysets/test_kinds.py",
                "tests/tasks/metrics/",
                "tests/tasks/celery/",
            ),
            "sql/complete": ("tests/tasks/querysets/test_claim",),
            "sql/give_back": ("tests/tasks/querysets/test_unbegun.py",),
            "sql/statements": ("tests/tasks/querysets/test_claim",),
            "sql/insert": ("tests/tasks/querysets/test_enqueue",),
        }.items()
    },
}
#: What the verbs rest on apart from the conditions of rows: bent by hand, below.
NEAREST_BY_HAND: dict[str, tuple[str, ...]] = {
    "leasing/hold/held_grant.py": ("tests/leasing/test_hold", "tests/leasing/test_keeper"),
    "leasing/hold/hold.py": ("tests/leasing/test_hold", "tests/leasing/test_keeper"),
    "leasing/hold/trust.py": ("tests/leasing/test_hold", "tests/leasing/test_keeper"),
    "leasing/keeper.py": ("tests/leasing/test_keeper", "tests/leasing/test_hold"),
    "leasing/runtime/breaker.py": ("tests/leasing/test_keeper",),
    "leasing/stores/base.py": ("tests/leasing/contract/", "tests/leasing/stores/"),
    "tasks/execution/context.py": ("tests/tasks/execution/test_completing.py",),
    "tasks/execution/outcome_store.py": ("tests/tasks/execution/", "tests/tasks/worker/"),
}
#: All these files.
PATHS = (*NEAREST, *NEAREST_BY_HAND)
#: Functions that choose between two forms of one verb, or whether a compiled text is kept: what is
#: bent there makes the verb slower, and no row what it must not be.
CHOOSING = frozenset(
    {"_is_granted_in_one", "_is_in_one", "is_plain", "key_of", "plan", "plan_took", "serves"}
)
#: Those that only PostgreSQL runs.
ON_POSTGRESQL = ("leasing/db/postgres/", "tasks/querysets/sql/")


def nearest_of(path: str) -> tuple[str, ...]:
    """The tests that look at a file, the nearest first."""
    return NEAREST.get(path) or NEAREST_BY_HAND[path]


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant, in the order of the files."""
    return tuple(_made())


def _made() -> Iterator[Mutant]:
    for path in NEAREST:
        yield from (m for m in of_file(path) if m.place.rpartition(".")[2] not in CHOOSING)
    yield from _of_trust()
    yield from _of_outcomes()


def _of_trust() -> Iterator[Mutant]:
    """Trust counts from before the request was sent, and ends before the database's expiry."""
    late = "the clock is read after the answer"
    for path, place, before, after in (
        (
            "leasing/db/postgres/granting.py",
            "_granted",
            '"sent_at": sent_at',
            '"sent_at": clock()',
        ),
        (
            "leasing/querysets/granting.py",
            "GrantingRows._grant_locked",
            "rows[old.pk].sent_at = sent_at",
            "rows[old.pk].sent_at = clock()",
        ),
        ("tasks/querysets/sql/claim.py", "_answers", "return sent_at, ", "return clock(), "),
        (
            "leasing/stores/base.py",
            "BaseStore.granted",
            "granted.sent_at = sent_at",
            "granted.sent_at = self.clock()",
        ),
        (
            "leasing/hold/hold.py",
            "Hold.renew",
            "held.renewed(sent_at",
            "held.renewed(keeper.clock()",
        ),
        ("leasing/keeper.py", "Keeper._renew", "hold.renewed(sent_at", "hold.renewed(self.clock()"),
    ):
        yield of_text(path, place, before, after, late)
    yield of_text(
        "leasing/keeper.py",
        "Keeper._renew",
        "hold.due_at = sent_at + hold.interval * jitter",
        "hold.due_at = math.inf",
        "renews each hold once",
    )
    yield of_text(
        "leasing/hold/hold.py",
        "Hold.renew",
        "held.ensure()\n                return",
        "return",
        "without the second `held.ensure()`",
    )
    answered_late = "if self._keeper.clock() >= self.trusted_until:"
    yield of_text(
        "leasing/hold/held_grant.py",
        "HeldGrant.renewed",
        answered_late,
        "if False:",
        "takes an answer that is late",
    )
    limited = "min(wanted, ttl / 3)"
    yield of_text("leasing/hold/trust.py", "margin", limited, "wanted", f"wanted for {limited}")
    yield of_text("leasing/hold/trust.py", "margin", limited, "0.0", f"0.0 for {limited}")
    yield of_text(
        "leasing/runtime/breaker.py",
        "Breaker.lets_pass",
        "self.is_closed or now >= self.opens_again_at",
        "True",
        "an open one lets pass",
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
        "tasks/execution/outcome_store.py",
        "_store_until_stored",
        "connections[using].close()\n        answers",
        "answers",
        "keeps a broken connection",
    )
    unordered = "locks in no order"
    yield of_text(
        "tasks/querysets/ends.py",
        "_lock",
        'first.values()]).order_by("pk"))',
        "first.values()]))",
        unordered,
    )
    yield of_text(
        "tasks/querysets/sql/complete.py",
        "_complete_statement",
        'filter(given).order_by("pk")',
        "filter(given)",
        unordered,
    )
    yield of_text(
        "tasks/querysets/sql/give_back.py",
        "_statement",
        'mine.order_by("pk").only',
        "mine.only",
        unordered,
    )
