"""Celery's beat on every node: one leads and sends, the others are on standby.

Leadership alone is not enough: a leader may be suspended after it has read the clock and before it
sends. So each slot (a due moment of one entry) is claimed by a write that proves the term, in a
transaction that locks the lease's row, and that is conditional on the previous slot.

claim    → ``BeatEntry.claim``: after it no other beat takes this slot
send     → with the message id that the claim chose, if the term still lasts
confirm  → the slot is done

What happens when
    the leader dies                 the next reads what was claimed, and continues from there
    ... between claim and confirm   the next sends the slot again, with the same message id, since
                                    it cannot know. No slot is lost; a duplicate has the same id.
                                    A duplicate needs a death within these milliseconds
    the leader is suspended before the claim    the claim is refused when it resumes
    ... between claim and send      its term has ended when it resumes: it does not send
    the broker does not answer      the slot stays claimed and is sent again until the broker
                                    accepts it; the entry's later slots wait
    the database does not answer    the term ends, and nobody sends until it answers

A slot is at the time of the schedule (the previous slot plus the interval, or the time of a
crontab), not at the time at which a beat noticed it. Slots that a change of the leader delayed are
sent one by one if they are at most ``catch_up`` seconds old. For all older ones, one is sent, as
with any beat after a pause.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.beat import Scheduler, SchedulingError
from django.db import Error, close_old_connections, connections
from kombu.exceptions import OperationalError

from leasing.celery.slots import marked, slot_of, zoned
from leasing.exceptions import LeaseLost
from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log

if TYPE_CHECKING:
    from leasing.holding import Term
    from leasing.leader import Leader
    from leasing.models.beat import BeatEntry

#: Seconds between checks of a standby whether it leads now.
CHECK_EVERY = 0.25
#: Seconds until another try after the database or the broker did not answer.
RETRY_AFTER = 1.0
#: Seconds that the end of a beat waits for the release of its lease.
JOIN_TIMEOUT = 5.0


class Campaign:
    """Campaigns on a thread of its own; the thread of beat reads ``term``."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._stopping = threading.Event()
        self._term: Term | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="beat-campaign", daemon=True)
        self._thread.start()

    @property
    def term(self) -> Term | None:
        """The term of this process, while it is valid. Raises the error that ended the campaign."""
        if self._failure is not None:
            raise self._failure
        term = self._term
        return term if term is not None and term.valid else None

    def end(self) -> None:
        """Give back the leadership."""
        self._stopping.set()
        self._thread.join(JOIN_TIMEOUT)

    def _run(self) -> None:
        try:
            for term in self._leader.terms(self._stopping):
                log.beat_leads(resource=term.resource, holder=term.holder)
                self._term = term
                while term.valid and not self._stopping.wait(CHECK_EVERY):
                    pass
        except BaseException as failure:  # beat raises it
            self._failure = failure
        finally:
            connections.close_all()


class LeaderMixin:
    """Lets any scheduler class of beat run on every node: only the leader's sends.

        class Mine(LeaderMixin, DatabaseScheduler):
            leader_ttl = 15

    ``leader_name`` is the name of the leadership; the default is "beat:" and the name of the app's
    main module. ``leader_ttl`` is the number of seconds after which a dead leader is replaced; the
    default is the setting TTL. ``catch_up`` is the number of seconds by which a slot may be late
    and is still sent, although a later slot is due.
    """

    leader_name: str = ""
    leader_ttl: float | None = None
    catch_up: float = 60.0

    app: Any
    schedule: Any
    _heap: Any

    _campaign: Campaign | None = None
    _led: int | None = None
    _retry_at: float = 0.0

    @property
    def info(self) -> str:
        """Shown as beat starts."""
        return f"    . leader -> {self._beat}"

    @property
    def _beat(self) -> str:
        return self.leader_name or f"beat:{self.app.main or 'celery'}"

    @cached_property
    def _rows(self) -> dict[str, BeatEntry]:
        """The entries as this beat knows them."""
        return {}

    # What beat calls

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One round: send what is due, if this beat leads. Returns the seconds until the next."""
        if self._campaign is None:
            self._campaign = self._begin()
        term = self._campaign.term
        if term is None:
            self._led = None
            return CHECK_EVERY
        try:
            if self._led != term.fencing_token:
                self._take_over(term)
            self._send_unsure(term)
            pause: float = super().tick(*args, **kwargs)  # type: ignore[misc]
        except LeaseLost as loss:
            log.beat_lost(reason=loss.reason)
        except (Error, OperationalError, OSError) as error:
            log.beat_failed(pause_seconds=RETRY_AFTER, error=error)
            connections.close_all()
        else:
            return min(pause, RETRY_AFTER) if self._unsure() else pause
        self._led = None
        return RETRY_AFTER

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Plan from what the database says was sent, by this beat or another."""
        self._read(self.schedule)
        for entry in self.schedule.values():
            self._set_back(entry)
        super().populate_heap(*args, **kwargs)  # type: ignore[misc]

    def is_due(self, entry: Any) -> Any:
        """Return whether the next slot of ``entry`` has come, and the seconds until the next
        check."""
        self._set_back(entry)
        if self._rows[entry.name].is_unsure:
            return False, RETRY_AFTER
        due, wait = super().is_due(entry)  # type: ignore[misc]
        if due:
            after = entry.schedule.remaining_estimate(zoned(self._slot(entry), entry))
            wait = max(0.0, after.total_seconds())
        return due, wait

    def reserve(self, entry: Any) -> Any:
        """Claim the slot that is due. Raises LeaseLost if this beat may not claim it."""
        from leasing.models import BeatEntry

        assert self._campaign is not None
        term, row, moment = self._campaign.term, self._rows[entry.name], self._slot(entry)
        if term is None:
            raise LeaseLost(self._beat, "its term is over")
        close_old_connections()
        with term.still_mine():
            claimed = BeatEntry.objects.claim(row, moment, term.fencing_token)
        if claimed is None:
            raise LeaseLost(self._beat, f"another beat has sent {entry.name}")
        self._rows[entry.name] = claimed
        following = super().reserve(entry)  # type: ignore[misc]
        self._set_back(following)
        return following

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Send the slot of ``entry`` that was claimed last."""
        row = self._rows[entry.name]
        if self._campaign is None or self._campaign.term is None:
            log.beat_left(entry=entry.name)
            return None
        try:
            sent = super().apply_async(marked(entry, row), *args, **kwargs)  # type: ignore[misc]
        except SchedulingError as error:
            if isinstance(error.__context__, OperationalError | OSError):
                self._retry_at = clock() + RETRY_AFTER
                raise
            self._confirm(row)  # every retry would fail, so the slot is done
            raise
        self._confirm(row)
        return sent

    def close(self) -> None:
        """Give back the leadership, too. A second call changes nothing."""
        campaign, self._campaign = self._campaign, None
        try:
            super().close()  # type: ignore[misc]
        finally:
            if campaign is not None:
                campaign.end()

    # The pieces

    def _begin(self) -> Campaign:
        from leasing.leader import Leader

        return Campaign(Leader(self._beat, ttl=self.leader_ttl))

    def _take_over(self, term: Term) -> None:
        """Forget what this beat knew: others may have led since."""
        self._rows.clear()
        self._heap = None
        self._read(self.schedule)
        self._led = term.fencing_token

    def _read(self, names: Iterable[str]) -> None:
        """Read the rows of entries that this beat does not know."""
        from leasing.models import BeatEntry

        if missing := [name for name in names if name not in self._rows]:
            close_old_connections()
            self._rows.update(BeatEntry.objects.known(self._beat, missing, datetime.now(UTC)))

    def _set_back(self, entry: Any) -> None:
        """Set ``entry`` to the state of its row."""
        row = self._rows[entry.name]
        entry.last_run_at, entry.total_run_count = zoned(row.last_run_at, entry), row.runs

    def _slot(self, entry: Any) -> datetime:
        """The moment for which ``entry`` is due."""
        return slot_of(entry, self._rows[entry.name].last_run_at, self.catch_up)

    def _unsure(self) -> list[str]:
        return [name for name, row in self._rows.items() if row.is_unsure]

    def _send_unsure(self, term: Term) -> None:
        """Send again the slots that were claimed and that may not have been sent."""
        if clock() < self._retry_at:
            return
        for name in self._unsure():
            entry = self.schedule.get(name)
            if entry is None:
                del self._rows[name]  # the entry was removed from the schedule
                continue
            term.ensure()
            log.beat_sent_again(entry=name)
            self.apply_entry(entry, producer=self.producer)
            self._heap = None  # its next slot may have come meanwhile

    def _confirm(self, row: BeatEntry) -> None:
        from leasing.models import BeatEntry

        row.sent_at = datetime.now(UTC)  # this beat knows it, even if the row does not
        try:
            BeatEntry.objects.confirm(row)
        except Error as error:
            log.beat_unnoted(entry=row, error=error)
            connections.close_all()

    if TYPE_CHECKING:
        producer: Any

        def apply_entry(self, entry: Any, producer: Any = None) -> None: ...


class LeaderScheduler(LeaderMixin, Scheduler):  # type: ignore[misc]
    """Celery's own scheduler for every node: ``beat -S leasing.celery:LeaderScheduler``.

    It needs no file: what was sent stands in the database.
    """
