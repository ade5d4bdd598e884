"""Other queues on the same work: each in an environment of its own, from pins.toml.

``on_<peer>.py`` or ``on_<peer>.mjs`` runs there, with Python or Node, and does as ``measuring``
says, which runs in ours. Where ours counts from the first claim to the last completion by the
database's clock, peers are counted from the first handler that begins until a look, fifty times a
second, finds nothing left.
"""

from __future__ import annotations

import json
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.bars import BARS
from tests.benchmarks.bench import Figures, measured
from tests.benchmarks.databases import ROOT
from tests.benchmarks.sizes import Size

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / "build" / "peers"
_BY_MEANS: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "pins.toml").read_text())
PINS: dict[str, list[str]] = _BY_MEANS["python"] | _BY_MEANS["node"]
#: Of which a bar speaks.
IN_BARS = [peer for peer in PINS if any(bar.other == peer for bar in BARS)]
#: It measures leases, and by itself.
LOCK = "redis-lock"


def prepare(peer: str) -> list[str]:
    """The command of the peer's adapter. Its environment is made again where its pins have
    changed. Raises CalledProcessError if that is impossible."""
    python = ".".join(platform.python_version_tuple()[:2])
    is_node = peer in _BY_MEANS["node"]
    folder, pins = ENVIRONMENTS / (peer if is_node else f"{peer}-{python}"), PINS[peer]
    stamp = folder / "pins.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != pins:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (_install_with_npm if is_node else _install_with_pip)(folder, pins)
        stamp.write_text(json.dumps(pins))
    name = f"on_{peer.replace('-', '_')}"
    if not is_node:
        return [str(folder / "bin" / "python"), str(HERE / f"{name}.py")]
    # Node looks for packages beside the file that wants them.
    for script in (HERE / f"{name}.mjs", HERE / "common.mjs"):
        shutil.copy(script, folder)
    return ["node", str(folder / f"{name}.mjs")]


def _install_with_pip(folder: Path, pins: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *pins], check=True)


def _install_with_npm(folder: Path, pins: list[str]) -> None:
    (folder / "package.json").write_text('{"private": true}')
    npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"]
    subprocess.run([*npm, *pins], cwd=folder, check=True)


def measure(peer: str, url: str, size: Size) -> Figures:
    """The peer's figures. Raises CalledProcessError, ValueError."""
    command = prepare(peer)
    if peer == LOCK:
        command = [*command, json.dumps(asdict(size))]
    else:
        module = "tests.benchmarks.peers.measuring"
        command = [sys.executable, "-m", module, size.name, *command]
    if "redis" in peer:
        with redis() as address:
            found = measured(command, url, REDIS_URL=address)
    else:
        found = measured(command, url)
    return {name: {peer: figure} for name, figure in found.items()}


def without_means(peers: list[str]) -> dict[str, str]:
    """Return the peers that need a program which is not installed, and its name."""
    wanted = {peer: "redis-server" for peer in peers if "redis" in peer}
    wanted |= {peer: "node" for peer in peers if peer in _BY_MEANS["node"]}
    missing = {program for program in {*wanted.values(), "npm"} if not shutil.which(program)}
    if "npm" in missing:
        missing.add("node")
    return {peer: program for peer, program in wanted.items() if program in missing}


@contextmanager
def redis() -> Iterator[str]:
    """A Redis that stores nothing, on a port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="leasing-bench-") as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        server = subprocess.Popen(
            ["redis-server", *options, "--appendonly", "no"], stdout=subprocess.DEVNULL
        )
        try:
            _wait_for(port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def _wait_for(port: int) -> None:
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    raise ValueError("redis-server does not answer")
