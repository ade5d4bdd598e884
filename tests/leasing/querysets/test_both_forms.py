"""The oracle of the statements by hand: the portable form of a verb, on the same random rows.

Both forms of each verb run in savepoints of one transaction, with a clock that stands still. They
must answer alike, leave every column of every row alike, and write the same ledger.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self
from unittest.mock import patch

import pytest
from django.db import connection, models, transaction
from django.db.models import Case, F, Q, When

from leasing.db import sql
from leasing.db.dialects import as_if_of_test
from leasing.db.sql import in_sql, sql_of
from leasing.exceptions import LeaseHeld, LeaseLost, PayloadMismatch
from leasing.functions import EPOCH, DbNow
from leasing.models import Leasable, Lease, LeaseEvent, OnceKey
from leasing.models.once import OnceTerms
from leasing.querysets import GRANTING, LeasableQuerySet
from leasing.runtime.aio import drive
from leasing.validation.terms import Terms
from tasks.models import Task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession, under_repeatable_read
from tests.pages import queries

pytestmark = pytest.mark.usefixtures("on_postgresql")

#: Rows of each model.
COUNT = 80


class OpenQuerySet(LeasableQuerySet[Any]):
    """Rows with a narrowed condition."""

    @in_sql("(t.released_at IS NOT NULL OR t.expires_at <= {now}) AND t.size < 7")
    def available(self) -> Self:
        return super().available().filter(size__lt=7)

    @in_sql("t.released_at IS NULL AND t.size > 2")
    def holding(self) -> Self:
        return super().holding().filter(size__gt=2)


class NarrowerQuerySet(OpenQuerySet):
    """A subclass that narrows it again."""

    @in_sql(f"{sql_of(OpenQuerySet.holding)} AND t.size <> 5")
    def holding(self) -> Self:
        return super().holding().exclude(size=5)


class SealedQuerySet(OpenQuerySet):
    """A subclass that narrows it in Python alone."""

    def holding(self) -> Self:
        return super().holding().exclude(size=5)


class RecountedQuerySet(LeasableQuerySet[Any]):
    """A renewal with a column of its own, in Python alone."""

    def renewal(self) -> dict[str, Any]:
        return super().renewal() | {"size": F("size") + 1}


class CountingQuerySet(LeasableQuerySet[Any]):
    """A grant with columns of its own, of which one is made of the row and of the clock."""

    @in_sql(
        GRANTING
        | {
            "size": "CASE WHEN t.expires_at < {now} THEN t.size + 1 ELSE t.size END",
            "packer": "%(holder)s",
        }
    )
    def granting(self, terms: Terms) -> dict[str, Any]:
        over = When(expires_at__lt=DbNow(), then=F("size") + 1)
        size = Case(over, default=F("size"))
        return super().granting(terms) | {"size": size, "packer": terms.holder}


class EvenManager(models.Manager.from_queryset(LeasableQuerySet)):  # type: ignore[misc]
    """Hides rows."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(size__in=(0, 2, 4, 6, 8))


def _model(name: str, manager: Any, **more: Any) -> Any:
    meta = type("Meta", (Leasable.Meta,), {"app_label": "forms"})
    columns = {"size": models.IntegerField(default=0), "packer": models.TextField(default="")}
    return type(
        name,
        (Leasable,),
        {"__module__": __name__, "Meta": meta, "objects": manager, **columns, **more},
    )


Open = _model("Open", OpenQuerySet.as_manager())
Narrower = _model("Narrower", NarrowerQuerySet.as_manager())
Sealed = _model("Sealed", SealedQuerySet.as_manager())
Labelled = _model(
    "Labelled",
    LeasableQuerySet.as_manager(),
    label=models.UUIDField(primary_key=True, db_column="label no", default=uuid.uuid4),
)
Hidden = _model("Hidden", EvenManager())
Counting = _model("Counting", CountingQuerySet.as_manager())
Recounted = _model("Recounted", RecountedQuerySet.as_manager())
USERS = (Open, Narrower, Labelled, Hidden, Counting)
MODELS = (Lease, OnceKey, Task, *USERS)
#: Models with a condition or columns in Python alone.
UNSENT = (Sealed, Recounted)


@pytest.fixture(scope="module", autouse=True)
def _tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    if connection.vendor != "postgresql":
        yield
        return
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            for model in (*USERS, *UNSENT):
                editor.create_model(model)
        yield
        with connection.schema_editor() as editor:
            for model in (*USERS, *UNSENT):
                editor.delete_model(model)


# Random rows


def made(model: Any, count: int, now: datetime, seed: int = 7) -> list[Any]:
    """Make ``count`` rows in any state, and return them as the database has them."""
    dice = random.Random(f"{model.__name__} {seed}")
    rows = [model(**_columns(model, number, now, dice)) for number in range(count)]
    model._base_manager.bulk_create(rows)
    return list(every(model))


def every(model: Any) -> Any:
    return model.lease_rows().order_by("pk")


def _columns(model: Any, number: int, now: datetime, dice: random.Random) -> dict[str, Any]:
    def near() -> datetime:
        """A moment that is far from now, next to it, or now."""
        seconds = dice.choice([-900, -60, -1e-6, 0, 1e-6, 20, 3600])
        return now + timedelta(seconds=seconds)

    columns: dict[str, Any] = {}
    state = dice.choice(["free", "held", "held", "held", "released", "released early"])
    if state != "free":
        columns = {
            "holder": dice.choice(["ann", "bob"]),
            "grant_id": uuid.UUID(int=dice.getrandbits(128), version=4),
            "grants": dice.randint(1, 9),
            "fencing_token": dice.choice([1, 5, 10**15, 2 * 10**16]),
            "ttl": timedelta(seconds=dice.choice([1, 30, 86400])),
            "acquired_at": now - timedelta(hours=2),
            "expires_at": near(),
        }
        if dice.random() < 0.5:
            columns |= {"renewals": dice.randint(1, 4), "renewed_at": now - timedelta(minutes=1)}
        if state.startswith("released"):
            if state == "released early":
                columns["expires_at"] = min(columns["expires_at"], now - timedelta(seconds=5))
            # By a clock that was set back since, both may lie ahead.
            columns["released_at"] = max(columns["expires_at"], near())
    if model is Lease:
        columns |= {
            "resource": f"r{number:04}",
            "created_at": now,
            "priority": dice.randint(0, 3),
            "grace": timedelta(seconds=dice.choice([0, 1, 60])),
            # Never before the deadline.
            "ends_at": dice.choice([None, max(near(), columns.get("expires_at", EPOCH))]),
            "yield_to": dice.choice(["", "eve"]),
            "metadata": dice.choice([{}, {"n": [1, "%{}"]}]),
            "wanted_until": dice.choice([None, near()]),
            "wanted_by": dice.choice(["", "eve"]),
        }
    elif model is OnceKey:
        columns |= {
            "key": f"k{number:04}",
            "payload_hash": dice.choice(["", "a"]),
            "window_ends_at": dice.choice([EPOCH, near()]),
            "attempts": dice.randint(0, 3),
        }
        if columns.get("released_at") and dice.random() < 0.5:
            columns |= {"finished_at": near(), "result": {"n": 1}}
    elif model is Task:
        columns |= {
            "name": "nothing",
            "created_at": now,
            "scheduled_at": near(),
            "kind": 0,
            "max_attempts": 20,
        }
        if state == "held":
            columns |= {
                "status": "running",
                "started_at": now,
                "attempts": dice.randint(1, 3),
                "progressed_at": now,
            }
        elif state.startswith("released") and dice.random() < 0.5:
            columns |= {"status": "succeeded", "processed_at": now}
    else:
        columns |= {"size": dice.randint(0, 9), "packer": dice.choice(["", "cy"])}
        if model is Labelled:
            columns["label"] = uuid.UUID(int=dice.getrandbits(128), version=4)
    return columns


# Both forms


@contextmanager
def portable() -> Iterator[None]:
    with patch.object(sql, "serves", lambda using: False):
        yield


def state_of(model: Any, before: dict[Any, Any]) -> dict[str, Any]:
    """Every column of every row, and the ledger; a new grant is called so."""

    def named(pk: Any, grant: Any) -> str:
        return "none" if grant is None else "same" if grant == before.get(pk) else "new"

    rows = {}
    for row in every(model).values():
        pk = row[model._meta.pk.attname]
        rows[pk] = row | {"grant_id": named(pk, row["grant_id"])}
    events = sorted(
        (e["key"], e["kind"], *(str(v) for k, v in e.items() if k not in ("id", "grant_id")))
        + (named(before["of"](e["key"]), e["grant_id"]),)
        for e in LeaseEvent.objects.values()
    )
    return {"rows": rows, "events": events}


def compared(by_hand: Any, expected: Any) -> None:
    """Compare two outcomes, and show the places in which they differ."""
    differences = [*_unlike(by_hand, expected, "")]
    assert differences == []


def _unlike(one: Any, other: Any, place: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from _unlike(one.get(name), other.get(name), f"{place}[{name!r}]")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{place}: {len(one)} != {len(other)}"
        for number, (each, its) in enumerate(zip(one, other, strict=False)):
            yield from _unlike(each, its, f"{place}[{number}]")
    elif one != other:
        yield f"{place}: {one!r} != {other!r}"


def told(rows: Any) -> list[Any]:
    """The attributes of instances, as a verb returns them."""
    return [
        {
            name: value
            for name, value in vars(row).items()
            if name not in ("grant_id", "sent_at", "now") and not name.startswith("_")
        }
        for row in rows
    ]


def outcome(verb: Callable[[], Any], model: Any, before: dict[Any, Any]) -> Any:
    """The answer of ``verb`` or its error, and what it has left; undone."""
    answer: Any = None
    random.seed(7)  # of the pause after which a task runs again
    with transaction.atomic():
        with as_if_of_test("default"):
            try:
                answer = verb()
            except (LeaseHeld, LeaseLost) as error:
                answer = type(error).__name__
        found = answer, state_of(model, before)
        transaction.set_rollback(True)
    return found


Verb = Callable[[Any, list[Any]], Any]


def _renewed_many(model: Any, rows: list[Any]) -> Any:
    answer = every(model).renew_many({row.pk: row.grant_id for row in rows if row.grant_id})
    return answer.renewed, {key: str(why) for key, why in answer.lost.items()}


def _released_many(model: Any, rows: list[Any]) -> Any:
    rows = [row for row in rows if row.grant_id]
    lost = every(model).release_many(rows)
    return sorted((str(key), loss.reason) for key, loss in lost.items()), told(rows)


def _each(verb: str) -> Verb:
    def each(model: Any, rows: list[Any]) -> Any:
        answers: list[Any] = []
        for row in [row for row in rows if row.grant_id][:40]:
            try:
                answers += told([getattr(model.lease_rows(), verb)(row)])
            except LeaseLost as loss:
                answers.append(loss.reason)
        return answers

    return each


def _acquired(model: Any, rows: list[Any]) -> Any:
    answers: list[Any] = []
    for row in rows[:40]:
        terms = _terms(model)
        key = ("resource", row.resource) if model is Lease else ("pk", row.pk)
        steps = model.lease_rows().acquiring(row.lease_resource, terms, 0, key)
        try:
            answers += told([drive(steps)])
        except LeaseHeld as held:
            answers.append((held.holder, held.expires_at))
        except PayloadMismatch:
            answers.append("other work")
    return answers


def _terms(model: Any) -> Terms:
    if model is OnceKey:
        window = timedelta(hours=1)
        return OnceTerms("cy", timedelta(seconds=9), window=window, payload_hash="a")
    terms = Terms("c%y's", timedelta(days=1, microseconds=7))
    if model is Lease:
        longest = timedelta(hours=2)
        more = {"priority": 2, "max_hold": longest, "grace": longest, "metadata": {"a": "%s{}"}}
        terms = replace(terms, **more)  # type: ignore[arg-type]
    return terms


def _claimed(narrow: Callable[[Any], Any]) -> Verb:
    def claimed(model: Any, rows: list[Any]) -> Any:
        if model in (OnceKey, Task):  # have verbs of their own
            return None
        narrowed = narrow(model._default_manager.all())
        return told(narrowed.claim(40, holder="cy", ttl=9))

    return claimed


def _of_request(model: Any, rows: list[Any]) -> Any:
    if model is not Lease:
        return None
    answers: list[Any] = []
    for number, row in enumerate(rows[:30]):
        request = uuid.UUID(int=number)
        terms = replace(_terms(model), request_id=request)
        for _ in range(2):
            try:
                lease = drive(Lease.objects.acquiring_named(row.resource, terms, 0))
                answers.append((row.resource, terms.granted(lease)))
                if number % 2:
                    lease.release()
            except (LeaseHeld, LeaseLost) as error:
                answers.append(type(error).__name__)
    return answers


VERBS: dict[str, Verb] = {
    "renew many": _renewed_many,
    "release many": _released_many,
    "renew": _each("renew"),
    "release": _each("release"),
    "acquire": _acquired,
    "acquire for a request": _of_request,
    "claim": _claimed(lambda rows: rows),
    "claim by a filter": _claimed(lambda rows: rows.filter(~Q(holder="a%s{}"), grants__lt=7)),
    "claim in an order": _claimed(lambda rows: rows.order_by("-grants", "fencing_token", "pk")),
}


@pytest.mark.django_db
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("verb", VERBS)
def test_a_statement_by_hand_does_what_the_portable_form_does(
    verb: str, model: Any, database_clock: DatabaseClock
) -> None:
    rows = made(model, COUNT, database_clock.now)
    keys = {str(row.pk): row.pk for row in rows}
    before = {row.pk: row.grant_id for row in rows} | {"of": keys.get}

    def once() -> Any:
        return outcome(lambda: VERBS[verb](model, list(every(model))), model, before)

    by_hand = once()
    with portable():
        expected = once()

    compared(by_hand, expected)


# Others write meanwhile


@contextmanager
def before_the_lock(meanwhile: Callable[[], object]) -> Iterator[None]:
    """Do ``meanwhile`` before a verb's first statement that locks, after a query before it."""
    waiting = [meanwhile]

    def wrapper(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        if waiting and "SKIP LOCKED" in text:
            waiting.pop()()
        return execute(text, params, many, context)

    with connection.execute_wrapper(wrapper):
        yield
    assert not waiting


@pytest.mark.slow
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("verb", ["renew many", "claim", "claim by a filter"])
@pytest.mark.django_db(transaction=True)
def test_both_forms_pass_over_what_others_lock_and_judge_what_they_have_written(
    verb: str, model: Any, level: str, database_clock: DatabaseClock, other_session: OtherSession
) -> None:
    def once() -> Any:
        LeaseEvent.base_objects.all().delete()
        model._base_manager.all().delete()
        with connection.cursor() as cursor:  # so that keys are the same
            if model is not Labelled:
                table = connection.ops.quote_name(model._meta.db_table)
                cursor.execute(f"TRUNCATE {table} RESTART IDENTITY CASCADE")
        rows = made(model, 90, database_clock.now)
        locked, committed, revoked = rows[::9], rows[3::9], rows[6::9]

        def meanwhile() -> None:
            endless = {"ends_at": None} if model is Lease else {}
            later = every(model).filter(pk__in=[row.pk for row in committed])
            other_session.run(
                lambda: later.filter(expires_at__gt=EPOCH).update(
                    expires_at=DbNow() + timedelta(hours=1), released_at=None, **endless
                )
            )
            others = every(model).filter(pk__in=[row.pk for row in revoked])
            other_session.run(others.revoke)
            other_session.begin()
            mine = every(model).filter(pk__in=[row.pk for row in locked]).select_for_update()
            other_session.run(lambda: list(mine))

        try:
            with before_the_lock(meanwhile):
                answer = VERBS[verb](model, rows)
        finally:
            other_session.commit()
        keys = {str(row.pk): row.pk for row in rows}
        return answer, state_of(model, {row.pk: row.grant_id for row in rows} | {"of": keys.get})

    if verb != "renew many" and model in (OnceKey, Task):
        pytest.skip("they have verbs of their own")

    def both() -> tuple[Any, Any]:
        by_hand = once()
        with portable():
            return by_hand, once()

    if level == "read committed":
        by_hand, expected = both()
    else:
        with under_repeatable_read():
            by_hand, expected = both()
    compared(by_hand, expected)


# What has no SQL


@pytest.mark.django_db
def test_an_override_without_sql_of_its_own_takes_the_portable_form() -> None:
    for model, renews, releases in ((Narrower, 1, 1), (Sealed, 0, 0), (Recounted, 0, 1)):
        held = model.objects.acquire(model.objects.create(size=4))
        for verb, expected in ((model.objects.renew, renews), (model.objects.release, releases)):
            with queries() as sent:
                verb(held)
            by_hand = [text for text in sent() if text.lstrip().startswith("WITH")]
            assert len(by_hand) == expected, (model, verb)
    assert Recounted.objects.get().size == 5
