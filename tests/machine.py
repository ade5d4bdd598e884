"""A developer's machine: an empty folder, a new environment, terminals, a browser.

The scripts that follow the documentation (`tests/first_hour.py`, `tests/tutorial.py`) type its
commands here and write its code into files. Nothing is downloaded: pip installs the wheel that is
built here, and what it needs is there already.
"""

from __future__ import annotations

import http.cookiejar
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.plugin import ENVIRONMENT
from tests.test_packaging import PIP, build_wheel, make_bare_environment

USER, PASSWORD = "ada", "a long enough one"
#: Seconds in which a process starts or a task ends, on a loaded machine.
PATIENCE = 60.0
#: The address at which the documentation has its web server.
SHOWN_SITE = "127.0.0.1:8000"
#: In place of curl, which a machine may lack: prints the body of any answer.
CURL = """
import sys, urllib.error, urllib.request
try: answer = urllib.request.urlopen(sys.argv[1], timeout=60)
except urllib.error.HTTPError as error: answer = error
print(answer.read().decode(), end="")
"""


class Block(NamedTuple):
    """A fenced block of a page, the words before it, and the file that these name last."""

    language: str
    text: str
    words: str

    @property
    def file(self) -> str:
        files = re.findall(r"`([\w/]+/\w+\.py)`", self.words)
        return files[-1] if files else ""


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page, or of a part of one, in order."""
    words, *parts = re.split(r"^```(.*)$", text, flags=re.MULTILINE)
    found = []
    for language, content, _, after in zip(*[iter(parts)] * 4, strict=True):
        found.append(Block(language, content.strip("\n") + "\n", words))
        words = after
    return found


class Machine:
    """A folder with an environment, in which commands are typed."""

    def __init__(self, folder: Path, *distributions: str) -> None:
        self.folder = folder / "site"
        self.folder.mkdir()
        self.wheel = build_wheel(_made(folder / "wheel"))
        self.python = make_bare_environment(folder / "venv", "Django", "cronsim", *distributions)
        self.site = f"127.0.0.1:{_free_port()}"
        # Nothing of this project's own environment may help.
        hidden = {*ENVIRONMENT, "DATABASE_URL", "PYTHONPATH", "PYTEST_ADDOPTS", "PYTHONWARNINGS"}
        self.env = {name: value for name, value in os.environ.items() if name not in hidden}
        self.env |= {"PYTHONUNBUFFERED": "1", "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell that starts the suite in the background has Ctrl-C ignored by all below it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._running: dict[str, subprocess.Popen[str]] = {}
        #: The terminals whose command ends by itself.
        self._ending: set[str] = set()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )

    # Commands

    def run(self, line: str, *, code: int = 0, stdin: str = "") -> str:
        """Type a command. Return what it prints, after which it ends with ``code``."""
        show(f"$ {line}", *(f">>> {each}" for each in stdin.splitlines()))
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
        show(done.stdout)
        assert done.returncode == code, f"{line}: exit code {done.returncode}, not {code}"
        return done.stdout

    def start(self, line: str, terminal: str = "", *, ends: bool = False) -> None:
        """Type a command that lasts.

        Args:
            line: The command.
            terminal: The name of its terminal; by default that of the command.
            ends: True if it may end by itself.
        """
        terminal = terminal or shlex.split(line)[2]
        show(f"{terminal} $ {line}")
        if terminal in self._running:
            assert self._running[terminal].poll() == 0, f"{terminal} is in use"
        self._ending = self._ending - {terminal} | ({terminal} if ends else set())
        with self._log(terminal).open("w") as output:
            self._running[terminal] = subprocess.Popen(
                self._arguments(line),
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def printed(self, terminal: str) -> str:
        """Return all that the latest command in its own terminal has printed."""
        return self._log(terminal).read_text()

    def stop(self, terminal: str) -> str:
        """Press Ctrl-C. Return all that the command has printed."""
        process = self._running.pop(terminal)
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
        show(f"{terminal} ^C", self.printed(terminal))
        assert code == 0, f"{terminal}: exit code {code}"
        return self.printed(terminal)

    def kill(self, pid: int) -> None:
        """Kill a process that was started here, or by one of these."""
        show(f"$ kill -9 {pid}")
        started = {each.pid: name for name, each in self._running.items()}
        if pid in started:
            process = self._running.pop(started[pid])
            process.kill()
            process.wait()
        else:
            ps = ["ps", "-o", "ppid=", "-p", str(pid)]
            assert int(subprocess.check_output(ps)) in started, f"{pid} was not started here"
            os.kill(pid, signal.SIGKILL)

    def suspend(self, terminal: str) -> None:
        """Press Ctrl-Z."""
        show(f"{terminal} ^Z")
        self._running[terminal].send_signal(signal.SIGSTOP)

    def resume(self, terminal: str) -> None:
        """Continue what was suspended."""
        show(f"{terminal} $ fg")
        self._running[terminal].send_signal(signal.SIGCONT)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until ``condition`` is true."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for name, process in self._running.items():
                ended = (None, 0) if name in self._ending else (None,)
                assert process.poll() in ended, f"{name} ended:\n{self.printed(name)}"
            if time.monotonic() > deadline:
                for name in self._running:
                    show(f"-- {name} has printed", self.printed(name))
                raise AssertionError(f"waited in vain: {what}")
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
                (extras,) = re.findall(r"^pip install '?django-leasing(\[\w+\]|)'?$", line)
                what = f"{self.wheel}{extras}"
                return [*PIP, "--python", str(self.python), "install", "--no-index", what]
            case "django-admin":
                return [str(self.python), "-m", "django", *rest]
            case "python":
                return [str(self.python), *rest, *self._options(rest)]
            case "curl":
                (url,) = rest
                return [str(self.python), "-c", CURL, url.replace(SHOWN_SITE, self.site)]
        raise AssertionError(f"Nobody said how to run {line}")

    def _options(self, arguments: list[str]) -> list[str]:
        """Return the answers to what a command would ask, and to what else runs on the machine."""
        if "createsuperuser" in arguments:
            return ["--noinput", "--username", USER, "--email", f"{USER}@shop.example"]
        return ["--noreload", self.site] if "runserver" in arguments else []

    def _log(self, terminal: str) -> Path:
        return self.folder.parent / f"{terminal}.log"

    # Files

    def write(self, file: str, text: str, *, append: bool = False) -> None:
        """Write ``text`` into ``file``, after what is there if ``append``."""
        show(f"# {file}", text)
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + text if append else text)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace ``old`` by ``new`` in ``file``."""
        show(f"# {file}: {old} becomes {new}")
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
        heading = " ".join("".join(re.findall(r"<title>([^<]*)<", text)).split())
        at = urllib.parse.urlsplit(answer.url).path
        show(f"{request.get_method()} {path}: {answer.status} {heading!r} at {at}")
        assert answer.status == status, f"{path}: {answer.status}\n{text}"
        return text.replace("<wbr>", "")

    def sign_in(self, path: str) -> str:
        """Open a page as somebody who is not signed in yet, and sign in."""
        form = self.get(path)
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
        return self.get(
            f"/ops/login/?next={path}",
            csrfmiddlewaretoken=token,
            username=USER,
            password=PASSWORD,
            next=path,
        )


@contextmanager
def machine_in(folder: Path, *distributions: str) -> Iterator[Machine]:
    """A machine whose processes end with the block."""
    machine = Machine(folder, *distributions)
    try:
        yield machine
    finally:
        machine.close()


def work_of_children() -> float:
    """Return the seconds of CPU that the processes have used which this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def title(text: str) -> None:
    """Print the title of a step."""
    print(f"\n== {text}\n", flush=True)


def show(*texts: str) -> None:
    """Print what is typed, written and seen."""
    for text in texts:
        if text.strip():
            print(text.rstrip(), flush=True)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
