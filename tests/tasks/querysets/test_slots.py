"""At most so many tasks of one concurrency key run at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from leasing.db.dialects import lock_names
from leasing.exceptions import LeaseHeld
from tasks.exceptions import GiveUp
from tasks.models import Task
from tasks.querysets import TaskQuerySet, slots
from tests.leasing.support import OtherSession, expire, just_before_the_update
from tests.tasks.support import grant_to, lose, row_of

pytestmark = pytest.mark.django_db


def store(key: str, count: int = 1, *, limit: int = 1, **options: Any) -> list[int]:
    tasks = Task.objects.enqueue_many(
        "jobs.echo",
        [{}] * count,
        concurrency_key=key,
        concurrency_limit=limit if key else None,
        **options,
    )
    return [task.pk for task in tasks]


def claim(limit: int = 100, **options: Any) -> list[int]:
    return [task.pk for task in Task.objects.claim("ann", limit=limit, **options)]


def slots_taken() -> set[str]:
    return set(Task.objects.filter(slot__isnull=False).values_list("slot", flat=True))


def test_no_more_run_than_the_limit_and_the_others_go_past() -> None:
    three = store("a", 5, limit=3)
    one = store("b", 5)
    free = store("", 2)

    assert claim() == [*three[:3], one[0], *free]
    assert slots_taken() == {"a:0", "a:1", "a:2", "b:0"}
    assert claim() == []


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_backlog_behind_one_key_stands_in_nobodys_way(limit: int) -> None:
    store("a", 30, priority=9)
    others = [*store("b", 3, priority=5), *store("", 3)]
    assert len(claim(1)) == 1

    claimed: list[int] = []
    while got := claim(limit):
        claimed += got

    assert claimed == [others[0], *others[3:]]


@pytest.mark.parametrize("limit", [1, 7])
def test_many_full_keys_in_front_cost_few_statements(
    limit: int, django_assert_max_num_queries: Any
) -> None:
    for n in range(30):
        store(f"key {n}", 4, priority=9)
    assert len(claim()) == 30
    free = store("", 10)

    # A look at what comes first; twice one for tasks, between them one at the slots; then the
    # grants as ever.
    with django_assert_max_num_queries(10):
        assert claim(limit) == free[:limit]


@pytest.mark.parametrize(
    "end",
    [
        Task.objects.complete,
        lambda task: Task.objects.fail(task, "no luck"),
        lambda task: Task.objects.fail(task, GiveUp("no hope")),
        lambda task: Task.objects.give_back(task, "stopped"),
        lose,
        lambda task: Task.objects.revoke(),
    ],
    ids=["complete", "fail", "give up", "give back", "recover", "revoke"],
)
def test_whatever_ends_the_running_ends_the_slot(end: Callable[[Task], object]) -> None:
    first, second = store("a", 2)
    (task,) = Task.objects.claim("ann", limit=2)
    assert task.slot == "a:0"

    end(task)

    assert slots_taken() == set()
    assert len(claim()) == 1


def test_one_that_is_stuck_keeps_its_slot_until_it_is_recovered() -> None:
    store("a", 2)
    (task,) = Task.objects.claim("ann", limit=2)
    expire(task)

    assert claim() == []


def test_each_task_is_measured_by_its_own_limit() -> None:
    """As when a deploy has changed the limit: what was stored before has the old one."""
    wide = store("a", 4, limit=4)
    narrow = store("a", 2, limit=2)
    Task.objects.filter(pk=wide[0]).update(priority=9)
    assert claim(1) == [wide[0]]
    Task.objects.filter(pk__in=narrow).update(priority=5)

    assert [pk for _ in range(5) for pk in claim(1)] == [narrow[0], *wide[1:3]]
    assert slots_taken() == {"a:0", "a:1", "a:2", "a:3"}

    # Slots beyond the narrow limit count too.
    for task in Task.objects.filter(slot__in=["a:0", "a:1"]):
        Task.objects.complete(task)
    Task.objects.filter(pk=wide[3]).delete()
    assert claim() == []
    Task.objects.complete(Task.objects.get(slot="a:3"))
    assert claim() == [narrow[1]]
    assert slots_taken() == {"a:0", "a:2"}


@pytest.mark.usefixtures("queues")
def test_a_key_is_one_over_all_queues() -> None:
    for queue in ("default", "mail", "reports"):
        store("a", 2, queue=queue)
        store("b", 1, limit=2, queue=queue)

    claim()

    assert slots_taken() == {"a:0", "b:0", "b:1"}


def test_a_slot_that_was_taken_meanwhile_costs_only_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where keys cannot be locked: both have seen the slot free, the other was faster."""
    free, mine, lost = *store(""), *store("a"), *store("b")
    (theirs,) = store("b")

    write = TaskQuerySet._write_grants

    def take_first(*arguments: Any) -> None:
        monkeypatch.undo()
        grant_to(Task.objects.get(pk=theirs), "bob")
        Task.objects.filter(pk=theirs).update(slot="b:0")
        write(*arguments)

    monkeypatch.setattr(TaskQuerySet, "_write_grants", take_first)
    assert claim(3) == [free, mine]

    assert slots_taken() == {"a:0", "b:0"}
    assert row_of(Task.objects.get(pk=lost))["status"] == "ready"
    assert row_of(Task.objects.get(pk=lost))["attempts"] == 0


def test_a_task_that_is_acquired_as_any_row_takes_a_slot() -> None:
    first, second = (Task.objects.get(pk=pk) for pk in store("a", 2))

    Task.objects.acquire(first)

    assert slots_taken() == {"a:0"}
    with pytest.raises(LeaseHeld):
        Task.objects.acquire(second)


@pytest.mark.usefixtures("portable")
def test_a_task_that_was_taken_meanwhile_takes_no_slot() -> None:
    first, second = store("a", 2, limit=2)

    with just_before_the_update(lambda: grant_to(Task.objects.get(pk=first), "bob")):
        assert claim() == [second]

    assert slots_taken() == {"a:1"}


def test_a_key_that_another_claim_has_is_tried_again_and_then_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for it, every claim would stand still behind a process that was stopped."""
    asked: list[str] = []
    pauses: list[int] = []

    def busy(using: str, names: set[str]) -> set[str]:
        asked.extend(sorted(names))
        patient = asked.count("leasing_tasks.slot:a") > 2
        return {name for name in names if patient and name != "leasing_tasks.slot:b"}

    monkeypatch.setattr(slots, "lock_names", busy)
    monkeypatch.setattr(slots, "pause_shortly", lambda: pauses.append(len(asked)))
    (first, *_), _, free = store("a", 3), store("b", 3), store("")

    assert claim(3) == [first, *free]

    assert asked == ["leasing_tasks.slot:a"] * 3 + ["leasing_tasks.slot:b"] * slots.TRIES
    assert len(pauses) == 2 + slots.TRIES
    assert slots_taken() == {"a:0"}


def test_what_was_seated_in_one_look_counts_in_the_next() -> None:
    """Nothing is written before the last look: the rows do not say so yet."""
    first, second, over = [*store("a"), *store("b"), *store("b")]
    (more,) = store("a", limit=2)

    assert claim(3) == [first, second, more]

    assert slots_taken() == {"a:0", "a:1", "b:0"}
    assert row_of(Task.objects.get(pk=over))["status"] == "ready"


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_names_are_locked_by_one_transaction_at_a_time(other_session: OtherSession) -> None:
    using = connection.alias
    other_session.begin()
    assert other_session.run(lambda: lock_names(using, ["a", "b"])) == {"a", "b"}

    with transaction.atomic():
        assert lock_names(using, ["a", "b", "c"]) == {"c"}

    other_session.commit()
    with transaction.atomic():
        assert lock_names(using, ["a", "b", "c"]) == {"a", "b", "c"}


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("locks", [True, False], ids=["keys locked", "keys not locked"])
def test_claims_at_once_never_exceed_a_limit(locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not locks:
        monkeypatch.setattr(slots, "lock_names", lambda using, names: set(names))
    for key, limit in (("a", 1), ("b", 3)):
        store(key, 8, limit=limit)
    store("", 8)
    exceeded: list[Any] = []
    done: list[int] = []
    together = threading.Barrier(4)

    def work(name: str) -> None:
        try:
            together.wait(10)
            for _ in range(200):
                for task in Task.objects.claim(name, limit=2 if locks else 1):
                    running = Task.objects.running().values_list("concurrency_key", flat=True)
                    count = Counter(running)
                    if count["a"] > 1 or count["b"] > 3:
                        exceeded.append(count)
                    Task.objects.complete(task)
                    done.append(task.pk)
                if len(done) == 24:
                    break
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(f"worker-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert exceeded == []
    assert len(done) == len(set(done)) == 24
