"""Check permissions: of users who see and do, and of strangers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.urls import reverse
from playwright.sync_api import Page, expect

from leasing.models import AuditEntry, Lease
from tasks.dashboard.operator_actions import ACTIONS
from tasks.models import Queue, Schedule, Task, TaskAttempt
from tasks.sample import SLEEP
from tests.browser import harbour
from tests.browser.conftest import Figure, Visit
from tests.browser.watch import Watch
from tests.factories import make_lease, make_task, make_worker
from tests.pages import user_with

SEE_ALL = (
    *(
        "leasing_tasks.view_task",
        "leasing_tasks.view_worker",
        "leasing_tasks.view_queue",
        "leasing_tasks.view_schedule",
    ),
    *("leasing.view_lease", "leasing.view_auditentry"),
)
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def test_01_anonymous_goes_to_login_and_staff_without_permission_gets_403(
    visit: Visit, watch: Watch, figure: Figure
) -> None:
    watch.tolerate("status of 403")
    pages = harbour.fill()
    anonymous = visit()
    staff = visit(user=user_with(name="stan", is_staff=True))
    for name, path in pages.items():
        sent = anonymous.request.get(path, max_redirects=0)
        assert sent.headers["location"] == f"/ops/login/?next={quote(path)}", name
        assert staff.request.get(path).status == 403, name
    staff.goto(pages["leasing_tasks:overview"])
    expect(staff.locator("main")).to_contain_text("permission")
    anonymous.goto(pages["leasing:list"])
    user_with("leasing.view_lease", name="vera")
    anonymous.get_by_label("Username").fill("vera")
    anonymous.get_by_label("Password").fill("x")
    anonymous.get_by_role("button", name="Sign in").click()
    expect(anonymous.get_by_role("heading", level=1)).to_have_text("Leases")
    figure(f"{len(pages)} pages; signed in, one comes back to where one wanted to go")


def _verbs() -> dict[str, dict[str, str]]:
    """The address of every verb, with what is sent there."""
    task, lease = make_task(state="failed"), make_lease()
    schedule = Schedule.objects.create(name="to pause", task_name=SLEEP, cron="0 3 * * *")
    said = {"reason": "spring cleaning"}
    verbs = {
        reverse("leasing_tasks:act", args=[task.pk, verb]): {**said, "queue": ""}
        for verb in ACTIONS
    }
    verbs |= {
        reverse("leasing_tasks:bulk", args=[verb]): {**said, "picked": f"[[{task.pk}, 1]]"}
        for verb in ACTIONS
    }
    for name in ("pause", "resume", "run"):
        verbs[reverse(f"leasing_tasks:schedule_{name}", args=[schedule.pk])] = {}
    for name in ("queue_pause", "queue_resume"):
        verbs[reverse(f"leasing_tasks:{name}")] = {**said, "queue": "default"}
    for name in ("generator_start", "generator_stop"):
        verbs[reverse(f"leasing_tasks:{name}")] = said
    verbs[reverse("leasing:revoke", args=[lease.lease_id])] = {**said, "typed": lease.resource}
    return verbs


def _everything() -> list[Any]:
    """All rows that a verb may change."""
    models = (Task, Lease, Queue, Schedule, AuditEntry)
    return [list(model._default_manager.order_by("pk").values()) for model in models]


SEND = """async ([path, said]) => (await fetch(path, {
    method: "POST", body: new URLSearchParams(said), redirect: "manual",
})).status"""
SEND_WITH_TOKEN = SEND.replace(
    "body:", 'headers: {"X-CSRFToken": document.cookie.match(/csrftoken=([^;]+)/)[1]}, body:'
)


def test_22_a_read_only_user_sees_no_controls_and_hand_made_posts_get_403(
    visit: Visit, watch: Watch, figure: Figure
) -> None:
    watch.tolerate("status of 403")
    pages, verbs = harbour.fill(), _verbs()
    page = visit(*SEE_ALL)
    for name, path in pages.items():
        if name == "bulk":
            continue
        page.goto(path)
        forms = page.locator("form[method=post]")
        assert [forms.nth(n).get_attribute("action") for n in range(forms.count())] == [
            "/ops/logout/"
        ], name
        assert page.locator("main input[type=checkbox]").count() == 0, name
    before = _everything()
    page.goto("/ops/login/")  # its form brings the token
    for path, said in verbs.items():
        assert page.evaluate(SEND_WITH_TOKEN, [path, said]) == 403, path
    assert _everything() == before
    figure(f"{len(verbs)} verbs refused to who may only look; no control on {len(pages)} pages")


def test_22_without_its_token_a_post_gets_403_and_no_get_changes_anything(
    page: Page, watch: Watch, figure: Figure
) -> None:
    watch.tolerate("status of (403|405)")
    pages, verbs = harbour.fill(), _verbs()
    page.goto("/ops/login/")
    before = _everything()
    for path, said in verbs.items():
        assert page.evaluate(SEND, [path, said]) == 403, path
    for path in (*verbs, *pages.values()):
        page.request.get(path)
    assert _everything() == before
    figure(f"{len(verbs)} posts without token refused, {len(verbs) + len(pages)} gets")


def test_23_secrets_are_masked_and_script_in_any_text_is_inert(
    page: Page, visit: Visit, figure: Figure
) -> None:
    make_worker(name=f"ann{EVIL}"[:200])
    task = make_task(state="failed", holder=f"ann{EVIL}")
    Task.objects.filter(pk=task.pk).update(
        name=f"jobs.{EVIL}",
        task_data={"password": "hunter2", "note": EVIL, "deep": [{"api_key": "sk-1"}]},
        last_error=f"ValueError: {EVIL}",
    )
    TaskAttempt._base_manager.filter(task=task).update(error=EVIL, traceback=EVIL)
    lease = make_lease(resource=EVIL, holder=EVIL)
    Lease.objects.filter(pk=lease.pk).revoke(reason=EVIL, by=EVIL)
    Queue.objects.pause("default", by=EVIL, reason=EVIL)
    make_task()
    detail = reverse("leasing_tasks:detail", args=[task.pk])
    paths = [
        *(
            detail,
            reverse("leasing:detail", args=[lease.lease_id]),
            reverse("leasing_tasks:overview"),
        ),
        *(reverse("leasing_tasks:list"), reverse("leasing:list"), reverse("leasing_tasks:queues")),
        *(reverse("leasing_tasks:workers"), reverse("leasing:audit")),
        f"{reverse('leasing_tasks:list')}?name={quote(EVIL)}",
        f"{reverse('leasing:list')}?q={quote(EVIL)}",
    ]
    shown = 0
    for path in paths:
        page.goto(path)
        assert page.title() != "owned", path
        assert page.locator("main script, main img").count() == 0, path
        shown += "<script>" in page.locator("main").inner_text()
    assert shown >= len(paths) - 2
    page.goto(detail)
    payload = page.locator("[data-live=payload]").inner_text()
    assert "hunter2" not in page.content() and "sk-1" not in page.content()
    assert payload.count("••••••") == 2 and "<script>" in payload
    for path in (f"{reverse('leasing_tasks:export', args=['json'])}", f"{detail}"):
        body = page.request.get(path).text()
        assert "hunter2" not in body and "sk-1" not in body
    stranger = visit("leasing_tasks.view_task")
    stranger.goto(detail)
    assert "note" not in stranger.locator("main").inner_text()
    figure(f"inert on {len(paths)} pages, shown as text on {shown}; 2 of 2 secrets masked")
