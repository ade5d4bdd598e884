"""Fenced rows: a write under an older token is refused, and nothing is written."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest
from django.db import IntegrityError, connection, connections, models, transaction
from django.db.models import F
from django.db.models.signals import post_save
from django.test.utils import isolate_apps

from leasing import fencing
from leasing.exceptions import LeaseLost, StaleToken
from leasing.fencing import FencedModel
from leasing.holding.keeper import Keeper
from leasing.models import Lease, LeaseEvent
from leasing.testing.keeper import ManualKeeper
from tests.leasing.conftest import Sent
from tests.leasing.locks import someone_waits
from tests.leasing.support import OtherSession, events, expire
from tests.press.models import Author, Report
from tests.processes import wait_for
from tests.shop.models import Order

pytestmark = pytest.mark.django_db


@pytest.fixture
def report() -> Report:
    """A report that has seen the token 20."""
    report = Report.objects.create(title="tides", text="high", fence=20)
    return report


def seen(report: Report) -> tuple[str, int]:
    """Text and fence as the database has them."""
    text, fence = Report.objects.filter(pk=report.pk).values_list("text", "fence").get()
    return text, fence


def rows(report: Report) -> Any:
    return Report.objects.filter(pk=report.pk)


# Updates


@isolate_apps("tests.press")
def test_rows_with_a_key_of_several_columns_are_fenced_by_sqlites_defaults_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Page(FencedModel):
        pk = models.CompositePrimaryKey("report_id", "number")
        report_id = models.IntegerField()
        number = models.IntegerField()

        class Meta:
            app_label = "press"

    columns = "report_id int, number int, fence bigint DEFAULT 0, PRIMARY KEY (report_id, number)"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE press_page ({columns})")
    if connection.vendor == "sqlite":
        monkeypatch.setattr(connections["default"], "transaction_mode", None)
    pages: Any = Page.objects
    page, other = (pages.create(report_id=1, number=number) for number in (1, 2))

    assert page.advance_fence(20).fence == 20
    assert page.save_fenced(21).fence == 21
    with pytest.raises(StaleToken):
        page.advance_fence(20)
    other.refresh_from_db()
    assert other.fence == 0


@pytest.mark.parametrize("token", [20, 21])
def test_the_same_token_and_a_newer_one_may_write(token: int, report: Report) -> None:
    assert rows(report).fenced(token).update(text="low") == 1
    assert seen(report) == ("low", token)


def test_rows_are_written_that_other_tables_choose(report: Report) -> None:
    author = Author.objects.create(name="ann")
    other = Report.objects.create(author=author, fence=30)

    assert Report.objects.exclude(author__name="ann").distinct().fenced(20).update(text="low") == 1
    assert (seen(report), seen(other)) == (("low", 20), ("", 30))
    with pytest.raises(StaleToken):
        Report.objects.filter(author__name="ann").fenced(29).update(text="low")


def test_a_refusal_by_a_row_with_an_endless_key_is_noted() -> None:
    fencing.BareToken(19, "press.report", "k" * 500).note("late")

    event = LeaseEvent.objects.get(kind="refused")
    assert (event.key, event.resource) == ("k" * 400, f"press.report:{'k' * 400}")


def test_an_older_token_is_refused_and_nothing_is_written(report: Report) -> None:
    with pytest.raises(StaleToken, match="a row of press.Report refused the token 19 and has seen"):
        rows(report).fenced(19).update(text="low")

    assert seen(report) == ("high", 20)


def test_a_token_that_may_write_once_is_refused_the_second_time(report: Report) -> None:
    assert rows(report).fenced(21, strictly=True).update(text="low") == 1
    for token in (20, 21):
        with pytest.raises(StaleToken, match="and has seen an equal or higher one"):
            rows(report).fenced(token, strictly=True).update(text="ebb")

    assert seen(report) == ("low", 21)


def test_one_row_that_refuses_keeps_all_from_being_written(report: Report) -> None:
    old = [Report.objects.create(text="old", fence=3), report]

    with pytest.raises(StaleToken, match="a row of"):
        Report.objects.fenced(19).update(text="low")

    assert [seen(one) for one in old] == [("old", 3), ("high", 20)]


def test_the_error_says_how_many_refused(report: Report) -> None:
    Report.objects.create(fence=30)
    Report.objects.create(fence=1)

    with pytest.raises(StaleToken, match="2 rows of press.Report refused the token 19"):
        Report.objects.fenced(19).update(text="low")


def test_only_rows_of_the_queryset_are_written_and_only_those_can_refuse(
    report: Report,
) -> None:
    others = [Report.objects.create(title="winds", text="calm", fence=n) for n in (1, 99)]

    assert Report.objects.filter(title="tides").fenced(25).update(title="t", text="low") == 1

    assert seen(report) == ("low", 25)
    assert [seen(other) for other in others] == [("calm", 1), ("calm", 99)]


def test_values_may_be_expressions(report: Report) -> None:
    rows(report).fenced(21).update(title=F("text"))

    report.refresh_from_db()
    assert report.title == "high"


def test_no_rows_are_no_refusal() -> None:
    assert Report.objects.filter(title="nothing").fenced(1).update(text="x") == 0


def test_a_fence_is_named_by_fenced_alone(report: Report) -> None:
    refused = pytest.raises(TypeError, match="fence")
    with refused:
        Report.objects.update(fence=1)
    with refused:
        rows(report).fenced(21).update(fence=1)
    with refused, transaction.atomic():
        Report.objects.bulk_update([report], ["text", "fence"])

    assert seen(report) == ("high", 20)


def test_whoever_holds_no_lease_writes_as_ever(report: Report) -> None:
    rows(report).update(text="by hand")
    assert seen(report) == ("by hand", 20)

    report.text = "in bulk"
    Report.objects.bulk_update([report], (name for name in ["text"]))
    assert seen(report) == ("in bulk", 20)

    report.text = "upserted"
    Report.objects.bulk_create(
        [report], update_conflicts=True, update_fields=["text"], unique_fields=["id"]
    )
    assert seen(report) == ("upserted", 20)
    assert len(Report.objects.bulk_create([Report(), Report()])) == 2


# save()


def test_saving_a_stale_instance_never_lowers_the_fence(report: Report) -> None:
    stale = Report.objects.get()
    rows(report).fenced(30).update(text="low")

    stale.text = "from yesterday"
    stale.fence = 1
    stale.save()
    stale.save(update_fields=["fence"])
    stale.save(update_fields=["text", "fence"])

    assert seen(report) == ("from yesterday", 30)


def test_a_row_is_made_with_the_fence_of_its_maker() -> None:
    assert seen(Report.objects.create(text="new", fence=7)) == ("new", 7)


# save_fenced()


def test_a_row_saved_under_its_token_raises_the_fence(report: Report) -> None:
    report.text = "low"
    before = report.saved_at

    assert report.save_fenced(21) is report

    assert seen(report) == ("low", 21)
    assert report.fence == 21
    assert report.saved_at > before
    report.refresh_from_db()
    assert report.length == 3  # a column that the database makes is left to it


def test_a_row_saved_under_an_older_token_is_refused(report: Report) -> None:
    report.text = "low"

    with pytest.raises(StaleToken):
        report.save_fenced(19)

    assert seen(report) == ("high", 20)
    assert report.fence == 20


def test_only_the_fields_that_are_named_are_saved(report: Report) -> None:
    report.text, report.title = "low", "unsaved"

    report.save_fenced(21, update_fields=["text"])

    report.refresh_from_db()
    assert (report.text, report.title, report.fence) == ("low", "tides", 21)
    with pytest.raises(ValueError, match="no_such_field"):
        report.save_fenced(21, update_fields=["no_such_field"])


def test_a_field_that_was_not_read_is_not_written(report: Report) -> None:
    partly = Report.objects.only("title").get()
    rows(report).update(text="newer")

    partly.title = "currents"
    partly.save_fenced(21)

    assert seen(report) == ("newer", 21)


def test_a_reference_is_saved_too(report: Report) -> None:
    report.author = Author.objects.create(name="ann")

    report.save_fenced(21)

    assert Report.objects.get().author == report.author


def test_receivers_hear_of_a_fenced_save_as_of_any(report: Report) -> None:
    heard = []

    def receiver(instance: Report, created: bool, **_: Any) -> None:
        heard.append((instance.pk, created))

    post_save.connect(receiver, sender=Report)
    try:
        report.save_fenced(21)
        with pytest.raises(StaleToken):
            report.save_fenced(19)
    finally:
        post_save.disconnect(receiver, sender=Report)

    assert heard == [(report.pk, False)]


def test_a_save_that_fails_leaves_the_fence_where_it_was(report: Report) -> None:
    report.author_id = 12345
    report.text = None  # type: ignore[assignment]

    with pytest.raises(IntegrityError), transaction.atomic():
        report.save_fenced(21)

    assert seen(report) == ("high", 20)


def test_a_row_that_is_gone_is_not_made_anew(report: Report) -> None:
    Report.objects.all().delete()

    with pytest.raises(Report.DoesNotExist):
        report.save_fenced(21)

    assert not Report.objects.exists()
    with pytest.raises(Report.DoesNotExist):
        Report(text="never saved").save_fenced(21)


# advance_fence()


def test_the_fence_is_raised_before_the_row_is_read(report: Report) -> None:
    mine = Report.objects.get()
    rows(report).fenced(21).update(text="the last words of the one before")

    mine.advance_fence(22)

    assert (mine.text, mine.fence) == ("the last words of the one before", 22)
    with pytest.raises(StaleToken):
        rows(report).fenced(21).update(text="too late")


def test_an_older_token_cannot_advance(report: Report) -> None:
    with pytest.raises(StaleToken):
        report.advance_fence(19)
    with pytest.raises(StaleToken):
        rows(report).fenced(19).advance()

    assert seen(report) == ("high", 20)


def test_the_fence_of_a_row_that_is_gone_cannot_be_raised(report: Report) -> None:
    Report.objects.all().delete()

    with pytest.raises(Report.DoesNotExist):
        report.advance_fence(21)


def test_without_advancing_the_old_holders_last_write_is_lost(report: Report) -> None:
    """Why the new holder does it first: what it read would be out of date."""
    mine = Report.objects.get()
    rows(report).fenced(20).update(text="the last words of the one before")
    mine.text += " tide"
    mine.save_fenced(21)

    assert seen(report) == ("high tide", 21)


# Proofs: a hold, a leased row, a bare token


def test_a_hold_writes_under_its_token(report: Report, clocks: ManualKeeper) -> None:
    with Lease.objects.hold("report:1") as hold:
        report.advance_fence(hold)
        report.text = "low"
        report.save_fenced(hold)

    assert seen(report) == ("low", hold.fencing_token)


def test_a_hold_that_is_over_is_refused_before_anything_is_sent(
    report: Report, clocks: ManualKeeper, django_assert_num_queries: Any
) -> None:
    with pytest.raises(LeaseLost), Lease.objects.hold("report:1", ttl=10) as hold:
        clocks.frozen = True
        clocks.advance(60)
        writes = (
            lambda: rows(report).fenced(hold),
            lambda: report.save_fenced(hold),
            lambda: report.advance_fence(hold),
        )
        with django_assert_num_queries(0):
            for write in writes:
                with pytest.raises(LeaseLost, match="it was not renewed in time"):
                    write()

    assert seen(report) == ("high", 20)


def test_a_lease_and_any_leased_row_prove_their_terms(report: Report) -> None:
    lease = Lease.objects.acquire("report:1")
    rows(report).fenced(lease).update(text="by a lease")
    assert seen(report) == ("by a lease", lease.fencing_token)

    order = Order.objects.acquire(Order.objects.create(article="ink"))
    report.save_fenced(order)
    assert report.fence == order.fencing_token > lease.fencing_token


def test_a_late_writer_is_refused_by_what_its_successor_wrote(
    report: Report, clocks: ManualKeeper
) -> None:
    """It slept through its lease and believes in it; the row has seen a newer token."""
    late = Lease.objects.acquire("report:1", holder="ann")
    expire(late)
    taken = Lease.objects.acquire("report:1", holder="bob")
    report.advance_fence(taken)

    with pytest.raises(StaleToken, match="report:1 was lost: a row of press.Report refused"):
        rows(report).fenced(late).update(text="late")

    assert seen(report) == ("high", taken.fencing_token)


# The refusal is noted


def refuse(report: Report, proof: Any) -> None:
    with pytest.raises(StaleToken):
        rows(report).fenced(proof).update(text="late")


def test_a_refused_write_is_an_event_and_a_signal(
    report: Report, sent: Sent, clocks: ManualKeeper
) -> None:
    late = Lease.objects.acquire("report:1", holder="ann")
    Report.objects.fenced(late.fencing_token + 1).advance()
    sent.clear()

    refuse(report, late)

    event = LeaseEvent.objects.get(kind="refused")
    assert (event.resource, event.holder, event.grant_id) == ("report:1", "ann", late.grant_id)
    assert event.reason.startswith("guarded write: a row of press.Report refused the token")
    ((name, lease, details),) = sent
    assert (name, lease.resource, details["verb"]) == ("refused", "report:1", "guarded write")


def test_a_refused_write_of_a_hold_is_noted(report: Report, clocks: ManualKeeper) -> None:
    with Lease.objects.hold("report:1") as hold:
        Report.objects.fenced(hold.fencing_token + 1).advance()
        refuse(report, hold)
        with pytest.raises(StaleToken):
            report.save_fenced(hold)

    assert events("report:1") == ["acquired", "refused", "refused", "released"]


def test_a_refused_write_of_any_leased_row_is_noted(report: Report) -> None:
    order = Order.objects.acquire(Order.objects.create(article="ink"))
    Report.objects.fenced(order.fencing_token + 1).advance()

    refuse(report, order)

    assert events(f"shop.order:{order.pk}") == ["acquired", "refused"]


def test_a_write_under_a_bare_token_is_noted_by_the_row_that_refused(
    report: Report, sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    Report.objects.create(fence=3)  # which would have taken it

    with pytest.raises(StaleToken, match="^the lease with token 19 was lost") as refusal:
        Report.objects.fenced(19).update(text="late")

    resource = f"press.report:{report.pk}"
    event = LeaseEvent.objects.get()
    assert (event.kind, event.resource, event.fencing_token) == ("refused", resource, 19)
    assert (event.model, event.key) == ("press.report", str(report.pk))
    assert (event.holder, event.grant_id) == ("", None)
    assert event.reason == f"guarded write: {refusal.value.reason}"
    ((name, lease, details),) = sent
    assert (name, lease.lease_resource, lease.fencing_token) == ("refused", resource, 19)
    assert details == {"verb": "guarded write", "reason": refusal.value.reason}
    assert (
        f"Refused guarded write of {resource} by an unknown holder with token 19: a row"
        in caplog.text
    )


def test_of_several_rows_the_first_that_refused_is_named(report: Report) -> None:
    Report.objects.create(fence=10)
    later = Report.objects.create(fence=30)

    for strictly in (False, True):
        with pytest.raises(StaleToken, match="2 rows" if strictly else "a row"):
            Report.objects.fenced(20, strictly=strictly).update(text="late")

    named = LeaseEvent.objects.order_by("id").values_list("key", flat=True)
    assert list(named) == [str(later.pk), str(report.pk)]


def test_a_bare_tokens_refusal_is_noted_though_its_caller_rolls_back(
    report: Report, notes: Keeper
) -> None:
    with pytest.raises(StaleToken), transaction.atomic():
        rows(report).fenced(19).update(text="late")
    assert not LeaseEvent.objects.exists()

    notes.write_notes()

    assert LeaseEvent.objects.get().kind == "refused"


def test_refusals_are_counted_by_what_was_written_under(report: Report) -> None:
    lease = Lease.objects.acquire("report:1")
    Report.objects.filter(pk=report.pk).fenced(lease.fencing_token + 1).advance()
    for proof in (19, lease, lease):
        refuse(report, proof)
    last = LeaseEvent.objects.latest("id").at

    assert list(LeaseEvent.objects.refusals()) == [
        {"resource": "report:1", "count": 2, "last_at": last},
        {"resource": f"press.report:{report.pk}", "count": 1, "last_at": ANY},
    ]
    assert not LeaseEvent.objects.filter(at__gt=last).refusals()


def test_a_refused_write_is_noted_though_its_caller_rolls_back(notes: Keeper, sent: Sent) -> None:
    report = Report.objects.create(fence=20)
    late = Lease.objects.acquire("report:1", holder="ann")
    Report.objects.fenced(late.fencing_token + 1).advance()

    with pytest.raises(StaleToken), transaction.atomic():
        Author.objects.create(name="rolled back")
        rows(report).fenced(late).update(text="late")
    assert events("report:1") == ["acquired"]
    notes.write_notes()

    assert events("report:1") == ["acquired", "refused"]
    assert not Author.objects.exists()
    assert [name for name, *_ in sent] == ["acquired", "refused"]


@pytest.mark.usefixtures("notes")
def test_a_caller_may_go_on_after_a_refusal(report: Report) -> None:
    """The rows it wrote before stay, those of the refused write do not."""
    with transaction.atomic():
        Author.objects.create(name="ann")
        with pytest.raises(StaleToken):
            Report.objects.fenced(19).update(text="late")
        Author.objects.create(name="bob")

    assert Author.objects.count() == 2
    assert seen(report) == ("high", 20)


# What carries it


def test_without_row_locks_the_condition_alone_refuses(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the keys and the write, a newer token was here."""

    def overtaken(locked: Any, **how: Any) -> Any:
        keys = list(locked)
        plain: models.QuerySet[Report] = models.QuerySet(Report)
        plain.filter(pk=report.pk).update(fence=30, text="newer")
        assert keys
        return locked

    monkeypatch.setattr(fencing, "lock", overtaken)
    with pytest.raises(StaleToken):
        rows(report).fenced(21).update(text="late")

    assert seen(report)[0] != "late"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("guard", ["a subquery", "the fence"])
def test_a_subquery_on_the_lease_lets_a_stale_write_through_and_the_fence_does_not(
    guard: str, other_session: OtherSession
) -> None:
    """The stale writer waits for the row that its successor is writing. When it goes on, its
    condition is judged again: on the row as it is then, but on the lease as it was."""
    report = Report.objects.create(text="high")
    late = Lease.objects.acquire("report:1", holder="ann")
    other_session.begin()
    other_session.run(
        lambda: Lease.objects.filter(pk=late.pk).update(fencing_token=late.fencing_token + 1)
    )
    other_session.run(
        lambda: (
            Report.objects.filter(pk=report.pk).fenced(late.fencing_token + 1).update(text="by bob")
        )
    )

    third = OtherSession()
    try:
        writing = third.start(subquery_guarded if guard == "a subquery" else fenced, report, late)
        wait_for(someone_waits)
        other_session.commit()
        written = writing.result(20)
    finally:
        third.close()

    if guard == "a subquery":
        assert (written, seen(report)[0]) == (1, "late")
    else:
        assert (written, seen(report)[0]) == (0, "by bob")


def subquery_guarded(report: Report, late: Lease) -> int:
    """An update that one might write instead of a fence."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE press_report SET text = 'late' WHERE id = %s AND EXISTS"
            " (SELECT 1 FROM leasing_lease WHERE resource = 'report:1' AND fencing_token = %s)",
            [report.pk, late.fencing_token],
        )
        return int(cursor.rowcount)


def fenced(report: Report, late: Lease) -> int:
    try:
        return int(rows(report).fenced(late.fencing_token).update(text="late"))
    except StaleToken:
        return 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_the_condition_alone_refuses_a_write_that_waited(
    other_session: OtherSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, without the lock that is taken first."""
    report = Report.objects.create(text="high")
    other_session.begin()
    other_session.run(lambda: rows(report).fenced(21).update(text="by bob"))
    monkeypatch.setattr(fencing, "lock", lambda locked, **how: locked)

    third = OtherSession()
    try:
        writing = third.start(lambda: rows(report).fenced(20).update(text="late"))
        wait_for(someone_waits)
        other_session.commit()
        with pytest.raises(StaleToken):
            writing.result(20)
    finally:
        third.close()

    assert seen(report) == ("by bob", 21)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_nobody_writes_between_the_fence_and_the_save(other_session: OtherSession) -> None:
    """A fenced save is two statements; the first locks the row until the second is in."""
    report = Report.objects.create(text="high")

    def overtake(**_: Any) -> None:
        writing.append(third.start(lambda: rows(report).fenced(22).update(text="by bob")))
        wait_for(someone_waits)

    writing: list[Any] = []
    third = OtherSession()
    post_save.connect(overtake, sender=Report)
    try:
        report.text = "by ann"
        report.save_fenced(21)
        assert writing[0].result(20) == 1
    finally:
        post_save.disconnect(overtake, sender=Report)
        third.close()

    assert seen(report) == ("by bob", 22)
