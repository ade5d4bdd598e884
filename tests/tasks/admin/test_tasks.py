"""Tasks, attempts, workers and the generator's desired state in Django's admin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from leasing.humanize import span, stamp
from leasing.models import AuditEntry
from leasing.web.badges import DONE, Badge
from tasks.dashboard import badges, listing
from tasks.dashboard.badges import ATTEMPT_BADGES
from tasks.dashboard.operator_actions import ACTIONS
from tasks.diagnosis import diagnose
from tasks.generator import start_generator
from tasks.models import (
    AttemptOutcome,
    GeneratorDesiredState,
    OutboxMessage,
    Queue,
    Sample,
    Task,
    TaskAttempt,
    TaskStep,
)
from tasks.outbox import publish
from tests.factories import make_lease, make_task, make_tasks, make_worker
from tests.fixtures import client_with
from tests.limits import Limits
from tests.pages import Page, assert_cheap, get, sent_by, signed_in
from tests.tasks.support import Handlers, row_of

pytestmark = pytest.mark.django_db

TASKS, ATTEMPTS = "/admin/leasing_tasks/task/", "/admin/leasing_tasks/taskattempt/"
WORKERS, DESIRED = "/admin/leasing_tasks/worker/", "/admin/leasing_tasks/generatordesiredstate/"
STEPS, QUEUES = "/admin/leasing_tasks/taskstep/", "/admin/leasing_tasks/queue/"
SAMPLES, MESSAGES = "/admin/leasing_tasks/sample/", "/admin/leasing_tasks/outboxmessage/"
SEEN = (
    *("task", "taskattempt", "taskstep", "queue", "worker", "generatordesiredstate", "sample"),
    "outboxmessage",
)
VIEW = (
    *(f"leasing_tasks.view_{name}" for name in SEEN),
    "leasing.view_lease",
    "leasing.view_auditentry",
)
ACT = (
    *(verb.permission for verb in ACTIONS.values()),
    "leasing.revoke_lease",
    "leasing_tasks.pause_queue",
)
PAYLOAD = "leasing_tasks.view_payload"

viewer = client_with(*VIEW, is_staff=True)
operator = client_with(*VIEW, *ACT, name="olga", is_staff=True)


def act(client: Client, action: str, rows: Sequence[Any], url: str = TASKS, **more: Any) -> Page:
    data = {"action": action, "_selected_action": [row.pk for row in rows], **more}
    return Page(client.post(url, data, follow=True))


def url_of(row: Any) -> str:
    meta = row._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(row.pk)])


def one_of_each() -> list[Any]:
    """A row of every model, all of one story: a task that was lost, and then worked."""
    start_generator()
    worker = make_worker()
    task = make_task(state="recovered", holder=worker.name)
    return [
        task,
        TaskAttempt.objects.get(task=task),
        TaskStep.objects.create(task=task, name="fetch", output={"api_key": "hunter2", "n": 1}),
        Queue.objects.get_or_create(name="default")[0],
        worker,
        GeneratorDesiredState.objects.get(),
        Sample.objects.create(queue="default", slot=1_700_000_000 + 10 * Sample.objects.count()),
        publish("orders.paid", {"api_key": "hunter2", "order": 17}, key="order:17"),
    ]


def rows(page: Page) -> set[str]:
    """The pages that a list leads to, without how it was filtered."""
    return {link.split("?")[0] for link in page.links}


def test_every_model_is_read_only_even_for_a_superuser(admin_client: Client) -> None:
    for row in one_of_each():
        name = f"admin:leasing_tasks_{row._meta.model_name}"
        assert admin_client.get(reverse(f"{name}_add")).status_code == 403
        url = url_of(row)
        assert admin_client.post(url.replace("change", "delete")).status_code == 403
        assert admin_client.post(url, {"name": "x"}).status_code == 403
        page = get(admin_client, url)
        assert page.status == 200 and not page.all("input[name=_save]"), url
    assert "delete_selected" not in get(admin_client, TASKS).choices("action")


def test_task_attempts_and_worker_lead_to_each_other(viewer: Client) -> None:
    worker = make_worker(name="dora & son")
    task = make_task(state="recovered", holder="dora & son")
    running = make_task(state="running", holder="dora & son")

    page = get(viewer, f"{TASKS}{task.pk}/change/")
    assert {f"/ops/tasks/{task.pk}/", f"/ops/leases/task:{task.pk}/"} <= set(page.links)
    about = f"model__exact=leasing_tasks.task&key__exact={task.pk}"
    assert f"/admin/leasing/auditentry/?{about}" in page.links
    assert f"{QUEUES}?q=default" in page.links
    attempts = get(viewer, next(link for link in page.links if link.startswith(ATTEMPTS + "?")))
    (attempt,) = attempts.rows
    assert attempt.badges == [ATTEMPT_BADGES[AttemptOutcome.LOST].word]
    assert f"{TASKS}{task.pk}/change/" in attempt.links

    found = get(viewer, next(link for link in page.links if link.startswith(WORKERS + "?")))
    assert f"{WORKERS}{worker.pk}/change/" in rows(found)
    page = get(viewer, f"{WORKERS}{worker.pk}/change/")
    assert f"/ops/workers/{worker.pk}/" in page.links
    does = get(viewer, next(link for link in page.links if link.startswith(TASKS + "?")))
    assert f"{TASKS}{running.pk}/change/" in rows(does) and len(does.rows) == 1


@pytest.mark.parametrize(
    ("state", "word", "column"),
    [
        ("running", "running since", "acquired_at"),
        ("stuck", "expired", "expires_at"),
        ("scheduled", "due", "scheduled_at"),
        ("succeeded", "ended", "processed_at"),
    ],
)
def test_the_list_has_the_moment_that_matters_most(
    viewer: Client, state: str, word: str, column: str
) -> None:
    task = make_task(state=state)
    assert get(viewer, TASKS).one("td.field-when").text == f"{word} {stamp(getattr(task, column))}"


def test_the_list_filters_by_the_states_of_the_operators_list(viewer: Client) -> None:
    for state in ("ready", "scheduled", "running", "stuck", "failed", "succeeded", "retrying"):
        make_task(state=state)
    page = get(viewer, TASKS)
    offered = [link for link in page.links if link.startswith("?state=")]
    assert offered == [f"?state={state}" for state in listing.STATES if state != "all"]
    for link in offered:
        state = link.removeprefix("?state=")
        found = {int(row["of_id"].removeprefix("task:")) for row in get(viewer, TASKS + link).rows}
        assert found == set(listing.in_state(state).values_list("pk", flat=True)), state
    assert len(get(viewer, f"{TASKS}?state=stuck").rows) == 1
    assert len(get(viewer, f"{TASKS}?state=nonsense").rows) == len(page.rows)


def test_a_page_has_one_form_of_date_and_the_names_of_the_operators_page(viewer: Client) -> None:
    for row in one_of_each():
        for url in (url_of(row), reverse(f"admin:leasing_tasks_{row._meta.model_name}_changelist")):
            text = get(viewer, url).one("#content").text
            assert not re.search(r"[ap]\.m\.|midnight|noon|\d:\d\d\.\d|\+00:00", text), url
    task = make_task(state="stuck")
    page = get(viewer, url_of(task))
    task.refresh_from_db()
    assert stamp(task.expires_at) in page.facts["Until"]
    assert page.fields["ends"] == stamp(task.expires_at)
    assert page.fields["created_at"] == stamp(task.created_at)
    assert page.fields["ttl"] == span(task.ttl)
    labels = {each.text.rstrip(":") for each in page.all("label")}
    assert {"Created", "Not before", "First started", "Ended", "Worker", "Expires"} <= labels
    (row,) = (row for row in get(viewer, TASKS).rows if row["of_id"] == f"task:{task.pk}")
    assert (row["when"], row["tries"]) == (f"expired {stamp(task.expires_at)}", "1 of 10")


def test_a_state_is_shown_by_mark_and_word(viewer: Client) -> None:
    expected = {
        "ready": badges.READY,
        "scheduled": badges.SCHEDULED,
        "running": badges.RUNNING,
        "stuck": badges.STUCK,
        "succeeded": badges.SUCCEEDED,
        "failed": badges.FAILED,
        "cancelled": badges.CANCELLED,
        "retrying": badges.RETRYING,
    }
    tasks = {state: make_task(state=state) for state in expected}

    def shown(badge: Badge) -> str:
        return f"{badge.mark} {badge.word}"

    listed = {row["of_id"]: row["badge"] for row in get(viewer, TASKS).rows}
    assert listed == {f"task:{tasks[state].pk}": shown(badge) for state, badge in expected.items()}
    stuck = get(viewer, url_of(tasks["stuck"]))
    assert stuck.fields["badge"] == shown(badges.STUCK)


def test_the_search_finds_ids_exact_names_and_keys(viewer: Client, handlers: Handlers) -> None:
    handlers["mail.send"] = lambda ctx: None
    one = make_task(name="mail.send", data={})
    two = make_task(unique_key="report 7")
    for text, task in (("mail.send", one), ("report 7", two), (str(two.pk), two)):
        page = get(viewer, f"{TASKS}?q={text}")
        assert f"{TASKS}{task.pk}/change/" in rows(page)
        assert len(page.rows) == 1
    assert get(viewer, f"{TASKS}?q=mail").rows == []


@pytest.mark.parametrize("name", ["sort", "file"])
def test_the_search_by_an_alias_is_that_by_the_name(
    viewer: Client, renamed: list[int], name: str
) -> None:
    page = get(viewer, f"{TASKS}?q={name}")

    assert {f"{TASKS}{key}/change/" for key in renamed} <= rows(page)
    assert len(page.rows) == 2


def test_nobody_is_led_to_what_they_may_not_see() -> None:
    task = make_task(state="running")
    page = get(signed_in("leasing_tasks.view_task", is_staff=True), f"{TASKS}{task.pk}/change/")
    assert not [link for link in page.links if "auditentry" in link or "/ops/leases" in link]
    assert not [link for link in page.links if link.startswith(ATTEMPTS)]


LISTS = [TASKS, f"{TASKS}?state=scheduled", f"{TASKS}?q=sample.sleep", ATTEMPTS, STEPS]
LISTS += [
    f"{ATTEMPTS}?outcome__exact=lost",
    QUEUES,
    WORKERS,
    f"{WORKERS}?state=live",
    DESIRED,
    SAMPLES,
]


def test_a_list_costs_the_same_however_long_it_is(viewer: Client) -> None:
    one_of_each()
    few = {url: len(sent_by(viewer, url)) for url in LISTS}
    for _ in range(3):
        one_of_each()
    large = ("task_data", "task_output", "last_error", "traceback", "error", "output", "handlers")
    for url in LISTS:
        many = sent_by(viewer, url)
        assert few[url] == len(many) <= 11, url
        assert_cheap(many)
        assert not any(f'"{column}"' in sql for sql in many for column in large), url


def test_the_name_is_looked_for_among_the_newest_and_an_id_among_all(
    viewer: Client, limits: Limits
) -> None:
    old, new = make_task(), make_task()
    limits(reach=new.pk)
    assert not get(viewer, f"{TASKS}?q=sample.sleep").all("[data-note]")
    limits(reach=1)
    page = get(viewer, f"{TASKS}?q=sample.sleep")
    assert rows(page) >= {f"{TASKS}{new.pk}/change/"} and len(page.rows) == 1
    assert page.one("[data-note=floor]").numbers == [old.pk]
    assert len(get(viewer, f"{TASKS}?q={old.pk}").rows) == 1


def test_a_filter_without_an_index_looks_at_the_newest_and_one_with_it_at_all(
    viewer: Client, limits: Limits
) -> None:
    for state in ("retrying", "recovered") * 2:
        make_task(state=state)
    limits(reach=2)
    assert len(get(viewer, f"{ATTEMPTS}?outcome__exact=failed").rows) == 1
    assert len(get(viewer, f"{ATTEMPTS}?outcome__exact=lost").rows) == 2
    assert len(get(viewer, ATTEMPTS).rows) == 4
    limits(reach=1)
    both = "state=retrying&queue__exact=default"
    assert len(get(viewer, f"{TASKS}?{both}").rows) == 4
    make_tasks(2, state="succeeded")
    assert len(get(viewer, f"{TASKS}?state=succeeded").rows) == 1


def test_a_list_ends_where_its_count_ends_and_says_so(viewer: Client, limits: Limits) -> None:
    make_tasks(3)
    limits(count_cap=2)
    limits(list_per_page=1)
    page = get(viewer, f"{TASKS}?p=2")
    assert page.one("[data-note=capped]").links == ["/ops/tasks/"]
    assert viewer.get(f"{TASKS}?p=3").status_code == 302, "beyond the cap there is no page"


def test_a_page_loads_its_large_columns_at_once_and_costs_the_same(viewer: Client) -> None:
    seer = signed_in(*VIEW, PAYLOAD, name="seer", is_staff=True)
    task = make_task(state="succeeded")
    get(seer, f"{TASKS}{task.pk}/change/")  # what a process looks up once
    sql = sent_by(seer, f"{TASKS}{task.pk}/change/")
    assert sum('"task_data"' in statement for statement in sql) == 1
    assert not any('"task_data"' in each for each in sent_by(viewer, f"{TASKS}{task.pk}/change/"))
    make_tasks(5, state="running")
    assert len(sent_by(seer, f"{TASKS}{task.pk}/change/")) == len(sql)
    assert_cheap(sql)


@pytest.mark.usefixtures("database_clock")  # or a second could pass between page and diagnosis
@pytest.mark.parametrize(
    "state", ["ready", "scheduled", "running", "stuck", "failed", "succeeded", "cancelled"]
)
def test_a_task_is_diagnosed_in_the_words_of_its_page(operator: Client, state: str) -> None:
    task = make_task(state=state)
    page = get(operator, url_of(task))
    found = diagnose(task)
    panel = page.one(".leasing-panel")
    assert panel["data-code"] == found.code
    assert all(answer in panel.text for _, answer in found.answers[:2]), panel.text
    assert found.next in panel.text
    keys = {task.pk: None}
    fitting = {
        action.name
        for action in ACTIONS.values()
        if action.preview(Task.objects.all(), keys, {}).applicable
    }
    expected = fitting | ({"revoke"} if task.status == "running" else set())
    assert {each["value"] for each in panel.all("button[name=action]")} == expected


@pytest.mark.parametrize("state", ["live", "late", "gone", "stopped"])
def test_workers_are_filtered_by_state(viewer: Client, state: str) -> None:
    for each in ("live", "late", "gone", "stopped"):
        make_worker(name=f"{each}-worker", state=each)
    page = get(viewer, f"{WORKERS}?state={state}")
    (row,) = page.rows
    assert f"{state}-worker" in row.element.text


def test_hostile_text_is_inert(viewer: Client, handlers: Handlers) -> None:
    hostile = "<script>alert(1)</script>"
    handlers[hostile] = lambda ctx, **data: None
    task = make_task(name=hostile, data={hostile: hostile}, state="running", holder=hostile)
    Task.objects.fail(task, ValueError(hostile))
    attempt = TaskAttempt.objects.get()
    for url in (TASKS, f"{TASKS}{task.pk}/change/", ATTEMPTS, f"{ATTEMPTS}{attempt.pk}/change/"):
        assert hostile not in get(viewer, url).html, url


# Actions


def test_an_act_asks_first_and_then_calls_the_service_of_the_pages(operator: Client) -> None:
    failed, done = make_task(state="failed"), make_task(state="succeeded")
    page = act(operator, "retry", [failed, done])
    assert ACTIONS["retry"].consequence in page.text
    assert page.one("[data-preview]").numbers == [1, 2, 1]
    assert row_of(failed)["status"] == "failed"
    page = act(operator, "retry", [failed, done], confirmed="yes")
    assert (page.notice.tone, page.notice.numbers) == ("warn", [1, 2, 1])
    assert (row_of(failed)["status"], row_of(done)["status"]) == ("ready", "succeeded")
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(failed.pk)]

    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.via) == ("olga", "retry", "admin")
    assert (entry.asked, entry.changed, entry.skipped) == (2, 1, {"succeeded": 1})


def test_what_none_fits_cannot_be_confirmed(operator: Client) -> None:
    page = act(operator, "retry", [make_task()])
    assert page.one("[data-preview]").numbers == [0, 1, 1]  # the one that was chosen stays
    assert not page.all("input[type=submit]")


def test_from_its_page_a_task_is_acted_on_and_shown_again(operator: Client) -> None:
    task = make_task(state="failed")
    page = act(operator, "retry", [task], from_row="yes")
    assert url_of(task) in page.links
    response = operator.post(TASKS, page.hidden)
    assert response["Location"] == url_of(task)
    assert row_of(task)["status"] == "ready"


def test_a_revocation_takes_running_tasks_with_a_reason_and_the_name(operator: Client) -> None:
    task = make_task(state="running")
    name = f"task:{task.pk}"
    assert name in act(operator, "revoke", [task]).one("label[for=id_typed]").text
    for wrong in ({"reason": " ", "typed": name}, {"reason": "she hangs", "typed": "it"}):
        page = act(operator, "revoke", [task], confirmed="yes", **wrong)
        assert page.all(".errornote")
        assert page.invalid == {field for field, said in wrong.items() if said in (" ", "it")}
    assert row_of(task)["status"] == "running"
    page = act(operator, "revoke", [task], confirmed="yes", reason="she hangs", typed=name)
    assert (page.notice.tone, page.notice.numbers) == ("ok", [1, 1])
    error = row_of(task)["last_error"]
    assert "olga" in error and "she hangs" in error


STATES = {"retry": "failed", "reschedule": "ready", "cancel": "ready", "discard": "failed"}


def test_the_history_tells_what_came_by_any_way(operator: Client) -> None:
    task = make_task(state="failed")
    operator.post(reverse("leasing_tasks:act", args=[task.pk, "retry"]), {"seen": task.grants})
    page = get(operator, url_of(task).replace("change", "history"))
    (row,) = page.all(".leasing-scroll tbody tr")
    done = f"{DONE.mark} {DONE.word}"
    assert [cell.text for cell in row.all("td")] == ["olga", "retry", done, "page", ""]
    blind = signed_in("leasing_tasks.view_task", name="blind", is_staff=True)
    assert "olga" not in get(blind, url_of(task).replace("change", "history")).text


def test_payload_is_shown_with_permission_alone_and_its_secrets_never(handlers: Handlers) -> None:
    handlers["jobs.echo"] = lambda ctx, **data: None
    task = make_task(name="jobs.echo", data={"city": "Hamburg", "password": "hunter2"})
    step = TaskStep.objects.create(
        task=task, name="a", output={"token": "hunter2", "at": "Hamburg"}
    )
    trusted = signed_in(*VIEW, PAYLOAD, name="trusted", is_staff=True)
    distrusted = signed_in(*VIEW, name="viewer", is_staff=True)
    for row in (task, step):
        hidden, shown = get(distrusted, url_of(row)).text, get(trusted, url_of(row)).text
        assert "Hamburg" not in hidden and "Hamburg" in shown
        assert "hunter2" not in hidden + shown
    hidden, shown = (get(client, TASKS).text for client in (distrusted, trusted))
    assert "Hamburg" not in hidden and "city=Hamburg, password=••••••" in shown


def test_the_operators_pages_lead_to_the_admin_whoever_may_go_there(viewer: Client) -> None:
    task, worker, lease = make_task(), make_worker(), make_lease()
    pages = {
        reverse("leasing_tasks:detail", args=[task.pk]): url_of(task),
        reverse("leasing_tasks:worker", args=[worker.pk]): url_of(worker),
        reverse("leasing:detail", args=[lease.pk]): url_of(lease),
    }
    stranger = signed_in(*VIEW, name="no staff")
    for page, admin_page in pages.items():
        assert admin_page in get(viewer, page).links, page
        assert admin_page not in get(stranger, page).links, page


# Messages of the outbox


def refused() -> OutboxMessage:
    message = publish("orders.paid", {"order": 17}, key="order:17")
    OutboxMessage.objects.put_off(message, ValueError("too large"))
    return message


def test_a_message_shows_what_became_of_it_and_its_payload_to_whom_may_see_it(
    viewer: Client,
) -> None:
    message = refused()
    url = f"{MESSAGES}{message.pk}/change/"

    page = get(viewer, url)
    assert badges.REFUSED.word in page.badges and "ValueError: too large" in page.text
    assert '"order": 17' not in page.text
    assert '"order": 17' in get(signed_in(*VIEW, PAYLOAD, name="pia", is_staff=True), url).text
    OutboxMessage.objects.mark_published([message.pk])
    assert badges.PUBLISHED.word in get(viewer, url).badges


@pytest.mark.parametrize(("state", "found"), [("pending", 2), ("refused", 1), ("published", 1)])
def test_messages_are_filtered_by_what_became_of_them(
    viewer: Client, state: str, found: int
) -> None:
    publish("a", None)
    refused()
    OutboxMessage.objects.mark_published([publish("b", None).pk])

    listed = rows(get(viewer, f"{MESSAGES}?state={state}"))

    assert len([link for link in listed if link.endswith("/change/")]) == found
