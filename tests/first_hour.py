"""Play the first hour of a developer: ``python -m tests.first_hour``.

The commands and the code of docs/quickstart.md are followed to the letter, in a new environment, a
new project and on Django's default database. Then happens what happens: a sign-in page that is not
there, a module with another name, a handler that fails, one that is renamed, a forgotten `migrate`.
Each step prints what a developer sees, and fails if that is not as it should be.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

from tests.machine import Block, Machine, blocks_of, machine_in, show, title
from tests.plugin import ROOT

#: The section after those that are played: what follows it is run by tests/test_docs.py.
END = "\n## Enqueue with your own rows\n"
#: Commands that have a terminal of their own.
LASTING = ("run_worker", "runserver")
#: The environment, which is there already.
PREPARED = ("python3 -m venv ", "source ")

BROKEN = """

@handler("invoices.print", max_attempts=2)
def print_invoice(ctx, invoice_id):
    return {"pages": 10 / (invoice_id - 7)}
"""


def first_steps() -> list[Block]:
    """Return the blocks of the quickstart's first sections."""
    steps, end, _ = (ROOT / "docs" / "quickstart.md").read_text().partition(END)
    assert end
    return blocks_of(steps)


def play(machine: Machine) -> None:
    """Play all steps."""
    install(machine)
    read_result(machine)
    visit_pages(machine)
    fail_task(machine)
    rename_handler(machine)
    misname_module(machine)
    forget_migrate(machine)


def install(machine: Machine) -> None:
    """Follow the quickstart until the worker and the web server run."""
    title("Quickstart: install, settings, handler, worker, web server")
    for block in first_steps():
        match block.language:
            case "console":
                for line in block.text.splitlines():
                    _type(machine, line)
            case "python":
                settings = block.file.endswith("settings.py")
                machine.write(block.file, block.text, append=settings)
    machine.wait(lambda: "started" in machine.printed("run_worker"), "the worker starts")


def _type(machine: Machine, line: str) -> None:
    if line.endswith(" migrate"):
        skip_migrate(machine)
    if line.endswith(LASTING):
        machine.start(line)
    elif line.startswith(PREPARED):
        show(f"$ {line}")
    elif "tasks show" in line or "tasks list" in line:
        pass  # once there is one
    else:
        machine.run(line)


def skip_migrate(machine: Machine) -> None:
    """Start without `migrate`, and with Django's LOGIN_URL."""
    title("Too early: no migrate yet")
    for command in ("run_worker", "tasks list"):
        printed = machine.run(f"python manage.py {command}", code=1)
        assert "lacks migrations of this version (leasing.0001_initial, " in printed
        assert printed.rstrip().endswith("run `python manage.py migrate`.")
    machine.write("shop/forgetful.py", "from shop.settings import *\n\ndel LOGIN_URL\n")
    printed = machine.run("python manage.py check --settings shop.forgetful")
    assert 'HINT: Set LOGIN_URL = "leasing:login"' in printed
    printed = machine.run("python manage.py check")
    assert printed == "System check identified no issues (0 silenced).\n"
    title("Quickstart, continued")


def read_result(machine: Machine) -> None:
    """Enqueue in a shell, and read the result there."""
    title("A task and its result")
    printed = machine.run("python manage.py shell", stdin=_block("py"))
    assert "{'sent': 7}" in printed
    greeting = machine.printed("run_worker")
    show(greeting)
    assert "  handlers   1: invoices.send\n" in greeting
    assert re.search(r"20\d\d-\d\d-\d\d .* INFO    tasks: task:1 completed by ", greeting)
    for line in _block("console", "tasks list").splitlines():
        printed = machine.run(line)
        assert "succeeded" in printed
    assert '{"sent": 7}' in printed


def visit_pages(machine: Machine) -> None:
    """Sign in, and look for the task on the pages and in the admin."""
    title("The pages")
    machine.wait(lambda: "Quit the server" in machine.printed("runserver"), "the server starts")
    assert "No issues. No tasks running on 1 worker" in machine.sign_in("/ops/")
    assert "invoices.send" in machine.get("/ops/tasks/")
    assert "succeeded" in machine.get("/ops/tasks/1/")
    machine.get("/ops/workers/")
    machine.get("/ops/leases/")
    assert "invoices.send" in machine.get("/admin/leasing_tasks/task/")
    machine.get("/admin/leasing/lease/")


def fail_task(machine: Machine) -> None:
    """Run a handler with an error, find it, mend it, and retry."""
    title("A handler that fails")
    tasks = machine.folder / "invoices" / "tasks.py"
    machine.write("invoices/tasks.py", tasks.read_text() + BROKEN)
    restart_worker(machine)
    printed = machine.run(
        "python manage.py shell",
        stdin="from invoices.tasks import print_invoice\n"
        "from tasks import wait_for\n"
        "from tasks.exceptions import TaskFailed\n"
        "task = print_invoice.enqueue(invoice_id=7)\n"
        "try: wait_for(task, timeout=30)\n"
        "except TaskFailed as failure: print(failure)\n\n",
    )
    assert "division by zero" in printed
    assert "division by zero" in machine.run("python manage.py tasks show 2")
    assert "division by zero" in machine.get("/ops/tasks/2/")
    assert "division by zero" in machine.get("/admin/leasing_tasks/task/2/change/")
    machine.edit("invoices/tasks.py", "invoice_id - 7", "invoice_id - 5")
    log = restart_worker(machine)
    assert log.count("Traceback (most recent call last):") == 2  # one for each attempt
    assert "in print_invoice" in log
    assert "ERROR   tasks: task:2 failed for good after attempt 2 of 2" in log
    machine.run("python manage.py tasks retry 2")
    wait_for_result(machine, 2, "{'pages': 5.0}")


def rename_handler(machine: Machine) -> None:
    """Rename a handler while a task of its old name waits."""
    title("A renamed handler")
    machine.stop("run_worker")
    machine.run(
        "python manage.py shell",
        stdin="from invoices.tasks import send\nsend.enqueue(invoice_id=8)\n",
    )
    old, new = '@handler("invoices.send")', '@handler("invoices.mail")'
    machine.edit("invoices/tasks.py", old, new)
    machine.start("python manage.py run_worker")
    machine.wait(
        lambda: "No handler is registered for 'invoices.send'" in machine.printed("run_worker"),
        "the worker meets the task",
    )
    assert "unknown_task" in machine.run("python manage.py tasks explain 3")
    assert "invoices.send" in machine.get("/ops/tasks/3/")
    machine.edit("invoices/tasks.py", new, f'{new[:-1]}, aliases=["invoices.send"])')
    restart_worker(machine)
    assert "  handlers   2: invoices.mail, invoices.print\n" in machine.printed("run_worker")
    machine.run("python manage.py tasks reschedule 3 --at now")
    wait_for_result(machine, 3, "{'sent': 8}")


def misname_module(machine: Machine) -> None:
    """Write handlers where nobody looks."""
    title("A module with another name")
    machine.stop("run_worker")
    (machine.folder / "invoices" / "tasks.py").rename(machine.folder / "invoices" / "jobs.py")
    printed = machine.run("python manage.py run_worker --once")
    assert "No handler was found" in printed and "invoices.tasks (missing)" in printed
    (machine.folder / "invoices" / "jobs.py").rename(machine.folder / "invoices" / "tasks.py")


def forget_migrate(machine: Machine) -> None:
    """Open the pages where a version with new migrations was installed."""
    title("A forgotten migrate, on the pages")
    machine.run("python manage.py migrate leasing_tasks zero")
    said = machine.get("/ops/", status=503)
    assert "lacks migrations of this version (leasing_tasks.0001_initial" in said
    machine.run("python manage.py migrate")
    machine.get("/ops/")


def restart_worker(machine: Machine) -> str:
    """Stop the worker and start it again, as after a change of code."""
    printed = machine.stop("run_worker")
    machine.start("python manage.py run_worker")
    machine.wait(lambda: "started" in machine.printed("run_worker"), "the worker starts")
    return printed


def wait_for_result(machine: Machine, key: int, result: str) -> None:
    """Wait in a shell until a task has succeeded."""
    code = f"print(wait_for(Task.objects.get(pk={key}), timeout=30))"
    printed = machine.run(
        "python manage.py shell",
        stdin=f"from tasks import wait_for\nfrom tasks.models import Task\n{code}\n",
    )
    assert result in printed


def _block(language: str, containing: str = "") -> str:
    (found,) = (
        block.text
        for block in first_steps()
        if block.language == language and containing in block.text
    )
    return found


def main() -> None:
    """Play all steps in a temporary folder."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, machine_in(Path(folder)) as machine:
        play(machine)
    title(f"All as it should be, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
