"""Other queues on the same work: each in an environment of its own, from pins.toml.

``on_<peer>.py`` runs with that environment's Python and prints the figures that it has. Where ours
counts from the first claim to the last completion by the database's clock, peers are counted from
the first handler that begins until a look, fifty times a second, finds nothing left.
"""

from __future__ import annotations

import json
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

from tests.benchmarks.bench import Figures, measured
from tests.benchmarks.databases import ROOT
from tests.benchmarks.sizes import Size

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / "build" / "peers"
PINS: dict[str, list[str]] = tomllib.loads((HERE / "pins.toml").read_text())


def prepare(peer: str) -> str:
    """The Python of the peer's environment, made again where its pins have changed."""
    folder, pins = ENVIRONMENTS / peer, PINS[peer]
    python, stamp = folder / "bin" / "python", folder / "pins.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != pins:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, *pins], check=True)
        stamp.write_text(json.dumps(pins))
    return str(python)


def measure(peer: str, url: str, size: Size) -> Figures:
    """The peer's figures. Raises CalledProcessError, ValueError."""
    script = HERE / f"on_{peer.replace('-', '_')}.py"
    command = [prepare(peer), str(script), "measure", json.dumps(asdict(size))]
    if "redis" in peer:
        with redis() as address:
            found = measured(command, url, REDIS_URL=address)
    else:
        found = measured(command, url)
    return {name: {peer: figure} for name, figure in found.items()}


def without_means(peers: list[str]) -> list[str]:
    """Return the part of ``peers`` that needs a server which is not installed."""
    return [] if shutil.which("redis-server") else [peer for peer in peers if "redis" in peer]


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
