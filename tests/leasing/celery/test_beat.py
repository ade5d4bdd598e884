"""Beats of which one leads: what each sends, and what is sent once."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, Scheduler, Service
from celery.schedules import crontab, schedule
from django.db import OperationalError as DatabaseError
from django.db import connection, transaction
from kombu.exceptions import EncodeError, OperationalError

from leasing.celery.beat import CHECK_EVERY, RETRY_AFTER, Campaign, LeaderMixin, LeaderScheduler
from leasing.exceptions import LeaseLost
from leasing.holding import Term
from leasing.models import BeatEntry, Lease
from leasing.testing import assert_free, expire, hold_elsewhere
from tests.processes import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

BEAT = "beat:shop"
NOW = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)


class Led(LeaderMixin):
    """A beat whose messages are kept, and whose leadership a test gives and takes."""

    def __init__(self, app: Any, leads: bool = True, **options: Any) -> None:
        super().__init__(app=app, **options)  # type: ignore[call-arg]
        self.sent: list[SimpleNamespace] = []
        #: Raised where a message is sent, and where an entry is applied.
        self.trouble: Exception | None = None
        self.refusal: Exception | None = None
        self.confirms = True
        #: Called between a claim and its message.
        self.after_claim: Callable[[], object] = lambda: None
        self.producer = None
        self._block = ExitStack()
        self._campaign: Any = SimpleNamespace(term=None, end=self._end)
        if leads:
            self.lead()

    def lead(self) -> Term:
        term = self._block.enter_context(Lease.objects.hold(BEAT, ttl=30))
        self._campaign.term = term
        return term

    def _end(self) -> None:
        with suppress(LeaseLost):
            self._block.close()

    def lose(self) -> None:
        """Another leads from now on, and this beat does not know."""
        expire(BEAT)

    def hear(self) -> None:
        """Now it knows."""
        self._campaign.term = None

    def mend(self) -> None:
        """The broker is back, and is tried at once."""
        self.trouble, self._retry_at = None, 0.0

    def read_anew(self) -> None:
        """Read the entries of the database again at the next tick."""
        self._led = None

    def campaign_in_earnest(self) -> None:
        self._campaign = None

    def leads_now(self) -> object:
        return self._campaign.term

    def reserve(self, entry: Any) -> Any:
        claimed = super().reserve(entry)
        self.after_claim()
        return claimed

    def apply_entry(self, *args: Any, **options: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return super().apply_entry(*args, **options)

    def _confirm(self, row: BeatEntry) -> None:
        if self.confirms:
            super()._confirm(row)

    def send_task(self, name: str, *args: Any, **options: Any) -> Any:
        if self.trouble is not None:
            raise self.trouble
        self.sent.append(SimpleNamespace(name=name, **options))

    def run(self, ticks: int = 10) -> list[SimpleNamespace]:
        """Tick, and return what was sent meanwhile."""
        before = len(self.sent)
        for _ in range(ticks):
            self.tick()
        return self.sent[before:]


class Beat(Led, Scheduler):  # type: ignore[misc]
    """On Celery's plain scheduler, as LeaderScheduler."""


class PersistentBeat(Led, PersistentScheduler):  # type: ignore[misc]
    """On one that keeps a file."""


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.result_expires = None  # Celery's own entry would be in the way
    app.conf.beat_schedule = {"tidy": {"task": "tidy", "schedule": 10.0}}
    return app


Beats = Callable[..., Led]


@pytest.fixture
def beats(app: Celery) -> Iterator[Beats]:
    made: list[Led] = []

    def make(kind: type[Led] = Beat, **options: Any) -> Led:
        made.append(kind(app, **options))
        return made[-1]

    yield make
    for beat in made:
        beat.hear()
        beat.close()


def last_sent(ago: float, name: str = "tidy", **columns: Any) -> datetime:
    """The entry's latest slot was ``ago`` seconds ago, and confirmed."""
    moment = datetime.now(UTC) - timedelta(seconds=ago)
    BeatEntry.objects.update_or_create(
        beat=BEAT, name=name, defaults={"last_run_at": moment, **columns}
    )
    return moment


def slots(messages: list[SimpleNamespace]) -> list[datetime]:
    return [datetime.fromisoformat(each.headers["beat_slot"]) for each in messages]


# One beat


def test_the_leader_sends_what_is_due_and_notes_it(beats: Beats) -> None:
    before = last_sent(ago=11)

    (message,) = beats().run()

    row = BeatEntry.objects.get()
    assert message.task_id == str(row.task_id)
    assert slots([message]) == [row.last_run_at] == [before + timedelta(seconds=10)]
    assert row.runs == 1
    assert row.sent_at is not None


def test_the_first_slot_of_a_new_entry_is_yet_to_come(beats: Beats) -> None:
    beat = beats()

    assert beat.run() == []
    assert 0 < beat.tick() <= 10


def test_an_entry_of_the_same_name_is_another_in_another_beat() -> None:
    other = BeatEntry.objects.create(beat="beat:other", name="tidy", last_run_at=NOW)

    known = BeatEntry.objects.known(BEAT, ["tidy"], NOW)

    assert known["tidy"].beat == BEAT
    assert BeatEntry.objects.known("beat:other", ["tidy"], NOW) == {"tidy": other}


def test_an_entry_that_left_the_schedule_is_not_read() -> None:
    BeatEntry.objects.known(BEAT, ["tidy", "left"], NOW)

    assert [*BeatEntry.objects.known(BEAT, ["tidy"], NOW)] == ["tidy"]


def test_who_does_not_lead_sends_nothing(beats: Beats) -> None:
    last_sent(ago=11)
    beat = beats(leads=False)

    assert beat.run() == []
    assert beat.tick() == CHECK_EVERY


def test_a_task_id_that_the_entry_says_stays(beats: Beats, app: Celery) -> None:
    app.conf.beat_schedule["tidy"]["options"] = {"task_id": "fixed", "queue": "slow"}
    last_sent(ago=11)

    (message,) = beats().run()

    assert (message.task_id, message.queue) == ("fixed", "slow")


def test_names_longer_than_a_column_are_told_apart(beats: Beats, app: Celery) -> None:
    names = {"x" * 200 + end for end in "ab"}
    app.conf.beat_schedule = {name: {"task": name, "schedule": 10.0} for name in names}
    beat = beats()
    beat.tick()
    BeatEntry.objects.update(last_run_at=datetime.now(UTC) - timedelta(seconds=11))
    beat.read_anew()

    assert {each.name for each in beat.run()} == names


def test_a_scheduler_with_a_file_of_its_own_believes_the_database(
    beats: Beats, tmp_path: Path
) -> None:
    before = last_sent(ago=25)
    first = beats(PersistentBeat, schedule_filename=str(tmp_path / "one"))
    sent = first.run(ticks=1)
    first.lose()

    sent += beats(PersistentBeat, schedule_filename=str(tmp_path / "two")).run()

    assert slots(sent) == [before + timedelta(seconds=10 * n) for n in (1, 2)]


# Slots


def test_slots_that_a_hand_over_delayed_are_made_up_for_one_by_one(beats: Beats) -> None:
    before = last_sent(ago=35)
    beat = beats()

    assert slots(beat.run()) == [before + timedelta(seconds=10 * n) for n in (1, 2, 3)]
    assert 0 < beat.tick() <= 5


def test_of_older_slots_one_stands_for_all(beats: Beats) -> None:
    before = last_sent(ago=3605)

    assert slots(beats().run()) == [before + timedelta(seconds=3600)]


def test_a_crontab_is_served_at_its_moment_in_its_own_zone(beats: Beats, app: Celery) -> None:
    app.conf.timezone = "Asia/Tokyo"
    plan = crontab(minute="0", hour="21", nowfun=lambda: NOW.astimezone(app.timezone), app=app)
    app.conf.beat_schedule["tidy"]["schedule"] = plan
    last_sent(0)
    BeatEntry.objects.update(last_run_at=NOW - timedelta(days=1))

    assert slots(beats().run()) == [NOW.replace(second=0)]


def test_a_crontab_is_served_once_though_time_passes_while_it_is_looked_at(
    beats: Beats, app: Celery
) -> None:
    ticking = (NOW.replace(second=0) + timedelta(milliseconds=7 * n) for n in itertools.count())
    plan = crontab(minute="0", hour="12", nowfun=lambda: next(ticking), app=app)
    app.conf.beat_schedule["tidy"]["schedule"] = plan
    last_sent(0)
    BeatEntry.objects.update(last_run_at=NOW - timedelta(hours=1))

    assert slots(beats().run()) == [NOW.replace(second=0)]


def test_what_an_entry_says_of_its_last_run_counts_for_nothing(beats: Beats) -> None:
    last_sent(ago=5)
    beat = beats()
    beat.tick()
    (entry,) = beat.schedule.values()
    entry.last_run_at = datetime.now(UTC) - timedelta(days=1)

    assert not beat.is_due(entry)[0]


def test_a_slot_is_not_served_twice_when_clocks_differ(beats: Beats, app: Celery) -> None:
    plan = schedule(10.0, nowfun=lambda: NOW, app=app)
    app.conf.beat_schedule["tidy"]["schedule"] = plan
    last_sent(0)
    # Sent by one whose clock is ahead of this one's.
    BeatEntry.objects.update(last_run_at=NOW + timedelta(seconds=3))

    assert beats().run() == []


# Two beats


def test_the_next_leader_goes_on_where_the_last_one_ended(beats: Beats) -> None:
    before = last_sent(ago=25)
    first = beats()
    sent = first.run(ticks=1)  # and dies
    first.lose()

    sent += beats().run()

    assert slots(sent) == [before + timedelta(seconds=10 * n) for n in (1, 2)]


def test_a_leader_that_lost_its_term_unnoticed_sends_nothing(beats: Beats) -> None:
    last_sent(ago=11)
    old = beats()
    old.lose()
    with hold_elsewhere(BEAT):
        assert old.run(ticks=1) == []

    assert BeatEntry.objects.get().runs == 0


def test_a_leader_frozen_before_it_sends_leaves_the_slot_to_the_next(
    beats: Beats,
) -> None:
    last_sent(ago=11)
    old = beats()

    def freeze() -> None:
        old.lose()
        old.hear()

    old.after_claim = freeze
    assert old.run() == []

    (message,) = beats().run()

    row = BeatEntry.objects.get()
    assert (message.task_id, row.runs) == (str(row.task_id), 1)


def test_a_slot_whose_sender_died_before_it_said_so_comes_with_the_same_id(
    beats: Beats,
) -> None:
    last_sent(ago=11)
    old = beats()
    old.confirms = False
    (first,) = old.run(ticks=1)
    old.lose()

    (second,) = beats().run()

    assert first.task_id == second.task_id


def test_a_claim_is_refused_when_the_row_is_not_as_it_was_read() -> None:
    last_sent(ago=11, fencing_token=5)
    row = BeatEntry.objects.get()
    now = datetime.now(UTC)

    with transaction.atomic():
        assert BeatEntry.objects.claim(row, now, 4) is None
        assert BeatEntry.objects.claim(row, now, 5) is not None
        assert BeatEntry.objects.claim(row, now, 6) is None
    assert BeatEntry.objects.get().runs == 1


def test_a_claim_is_of_one_entry() -> None:
    last_sent(ago=11)
    last_sent(ago=11, name="other")

    with transaction.atomic():
        BeatEntry.objects.claim(BeatEntry.objects.get(name="tidy"), NOW, 1)

    assert [entry.runs for entry in BeatEntry.objects.order_by("name")] == [0, 1]


def test_a_claim_says_nothing_yet_of_its_message() -> None:
    last_sent(ago=11, runs=1, task_id=uuid.uuid4(), sent_at=NOW)
    row = BeatEntry.objects.get()

    with transaction.atomic():
        claimed = BeatEntry.objects.claim(row, NOW, 1)

    stored = BeatEntry.objects.get()
    assert claimed is not None
    assert stored.is_unsure
    assert stored.task_id == claimed.task_id != row.task_id


def test_an_old_confirmation_says_nothing_of_a_newer_slot() -> None:
    last_sent(ago=11)
    with transaction.atomic():
        old = BeatEntry.objects.claim(BeatEntry.objects.get(), NOW, 1)
        assert old is not None
        assert BeatEntry.objects.claim(old, NOW, 2) is not None

    BeatEntry.objects.confirm(old)

    assert BeatEntry.objects.get().is_unsure


def test_a_slot_that_is_confirmed_again_was_sent_when_it_was_said_first() -> None:
    last_sent(ago=11)
    with transaction.atomic():
        claimed = BeatEntry.objects.claim(BeatEntry.objects.get(), NOW, 1)
    assert claimed is not None
    BeatEntry.objects.confirm(claimed)
    BeatEntry.objects.update(sent_at=NOW)

    BeatEntry.objects.confirm(claimed)

    assert BeatEntry.objects.get().sent_at == NOW


# Trouble


def test_a_slot_waits_for_its_broker_and_the_later_ones_wait_for_it(beats: Beats) -> None:
    before = last_sent(ago=25)
    beat = beats()
    beat.trouble = OperationalError("the broker is away")
    assert beat.run() == []
    assert beat.tick() <= RETRY_AFTER

    beat.mend()

    assert slots(beat.run()) == [before + timedelta(seconds=10 * n) for n in (1, 2)]


def test_what_can_never_be_sent_is_given_up(beats: Beats, caplog: pytest.LogCaptureFixture) -> None:
    last_sent(ago=11)
    beat = beats()
    beat.trouble = EncodeError("not JSON")

    with caplog.at_level(logging.ERROR):
        assert beat.run() == []

    assert "not JSON" in caplog.text
    assert not BeatEntry.objects.get().is_unsure


def test_an_entry_that_was_taken_off_the_schedule_is_not_sent_again(beats: Beats) -> None:
    last_sent(ago=11)
    beat = beats()
    beat.trouble = OperationalError("the broker is away")
    beat.run()
    beat.mend()
    del beat.schedule["tidy"]

    assert beat.run() == []


def away(execute: Any, sql: str, *statement: Any) -> Any:
    """A database in which no entry can be written."""
    if sql.startswith("UPDATE") and "leasing_beatentry" in sql:
        raise DatabaseError("away")
    return execute(sql, *statement)


def test_beat_goes_on_when_the_database_is_back(beats: Beats) -> None:
    last_sent(ago=11)
    beat = beats()
    with connection.execute_wrapper(away):
        assert beat.tick() == RETRY_AFTER

    assert len(beat.run()) == 1


def test_beat_outlives_a_broker_that_refuses_connections(beats: Beats) -> None:
    before = last_sent(ago=11)
    beat = beats()
    beat.refusal = ConnectionRefusedError()
    assert beat.tick() == RETRY_AFTER
    beat.refusal = None

    assert slots(beat.run()) == [before + timedelta(seconds=10)]


def test_a_confirmation_that_fails_does_not_send_again(beats: Beats) -> None:
    last_sent(ago=11)
    beat = beats()
    with ExitStack() as is_away:
        beat.after_claim = lambda: is_away.enter_context(connection.execute_wrapper(away))
        assert len(beat.run()) == 1
    beat.after_claim = lambda: None

    assert beat.run() == []


# The campaign


def test_a_beat_is_elected_and_gives_the_leadership_back(app: Celery) -> None:
    last_sent(ago=11)
    beat = Beat(app, leads=False)
    beat.campaign_in_earnest()
    beat.tick()
    try:
        wait_for(beat.leads_now)
        assert len(beat.run()) == 1
    finally:
        beat.close()
    beat.close()

    assert_free(BEAT)


def test_what_ends_a_campaign_ends_the_beat() -> None:
    def terms(stopping: object) -> Iterator[Term]:
        raise RuntimeError("no threads left")
        yield

    campaign = Campaign(SimpleNamespace(terms=terms))  # type: ignore[arg-type]
    campaign.end()

    with pytest.raises(RuntimeError, match="no threads left"):
        _ = campaign.term


def test_beat_finds_the_scheduler_and_says_what_it_competes_for(app: Celery) -> None:
    service = Service(app, scheduler_cls="leasing.celery:LeaderScheduler")

    scheduler = service.get_scheduler(lazy=True)

    assert type(scheduler) is LeaderScheduler
    assert BEAT in scheduler.info
