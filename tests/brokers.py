"""Throw-away message brokers for the tests: redis-server and RabbitMQ, as Debian packages them.

``serve_redis()`` and ``serve_rabbitmq()`` give a ``Broker`` that can be stopped, killed and
started again on its port, with what it stored. Each has a folder of its own and listens on
127.0.0.1 only; nothing of the machine's own configuration is read. The processes end with the
one that started them, and with the *thread* that started them: start brokers from the main one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0

# Where Debian keeps the script: the one on PATH changes the account and the folder.
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
#: The program that serve_redis runs: that of a Valkey does as well.
REDIS = os.environ.get("REDIS_SERVER", "redis-server")
BOUND = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


class NoBroker(Exception):
    """No broker could be started; the message says why."""


class Program:
    """A program with its output in a file; it can be started again when it has ended."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._command, self._env = [*BOUND, *command], {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; raises ``NoBroker`` if it cannot be."""
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self.log.parent,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the tests
                )
            except OSError as error:
                raise NoBroker(f"{self._command[0]}: {error}") from error

    def runs(self) -> bool:
        """Return True if it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, *numbers: int) -> None:
        """Send these signals, each if the one before did not end it, and last SIGKILL."""
        if self._process is None:
            return
        for number in (*numbers, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_TIMEOUT)
                break
            except subprocess.TimeoutExpired:
                continue
        self._process = None

    @property
    def output(self) -> str:
        """The end of what it has printed."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""


class Broker:
    """A broker on a port of 127.0.0.1.

    ``url`` is its address as Celery takes it. A broker that was stopped or killed starts again
    on the same port and with what it had stored; of RabbitMQ that is, after ``kill``, what it
    had confirmed: publish with ``confirm_publish`` in the transport's options.
    """

    def __init__(self, program: Program, port: int, url: str, greeting: bytes, answer: bytes):
        self.url = url
        self.port = port
        #: The folder of its data and of its log.
        self.folder = program.log.parent
        self._program = program
        self._greeting, self._answer = greeting, answer

    def start(self) -> None:
        """Start it, and wait until it answers; raises ``NoBroker``."""
        self._program.start()
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._program.runs():
            if self.answers():
                return
            time.sleep(0.02)
        self._program.end()
        raise NoBroker(f"{self.url} does not answer:\n{self._program.output}")

    def stop(self) -> None:
        """Stop it in order; its clients lose their connections."""
        self._program.send(signal.SIGCONT)
        self._program.end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._program.end()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections, and answers nothing until ``resume``."""
        self._program.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._program.send(signal.SIGCONT)

    def heal(self) -> None:
        """Start it if it is down, resume it if it is paused: what a test does after it."""
        if self._program.runs():
            self.resume()
        else:
            self.start()

    def answers(self) -> bool:
        """Return True if it speaks its protocol."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(self._greeting)
                return connection.recv(len(self._answer)) == self._answer
        except OSError:
            return False


@contextmanager
def serve_redis(
    port: int = 0, env: Mapping[str, str] | None = None, **others: object
) -> Iterator[Broker]:
    """Run a redis-server that writes all it accepts to a file, at ``port`` or at any; raises
    ``NoBroker``.

    Args:
        port: The port; 0: one that is free.
        env: Variables of its environment.
        others: Options of the server, with ``_`` for ``-``.
    """
    path = shutil.which(REDIS)
    if path is None:
        raise NoBroker(f"no {REDIS} on PATH (Debian: redis-server)")
    with _folder("redis") as folder:
        port = port or free_ports(1)[0]
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": folder,
            "save": "",
            "appendonly": "yes",  # what was answered survives SIGKILL, not the machine
            "appendfsync": "no",
            **{name.replace("_", "-"): value for name, value in others.items()},
        }
        command = [path]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        url = f"redis://127.0.0.1:{port}/0"
        program = Program(command, env or {}, folder / "log")
        broker = Broker(program, port, url, b"PING\r\n", b"+PONG\r\n")
        with _running(broker):
            yield broker


@contextmanager
def serve_rabbitmq(port: int = 0) -> Iterator[Broker]:
    """Run a RabbitMQ at ``port`` or at any, with a port mapper of its own; raises ``NoBroker``."""
    epmd = shutil.which("epmd")
    if epmd is None or not RABBITMQ.exists():
        raise NoBroker(f"no epmd on PATH, or no {RABBITMQ} (Debian: rabbitmq-server)")
    with _folder("rabbitmq") as folder, ExitStack() as stack:
        free, names_port, peers_port = free_ports(3)
        port = port or free
        # Were there none, Erlang would start one that outlives everything.
        command = [epmd, "-port", str(names_port), "-address", "127.0.0.1"]
        names = Program(command, {}, folder / "names.log")
        names.start()
        stack.callback(names.end)
        env = _rabbitmq_files(folder, port)
        env["ERL_EPMD_PORT"], env["RABBITMQ_DIST_PORT"] = str(names_port), str(peers_port)
        broker = Broker(
            Program([str(RABBITMQ)], env, folder / "log"),
            port,
            f"amqp://guest:guest@127.0.0.1:{port}//",
            b"AMQP\x00\x00\x09\x01",
            b"\x01\x00\x00",  # a method's frame on channel 0: it has opened a connection
        )
        stack.enter_context(_running(broker))
        yield broker


def _rabbitmq_files(folder: Path, port: int) -> dict[str, str]:
    """Write its settings, and tell the environment that leads it to them alone."""
    (folder / "plugins").write_text("[].\n")
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\n"
        "disk_free_limit.absolute = 1MB\n"  # it would block publishers on a full disk
        "log.console = true\n"
        "log.console.level = warning\n"
        "log.file = false\n"
    )
    return {
        "HOME": str(folder),  # of the cookie
        "RABBITMQ_NODENAME": f"leasing-{port}@localhost",
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_CRASH_DUMP_BYTES": "0",
        # One scheduler that sleeps when idle; several take longer to start.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        # The script then becomes the server instead of waiting for it: signals reach it.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


@contextmanager
def _running(broker: Broker) -> Iterator[None]:
    broker.start()
    try:
        yield
    finally:
        broker.kill()  # nobody reads what it would put in order


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """A folder that goes in the end, also when this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix=f"leasing-{name}-"))
    # Its input ends with us; the broker, bound to us, ends then too, and needs a moment for it.
    remove = ["sh", "-c", 'cat; rm -rf "$0" || { sleep 1; rm -rf "$0"; }', str(folder)]
    with subprocess.Popen(remove, stdin=subprocess.PIPE, start_new_session=True):
        yield folder


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 where nobody listens.

    They lie below those the system gives to outgoing connections: one of these could otherwise
    take the port of a broker that is down for a moment.
    """
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(20_000, 32_000)
            listener = stack.enter_context(closing(socket.socket()))
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
