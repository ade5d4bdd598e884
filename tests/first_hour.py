"""Play the first hour of a developer: ``python -m tests.first_hour``.

The commands and the code of README's section "First steps" are followed to the letter, in a new
environment, a new project and on Django's default database. Then happens what happens: a sign-in
page that is not there, a module with another name, a handler that fails, one that is renamed, a
forgotten `migrate`. Each step prints what a developer sees, and fails if that is not as it should
be.

Nothing is downloaded: pip installs the wheel that is built here, and Django is there already.
"""

from __future__ import annotations

import http.cookiejar
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.plugin import ENVIRONMENT, ROOT
from tests.test_packaging import PIP, build_wheel, make_bare_environment

TITLE = "First steps"
USER, PASSWORD = "ada", "a long enough one"
#: Seconds in which a process starts or a task ends, on a loaded machine.
PATIENCE = 60.0
#: Commands that have a terminal of their own.
LASTING = ("run_worker", "runserver")

BROKEN = """

@handler("invoices.print", max_attempts=2)
def print_invoice(ctx, invoice_id):
    return {"pages": 10 / (invoice_id - 7)}
"""


class Block(NamedTuple):
    """A block of README, and the file that the paragraph before it names."""

    language: str
    text: str
    file: str


def first_steps() -> list[Block]:
    """Return the blocks of README's section."""
    readme = (ROOT / "README.md").read_text()
    section = readme.partition(f"\n## {TITLE}\n")[2].partition("\n## ")[0]
    words, *blocks = re.split(r"^```(.*)$", section, flags=re.MULTILINE)
    found = []
    for language, text, _, after in zip(*[iter(blocks)] * 4, strict=True):
        files = re.findall(r"`([\w/]+/\w+\.py)`", words)
        found.append(Block(language, text.strip("\n") + "\n", files[-1] if files else ""))
        words = after
    return found


class Machine:
    """A folder with an environment, in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site"
        self.folder.mkdir()
        self.wheel = build_wheel(_made(folder / "wheel"))
        self.python = make_bare_environment(folder / "venv", "Django", "cronsim")
        self.site = f"127.0.0.1:{_free_port()}"
        # Nothing of this project's own environment may help.
        hidden = {*ENVIRONMENT, "DATABASE_URL", "PYTHONPATH", "PYTEST_ADDOPTS", "PYTHONWARNINGS"}
        self.env = {name: value for name, value in os.environ.items() if name not in hidden}
        self.env |= {"PYTHONUNBUFFERED": "1", "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )

    # Commands

    def run(self, line: str, *, code: int = 0, stdin: str = "") -> str:
        """Type a command. Return what it prints, after which it ends with ``code``."""
        _show(f"$ {line}", *(f">>> {each}" for each in stdin.splitlines()))
        done = subprocess.run(
            self._arguments(line),
            cwd=self.folder,
            env=self.env,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE,
        )
        _show(done.stdout)
        assert done.returncode == code, f"{line}: exit code {done.returncode}, not {code}"
        return done.stdout

    def start(self, line: str) -> None:
        """Type a command in a terminal of its own."""
        _show(f"$ {line} &")
        name = shlex.split(line)[2]
        with self._log(name).open("w") as output:
            self._running[name] = subprocess.Popen(
                self._arguments(line),
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def printed(self, name: str) -> str:
        """Return all that the command in its own terminal has printed."""
        return self._log(name).read_text()

    def stop(self, name: str) -> str:
        """Press Ctrl-C. Return all that the command has printed."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
        _show(f"^C {name}", self.printed(name))
        assert code == 0, f"{name}: exit code {code}"
        return self.printed(name)

    def restart_worker(self) -> str:
        """Stop the worker and start it again, as after a change of code."""
        printed = self.stop("run_worker")
        self.start("python manage.py run_worker")
        self.wait(lambda: "started" in self.printed("run_worker"), "the worker starts")
        return printed

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until ``condition`` is true."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for name, process in self._running.items():
                assert process.poll() is None, f"{name} ended:\n{self.printed(name)}"
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.1)

    def close(self) -> None:
        """End what still runs."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def _arguments(self, line: str) -> list[str]:
        program, *rest = shlex.split(line)
        match program:
            case "pip":
                assert rest == ["install", "django-leasing"], line
                python = str(self.python)
                return [*PIP, "--python", python, "install", "--no-index", str(self.wheel)]
            case "django-admin":
                return [str(self.python), "-m", "django", *rest]
            case "python":
                return [str(self.python), *rest, *self._options(rest)]
        raise AssertionError(f"Nobody said how to run {line}")

    def _options(self, arguments: list[str]) -> list[str]:
        """Return the answers to what a command would ask, and to what else runs on the machine."""
        if "createsuperuser" in arguments:
            return ["--noinput", "--username", USER, "--email", f"{USER}@shop.example"]
        return ["--noreload", self.site] if "runserver" in arguments else []

    def _log(self, name: str) -> Path:
        return self.folder.parent / f"{name}.log"

    # Files

    def write(self, file: str, text: str) -> None:
        """Write ``text`` into ``file``; into settings after what is there."""
        _show(f"# {file}", text)
        path = self.folder / file
        path.write_text(path.read_text() + text if path.name == "settings.py" else text)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace ``old`` by ``new`` in ``file``."""
        _show(f"# {file}: {old} becomes {new}")
        path = self.folder / file
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))

    # Pages

    def get(self, path: str, *, status: int = 200, **data: str) -> str:
        """Open a page; with ``data`` send a form. Return its text."""
        body = urllib.parse.urlencode(data).encode() if data else None
        request = urllib.request.Request(f"http://{self.site}{path}", body)
        try:
            answer = self._opener.open(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            text: str = answer.read().decode()
        title = " ".join("".join(re.findall(r"<title>([^<]*)<", text)).split())
        at = urllib.parse.urlsplit(answer.url).path
        _show(f"{request.get_method()} {path}: {answer.status} {title!r} at {at}")
        assert answer.status == status, f"{path}: {answer.status}\n{text}"
        return text.replace("<wbr>", "")

    def sign_in(self, path: str) -> str:
        """Open a page as somebody who is not signed in yet, and sign in."""
        form = self.get(path)
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
        return self.get(
            f"/admin/login/?next={path}",
            csrfmiddlewaretoken=token,
            username=USER,
            password=PASSWORD,
            next=path,
        )


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
    """Follow README until the worker and the web server run."""
    _title("First steps: install, settings, handler, worker, web server")
    for block in first_steps():
        match block.language:
            case "console":
                for line in block.text.splitlines():
                    _type(machine, line)
            case "python":
                machine.write(block.file, block.text)
    machine.wait(lambda: "started" in machine.printed("run_worker"), "the worker starts")


def _type(machine: Machine, line: str) -> None:
    if line.endswith(" migrate"):
        skip_migrate(machine)
    if line.endswith(LASTING):
        machine.start(line)
    elif "tasks show" in line or "tasks list" in line:
        pass  # once there is one
    else:
        machine.run(line)


def skip_migrate(machine: Machine) -> None:
    """Start without `migrate`, and with Django's LOGIN_URL."""
    _title("Too early: no migrate yet")
    for command in ("run_worker", "tasks list"):
        printed = machine.run(f"python manage.py {command}", code=1)
        assert "lacks migrations of this version (leasing.0001_initial, " in printed
        assert printed.rstrip().endswith("run `python manage.py migrate`.")
    machine.write("shop/forgetful.py", "from shop.settings import *\n\ndel LOGIN_URL\n")
    printed = machine.run("python manage.py check --settings shop.forgetful")
    assert 'HINT: Set LOGIN_URL = "admin:login"' in printed
    _title("First steps, continued")


def read_result(machine: Machine) -> None:
    """Enqueue in a shell, and read the result there."""
    _title("A task and its result")
    printed = machine.run("python manage.py shell", stdin=_block("py"))
    assert "{'sent': 7}" in printed
    greeting = machine.printed("run_worker")
    _show(greeting)
    assert "  handlers   1: invoices.send\n" in greeting
    assert re.search(r"20\d\d-\d\d-\d\d .* INFO    tasks: task:1 completed by ", greeting)
    for line in _block("console", "tasks list").splitlines():
        printed = machine.run(line)
        assert "succeeded" in printed
    assert '{"sent": 7}' in printed


def visit_pages(machine: Machine) -> None:
    """Sign in, and look for the task on the pages and in the admin."""
    _title("The pages")
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
    _title("A handler that fails")
    tasks = machine.folder / "invoices" / "tasks.py"
    machine.write("invoices/tasks.py", tasks.read_text() + BROKEN)
    machine.restart_worker()
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
    log = machine.restart_worker()
    assert log.count("Traceback (most recent call last):") == 2  # one for each attempt
    assert "in print_invoice" in log
    assert "ERROR   tasks: task:2 failed for good after attempt 2 of 2" in log
    machine.run("python manage.py tasks retry 2")
    wait_for_result(machine, 2, "{'pages': 5.0}")


def rename_handler(machine: Machine) -> None:
    """Rename a handler while a task of its old name waits."""
    _title("A renamed handler")
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
    machine.restart_worker()
    assert "  handlers   2: invoices.mail, invoices.print\n" in machine.printed("run_worker")
    machine.run("python manage.py tasks reschedule 3 --at now")
    wait_for_result(machine, 3, "{'sent': 8}")


def misname_module(machine: Machine) -> None:
    """Write handlers where nobody looks."""
    _title("A module with another name")
    machine.stop("run_worker")
    (machine.folder / "invoices" / "tasks.py").rename(machine.folder / "invoices" / "jobs.py")
    printed = machine.run("python manage.py run_worker --once")
    assert "No handler was found" in printed and "invoices.tasks (missing)" in printed
    (machine.folder / "invoices" / "jobs.py").rename(machine.folder / "invoices" / "tasks.py")


def forget_migrate(machine: Machine) -> None:
    """Open the pages where a version with new migrations was installed."""
    _title("A forgotten migrate, on the pages")
    machine.run("python manage.py migrate leasing_tasks zero")
    said = machine.get("/ops/", status=503)
    assert "lacks migrations of this version (leasing_tasks.0001_initial" in said
    machine.run("python manage.py migrate")
    machine.get("/ops/")


def wait_for_result(machine: Machine, key: int, result: str) -> None:
    """Wait in a shell until a task has succeeded."""
    code = f"print(wait_for(Task.objects.get(pk={key}), timeout=30))"
    printed = machine.run(
        "python manage.py shell",
        stdin=f"from tasks import wait_for\nfrom tasks.models import Task\n{code}\n",
    )
    assert result in printed


@contextmanager
def machine_in(folder: Path) -> Iterator[Machine]:
    """A machine whose processes end with the block."""
    machine = Machine(folder)
    try:
        yield machine
    finally:
        machine.close()


def _block(language: str, containing: str = "") -> str:
    (found,) = (
        block.text
        for block in first_steps()
        if block.language == language and containing in block.text
    )
    return found


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _title(text: str) -> None:
    print(f"\n== {text}\n", flush=True)


def _show(*texts: str) -> None:
    for text in texts:
        if text.strip():
            print(text.rstrip(), flush=True)


def main() -> None:
    """Play all steps in a temporary folder."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, machine_in(Path(folder)) as machine:
        play(machine)
    _title(f"All as it should be, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
