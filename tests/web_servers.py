"""The demo site under real servers: gunicorn, uvicorn, and nginx in front of them.

All listen on addresses of this machine only and read nothing of its configuration: nginx has a
folder of its own, with everything that it writes. They end with the test that started them.

On Linux every address of 127.0.0.0/8 is this machine's. So the tests call from NEAR or from FAR,
and nginx from PROXY, and the site can tell them apart.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.api_calls import Answer
from tests.brokers import Program, free_ports
from tests.conftest import Spawn
from tests.processes import wait_for

NEAR: Final = "127.0.0.1"
FAR: Final = "127.0.0.2"
PROXY: Final = "127.0.0.3"
#: Where Debian installs it, which is not in everybody's PATH.
NGINX: Final = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
START_TIMEOUT = 60.0

GUNICORN: Final = (
    *("-m", "gunicorn", "project.wsgi:application", "--no-control-socket"),
    *("--workers", "2"),
)
UVICORN: Final = (
    *("-m", "uvicorn", "project.asgi:application", "--lifespan", "off", "--no-proxy-headers"),
)


@dataclass(frozen=True)
class Site:
    """The site at a port of this machine."""

    port: int
    headers: Mapping[str, str] = field(default_factory=dict)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        source: str = NEAR,
        timeout: float = 30.0,
    ) -> Answer:
        """Call the API and return its answer.

        Args:
            method: The method.
            path: The path below /api.
            body: What is sent as JSON; None: nothing.
            headers: Further headers.
            source: The address that it is called from.
            timeout: Seconds until the answer must be there.
        """
        with closing(self.connect(source, timeout)) as connection:
            self.send(connection, method, path, body, headers)
            response = connection.getresponse()
            text = response.read()
        # A mapping whose names are in any case, but for the type checker.
        headers = cast(Mapping[str, str], response.headers)
        return Answer(response.status, json.loads(text) if text else None, headers)

    def connect(self, source: str = NEAR, timeout: float = 30.0) -> http.client.HTTPConnection:
        """Return a connection, for a test that does not wait for its answer."""
        return http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=timeout, source_address=(source, 0)
        )

    def send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request over ``connection``; the arguments are those of ``call``."""
        said = {"Content-Type": "application/json"} if body is not None else {}
        raw = None if body is None else json.dumps(body)
        connection.request(method, f"/api{path}", raw, {**self.headers, **said, **(headers or {})})

    def answers(self) -> bool:
        """Return True if it is up; a proxy says in words of its own that it is not."""
        try:
            return self.call("GET", "/healthz").status == 200
        except (OSError, ValueError):
            return False


def serve(spawn: Spawn, server: tuple[str, ...], bind: tuple[str, ...], **env: str) -> None:
    """Start the site.

    Args:
        spawn: The fixture ``spawn_cold``.
        server: GUNICORN or UVICORN, with further options.
        bind: Its options that say where it listens.
        env: The environment of the site.
    """
    # What a server itself warns of is not what is tested.
    spawn([*server, *bind], **{"PYTHONWARNINGS": "default", **env})


def at_port(server: tuple[str, ...], port: int) -> tuple[str, ...]:
    """Return the options by which ``server`` listens at ``port``."""
    if server[1] == "gunicorn":
        return ("--bind", f"127.0.0.1:{port}")
    return ("--host", "127.0.0.1", "--port", str(port))


def at_socket(server: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Return the options by which ``server`` listens at the socket ``path``."""
    return ("--bind", f"unix:{path}") if server[1] == "gunicorn" else ("--uds", str(path))


def started(spawn: Spawn, server: tuple[str, ...], **env: str) -> Site:
    """Return the site under ``server``, without a proxy; the arguments are those of ``serve``."""
    (port,) = free_ports(1)
    serve(spawn, server, at_port(server, port), **env)
    site = Site(port)
    wait_for(site.answers, timeout=START_TIMEOUT)
    return site


def nginx_config(folder: Path, port: int, upstream: str, more: str = "") -> str:
    """Return a configuration of nginx: a proxy at ``port`` for ``upstream``.

    Args:
        folder: The folder of its own.
        port: The port of 127.0.0.1.
        upstream: The address of the site: "127.0.0.1:8000", or "unix:/path".
        more: Further directives of the location.
    """
    source = "" if upstream.startswith("unix:") else f"proxy_bind {PROXY};"
    return config_around(
        folder,
        f"""
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 1m;
        location / {{
            proxy_pass http://{upstream};
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            {source}
            {more}
        }}
    }}
""",
    )


def config_around(folder: Path, servers: str) -> str:
    """Return a configuration of nginx with these servers, for a process in ``folder``."""
    # Only its own folder, and no other account: it runs as whoever runs the tests.
    account = "user root;" if os.getuid() == 0 else ""
    paths = "\n".join(
        f"    {kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""
daemon off;
worker_processes 1;
{account}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
{paths}
{servers}
}}
"""


def nginx_command(folder: Path) -> list[str]:
    """Return the command of nginx with the configuration that is in ``folder``; skips the test
    where there is no nginx."""
    if NGINX is None:
        pytest.skip("no nginx: install it with `apt-get install nginx-light`")
    errors = str(folder / "error.log")
    return [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", errors]


@pytest.fixture
def proxied(tmp_path: Path) -> Any:
    """Put nginx in front of an upstream: ``proxied("127.0.0.1:8000")`` returns a ``Site``. It is
    there when it answers for the upstream."""
    started: list[Program] = []

    def start(upstream: str, more: str = "") -> Site:
        folder = tmp_path / f"nginx-{len(started)}"
        folder.mkdir()
        (port,) = free_ports(1)
        (folder / "nginx.conf").write_text(nginx_config(folder, port, upstream, more))
        program = Program(nginx_command(folder), {}, folder / "output.log")
        program.start()
        started.append(program)
        site = Site(port)
        wait_for(site.answers, timeout=START_TIMEOUT, message=f"nginx: {program.output}")
        return site

    yield start
    for program in started:
        program.end(15)
        print(program.output)
