"""The page about deployment: its units, its container file and its commands are run, and what they
say of one another is true."""

from __future__ import annotations

import ast
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import get_commands, load_command_class
from gunicorn.config import GracefulTimeout  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from leasing.api.readiness import ANSWER_WITHIN
from leasing.conf import leasing_settings
from leasing.runtime.shutdown import ExitCode
from tasks.client.__main__ import parser as remote_parser
from tasks.conf import task_settings
from tasks.fleet.cleanup import GROUPS_PATIENCE
from tasks.fleet.parent import KILL_AFTER
from tests.brokers import free_ports
from tests.deployed import (
    HOST,
    PAGE,
    PLACE,
    START_TIMEOUT,
    Site,
    Unit,
    block_of,
    build_image,
    notified,
    page_blocks,
    seconds_of,
    units,
)
from tests.plugin import DATABASE, ROOT
from tests.postgres import find_account
from tests.processes import wait_for
from tests.proxy import Proxy
from tests.test_monitoring import named_in, promtool
from tests.web_servers import config_around, nginx_command

__all__ = ["promtool"]

UNITS = units()
#: Those that last.
SERVICES = {name: unit for name, unit in UNITS.items() if "Restart" in unit.service}
#: Seconds after SIGTERM at which platforms that read a Procfile kill.
PROCFILE_KILLS_AFTER = 30
#: The cores of the containers on the page.
WORKERS_OF_A_POD = 2


# Consistency


def manifests(heading: str) -> list[Any]:
    """Return the documents of the first block of YAML in a section."""
    return list(YAML(typ="safe", pure=True).load_all(block_of(heading, "yaml").text))


def pod_of(name: str) -> Any:
    (found,) = (each for each in manifests("Kubernetes") if each["metadata"]["name"] == name)
    return found["spec"]["template"]["spec"]


def container_of(name: str) -> Any:
    (container,) = pod_of(name)["containers"]
    return container


def longest_stop(unit: str) -> float:
    """Return the seconds that a process may take from SIGTERM to its end."""
    if "web" in unit:
        graceful: int = GracefulTimeout.default
        return graceful
    return task_settings.STOP_TIMEOUT + KILL_AFTER + GROUPS_PATIENCE


@pytest.mark.parametrize("unit", SERVICES.values(), ids=list(SERVICES))
def test_systemd_kills_no_process_that_stops_in_its_time(unit: Unit) -> None:
    assert unit.stop_signal == "SIGTERM"
    assert unit.stop_timeout > longest_stop(unit.name)


@pytest.mark.parametrize("name", ["shop-web", "shop-worker"])
def test_a_pod_has_time_to_stop(name: str) -> None:
    hook = container_of(name).get("lifecycle", {}).get("preStop")
    before = float(hook["exec"]["command"][-1]) if hook else 0.0

    assert pod_of(name)["terminationGracePeriodSeconds"] > before + longest_stop(name)


def test_the_table_of_stops_has_the_figures_of_the_code() -> None:
    text = PAGE.read_text().partition("### Stop")[2].partition("\n## ")[0]
    remote = remote_parser().get_default("stop_timeout")

    assert f"`STOP_TIMEOUT` ({task_settings.STOP_TIMEOUT:g} s)" in text
    assert f"`STOP_TIMEOUT` + {KILL_AFTER:g} s" in text
    assert f"`--graceful-timeout` ({GracefulTimeout.default} s)" in text
    assert f"`--stop-timeout` ({remote:g} s)" in text
    limits = re.findall(r"^\| (\w+).*\| (\d+) s \|$", text, re.MULTILINE)
    assert {process: int(limit) for process, limit in limits} == {
        "worker": int(UNITS["shop-worker@.service"].stop_timeout),
        "bare": 45,
        "gunicorn": int(UNITS["shop-web.service"].stop_timeout),
        "remote": 45,
        "relay": 75,
    }


def test_a_parent_ends_before_the_platform_of_a_procfile_kills() -> None:
    words = shlex.split(procfile()["worker"])
    allowed = float(words[words.index("--stop-timeout") + 1])

    assert allowed + KILL_AFTER < PROCFILE_KILLS_AFTER


def test_systemd_starts_again_what_the_exit_code_asks_for() -> None:
    service = UNITS["shop-worker@.service"].service

    assert service["Restart"] == "always"
    assert int(service["RestartPreventExitStatus"]) == ExitCode.REFUSED
    assert float(service["RestartSec"]) > 10 / 5  # five starts within ten seconds are its limit


def procfile() -> dict[str, str]:
    lines = block_of("Procfile", "yaml").lines
    return dict(line.split(": ", 1) for line in lines)


def test_every_probe_asks_an_address_that_answers_it() -> None:
    web = container_of("shop-web")
    for kind, path in {"readinessProbe": "/api/readyz", "livenessProbe": "/api/healthz"}.items():
        probe = web[kind]
        assert probe["httpGet"]["path"] == path
        assert probe["httpGet"]["port"] == web["ports"][0]["containerPort"]
        assert probe["httpGet"]["httpHeaders"] == [{"name": "Host", "value": HOST}]
        assert probe["timeoutSeconds"] > ANSWER_WITHIN
        exempt = re.findall(r'REDIRECT_EXEMPT = \[r"(.*)"\]', block_of("Settings", "py", 1).text)
        assert re.search(exempt[0], path.lstrip("/"))
    worker = container_of("shop-worker")
    for kind, path in {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }.items():
        get = worker[kind]["httpGet"]
        assert (get["path"], f"--health-port={get['port']}" in worker["args"]) == (path, True)


def commands_of_ours() -> list[list[str]]:
    """Return all commands of Django's on the page that are not in a block of the console."""
    lines = [*procfile().values(), *(each for unit in UNITS.values() for each in unit.starts)]
    found = [shlex.split(line) for line in lines if "manage.py" in line]
    found += [shlex.split(block_of("Prune leases", "text").lines[0].rpartition("&& ")[2])]
    pods = ("shop-migrate", "shop-worker")
    return found + [container_of(name)["args"] for name in pods]


@pytest.mark.parametrize("line", dict.fromkeys(map(shlex.join, commands_of_ours())))
def test_every_command_is_understood(line: str) -> None:
    words = shlex.split(line)
    assert words[0].endswith("python") and words[1] == "manage.py"
    name, *arguments = words[2:]

    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(arguments)


def test_the_autoscaler_counts_the_slots_of_a_pod() -> None:
    worker = container_of("shop-worker")
    (scaled,) = manifests("Autoscaling")
    (trigger,) = scaled["spec"]["triggers"]
    (threads,) = (each for each in worker["args"] if each.startswith("--threads="))

    assert worker["resources"]["limits"]["cpu"] == str(WORKERS_OF_A_POD)
    slots = WORKERS_OF_A_POD * int(threads.partition("=")[2])
    assert int(trigger["metadata"]["threshold"]) == slots
    assert scaled["spec"]["scaleTargetRef"]["name"] == "shop-worker"
    assert scaled["spec"]["minReplicaCount"] >= 1
    documented = (ROOT / "docs" / "metrics-reference.md").read_text()
    assert all(f"`{each}`" in documented for each in named_in(trigger["metadata"]["query"]))


def test_the_query_of_the_autoscaler_counts_what_is_due_and_what_runs(
    promtool: str, tmp_path: Path
) -> None:
    (scaled,) = manifests("Autoscaling")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    series = [
        {"series": f'tasks_queue_{name}{{queue="{queue}",instance="{pod}"}}', "values": str(value)}
        for pod in ("a", "b")
        for queue, values in {
            "default": {"ready": 30, "running": 12, "paused": 0},
            "bulk": {"ready": 900, "running": 0, "paused": 0},
        }.items()
        for name, value in values.items()
    ]
    paused = [
        each | {"values": "1"} if 'paused{queue="default"' in each["series"] else each
        for each in series
    ]
    tests = [
        {
            "input_series": given,
            "promql_expr_test": [
                {"expr": query, "exp_samples": [{"labels": "{}", "value": expected}]}
            ],
        }
        for given, expected in ((series, 42), (paused, 12))
    ]
    (tmp_path / "tests.yml").write_text(json.dumps({"tests": tests}))  # which is YAML
    subprocess.run([promtool, "test", "rules", str(tmp_path / "tests.yml")], check=True)


def test_the_sum_of_connections_is_that_of_its_example() -> None:
    text = " ".join(PAGE.read_text().partition("## Connections")[2].split())
    (total,) = re.findall(r"need ([\d ×+]+ = \d+), more than", text)
    sum_of, _, result = total.replace("×", "*").partition(" = ")
    pods, workers, threads = 2, 2, 8

    assert eval(sum_of) == int(result)
    assert int(result) == pods * workers * (6 + threads) + pods * workers * (threads + 4) + 10


#: Figures that the page takes from that of performance.
FIGURES = {
    r"run (\d+) % of the 10,000 naps": r"10 ms naps, of the ideal \| 0\.(\d+) \|",
    r"about (\d+) µs of CPU": r"CPU of the worker while draining \| (\d+\.\d) us",
    r"the server about (\d+) µs": r"CPU of the server while draining \| (\d+\.\d) us",
    r"idle worker takes ([\d.]+) % of a core": r"idle worker, CPU \| ([\d.]+) % of a core",
    r"up to (\d+) MB for a worker": r"memory of the worker while draining .* at most (\d+) \|",
}


@pytest.mark.parametrize("here", FIGURES)
def test_a_figure_is_that_of_the_page_of_performance(here: str) -> None:
    (shown,) = re.findall(here, " ".join(PAGE.read_text().split()))
    (measured,) = re.findall(FIGURES[here], (ROOT / "docs" / "performance.md").read_text())

    digits = len(shown.partition(".")[2])
    assert float(shown) == round(float(measured), digits)


def test_the_options_that_prepare_statements_are_those_that_were_measured() -> None:
    here: dict[str, Any] = {"DATABASES": {"default": {"OPTIONS": {"connect_timeout": 5}}}}
    exec(block_of("PostgreSQL", "py").text, here)
    there: dict[str, Any] = {}
    page = (ROOT / "docs" / "performance.md").read_text().partition("## Options of the database")[2]
    exec(page.partition("```python\n")[2].partition("```")[0], there)

    options = there["DATABASES"]["default"]["OPTIONS"]
    assert here["DATABASES"]["default"]["OPTIONS"] == {"connect_timeout": 5} | options


def test_a_proxy_waits_longer_than_a_request_may() -> None:
    (timeout,) = re.findall(r"proxy_read_timeout (\d+)s;", block_of("Remote workers", "nginx").text)

    assert float(timeout) > leasing_settings.API_MAX_WAIT
    assert f"`API_MAX_WAIT`, {leasing_settings.API_MAX_WAIT:g} s" in PAGE.read_text()


# What is run


@pytest.fixture(scope="module")
def on_postgresql(request: pytest.FixtureRequest) -> None:
    if request.config.stash[DATABASE].name == "SQLite":
        pytest.skip("the page is about PostgreSQL")


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest, on_postgresql: None) -> Iterator[str]:
    """The address of a new, empty database."""
    with request.config.stash[DATABASE].another("deployed") as url:
        yield url


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, database: str) -> Site:
    """The site as its image has it, on a migrated database."""
    site = build_image(tmp_path_factory.mktemp("image"), database)
    site.run(procfile()["release"])
    return site


@pytest.fixture
def site(image: Site) -> Iterator[Site]:
    """The site; what a test has started ends with it, and its tasks are deleted."""
    yield image
    image.close()
    with psycopg.connect(image.database, autocommit=True) as connection:
        connection.execute("TRUNCATE leasing_tasks_task CASCADE")


def ask(site: Site, statement: str) -> Any:
    """Return the first column of the first row."""
    with psycopg.connect(site.database, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    return None if row is None else row[0]


def enqueue(site: Site, name: str, env: Mapping[str, str] | None = None, **data: Any) -> int:
    code = f"from tasks.models import Task\nprint(Task.objects.enqueue({name!r}, {data!r}).pk)"
    return int(site.python(code, **(env or {})))


def status_of(site: Site, task: int) -> str:
    return str(ask(site, f"SELECT status FROM leasing_tasks_task WHERE id = {task}"))


def wait_for_status(site: Site, task: int, status: str) -> None:
    wait_for(lambda: status_of(site, task) == status, timeout=START_TIMEOUT)


def as_user(number: str) -> list[str]:
    """Return what starts a program as the user with that number, who may read the folders of the
    tests; nothing where only we can be."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return []
    capability = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    same = [*capability, "--securebits=+no_setuid_fixup", "--clear-groups"]
    return ["setpriv", f"--reuid={number}", f"--regid={number}", *same]


def number_of(unit: Unit) -> signal.Signals:
    return signal.Signals[unit.stop_signal]


@pytest.mark.slow
def test_the_image_serves_and_works(site: Site) -> None:
    assert re.fullmatch(r"python:3\.1[1-9]-slim", site.base)
    assert site.user.isdecimal() and int(site.user) > 0
    assert f":{site.exposed}" in " ".join(site.command)
    assert (site.root / "static" / "leasing").is_dir()

    # A user without a name, as in the image.
    user = as_user(site.user)
    server = site.start([*user, *site.command])
    site.wait_until_ready(server)
    task = enqueue(site, "invoices.send", invoice_id=7)
    drain = ["python", "manage.py", "run_worker", "--drain"]
    worker = site.start([*user, *drain])
    assert worker.wait(START_TIMEOUT) == 0
    assert status_of(site, task) == "succeeded"
    assert server.stop(signal.SIGTERM, 45) == 0
    assert "ERROR" not in server.output


@pytest.mark.slow
def test_systemd_finds_no_fault_in_the_units(site: Site, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze")
    names = []
    for unit in UNITS.values():
        (tmp_path / unit.name).write_text(site.placed(unit.text))
        names.append(str(tmp_path / unit.name.replace("@", "@default")))
    done = subprocess.run(
        [program, "verify", "--man=no", *names], capture_output=True, text=True, timeout=60
    )

    ours = [line for line in done.stderr.splitlines() if "shop-" in line]
    assert (done.returncode, ours) == (0, [])


def test_a_program_that_systemd_starts_is_named_from_the_root() -> None:
    # It looks for any other one in the folder of the caller.
    (by_hand,) = re.findall(r"`systemd-run (.*)`", PAGE.read_text())
    started = next(word for word in shlex.split(by_hand) if word.endswith("/python"))

    lines = [started, *(line for unit in UNITS.values() for line in unit.starts)]
    assert [line for line in lines if not line.startswith(f"{PLACE}/")] == []


@pytest.mark.slow
def test_the_unit_of_the_web_server_starts_serves_and_stops(site: Site, tmp_path: Path) -> None:
    unit = UNITS["shop-web.service"]
    assert unit.service["Type"] == "notify"
    with notified(tmp_path) as heard:
        server = site.start(shlex.split(unit.start), NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert b"READY=1" in heard.recv(1000)
    site.wait_until_ready(server)

    assert json.loads(site.get("/api/healthz")[1]) == {"message": "ok"}
    assert server.stop(number_of(unit), unit.stop_timeout) == 0


@pytest.mark.slow
def test_the_unit_of_the_workers_runs_tasks_and_stops(site: Site) -> None:
    unit = UNITS["shop-worker@.service"]
    workers = site.start(shlex.split(unit.start))
    wait_for_status(site, enqueue(site, "invoices.send", invoice_id=7), "succeeded")

    assert workers.stop(number_of(unit), unit.stop_timeout) == 0


@pytest.mark.slow
def test_the_time_after_stop_timeout_is_enough_for_what_does_not_stop(
    site: Site, tmp_path: Path
) -> None:
    unit = UNITS["shop-worker@.service"]
    workers = site.start([*shlex.split(unit.start), "--stop-timeout", "0.5"])
    task = enqueue(site, "test.stay", until=str(tmp_path / "never"))
    wait_for_status(site, task, "running")

    limit = unit.stop_timeout - task_settings.STOP_TIMEOUT
    assert workers.stop(number_of(unit), limit) == 0
    assert status_of(site, task) == "ready"
    assert ask(site, f"SELECT attempts FROM leasing_tasks_task WHERE id = {task}") == 0


@pytest.mark.slow
def test_the_unit_of_a_release_ends_well(site: Site) -> None:
    lines = UNITS["shop-migrate.service"].starts

    assert len(lines) == 2
    assert "No migrations to apply" in site.run(lines[0])
    assert "static files" in site.run(lines[1])


@pytest.mark.slow
def test_a_wrong_command_line_is_an_exit_that_systemd_does_not_repeat(site: Site) -> None:
    unit = UNITS["shop-worker@.service"]
    worker = site.start(["python", "manage.py", "run_worker", "--treads", "2"])

    code = worker.wait(START_TIMEOUT)
    assert code == int(unit.service["RestartPreventExitStatus"])


@pytest.mark.slow
@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_a_web_server_of_the_page_answers(site: Site, server: str) -> None:
    (line,) = (each for each in block_of("Web server", "console").lines if each.startswith(server))
    words = shlex.split(line.replace("--port 8000", f"--port {site.port}"))
    started = site.start(words)
    site.wait_until_ready(started)

    assert started.stop(signal.SIGTERM, 45) in (0, -signal.SIGTERM)


PRELOADED = """
import os, sys, threading
import shop.wsgi
from django.db import connections
from leasing.models import Lease

assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
assert all(each.connection is None for each in connections.all(initialized_only=True))


def serve(number):
    with Lease.objects.hold(f"preloaded:{number}", ttl=1) as hold:
        threading.Event().wait(2.5)
        hold.ensure()


children = []
for number in range(2):
    child = os.fork()
    if not child:
        serve(number)
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.mark.slow
def test_a_preloaded_project_has_no_thread_and_no_connection_to_share(site: Site) -> None:
    assert site.run(f"python -W error -c {shlex.quote(PRELOADED)}") == "[0, 0]\n"


@pytest.mark.slow
def test_readiness_is_answered_while_the_database_hangs(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("px")
    proxy = Proxy(folder, Path(site.environment["DATABASE_HOST"]))
    try:
        unit = UNITS["shop-web.service"]
        server = site.start(shlex.split(unit.start), DATABASE_HOST=str(folder))
        site.wait_until_ready(server)
        proxy.swallow()

        def refused() -> bool:
            return site.get("/api/readyz", timeout=ANSWER_WITHIN + 8)[0] == 503

        wait_for(refused)
        assert "not reachable" in site.get("/api/readyz")[1]
        assert seconds_of(lambda: site.get("/api/healthz")) < 5
    finally:
        proxy.close()


@pytest.mark.slow
@pytest.mark.parametrize("process", ["web", "worker"])
def test_a_line_of_the_procfile_runs(site: Site, process: str) -> None:
    started = site.start(["sh", "-c", f"exec {procfile()[process]}"])
    if process == "web":
        site.wait_until_ready(started)
    else:
        wait_for_status(site, enqueue(site, "invoices.send", invoice_id=7), "succeeded")

    assert started.stop(signal.SIGTERM, PROCFILE_KILLS_AFTER) == 0


# Connections


def sessions(site: Site) -> int:
    name = psycopg.conninfo.conninfo_to_dict(site.database)["dbname"]
    with psycopg.connect(site.database.replace(f"/{name}", "/postgres")) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            f" WHERE datname = '{name}' AND backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow
def test_a_worker_has_as_many_connections_as_the_page_says(site: Site, tmp_path: Path) -> None:
    text = PAGE.read_text()
    assert "| worker, idle | 3:" in text and "up to 6 of its own" in text
    threads, end = 3, tmp_path / "end"
    worker = site.start(["python", "manage.py", "run_worker", "--threads", str(threads)])
    wait_for(lambda: sessions(site) == 3, timeout=START_TIMEOUT)

    tasks = [enqueue(site, "test.stay", until=str(end)) for _ in range(threads)]
    for task in tasks:
        wait_for_status(site, task, "running")
    counts = [sessions(site) for _ in range(50)]
    end.touch()
    while any(status_of(site, task) != "succeeded" for task in tasks):
        counts.append(sessions(site))

    # One of each thread and those of the idle worker; whoever has renewed by now has one more.
    assert 3 + threads <= max(counts) <= 6 + threads
    assert worker.stop(signal.SIGTERM, 45) == 0


@pytest.mark.slow
def test_a_web_process_has_as_many_connections_as_the_page_says(site: Site) -> None:
    threads = 3
    options = ["--workers", "1", "--threads", str(threads), "--preload"]
    server = site.start(["gunicorn", "shop.wsgi", "--bind", f"127.0.0.1:{site.port}", *options])
    site.wait_until_ready(server)
    made = site.run(
        "python manage.py api_tokens create waiter --scope leasing_tasks.change_task --json"
    )
    headers = {"Authorization": f"Bearer {json.loads(made)['secret']}"}
    body = json.dumps({"processor": "waiter", "wait": 10}).encode()
    stop = threading.Event()

    def ask_again() -> int:
        status = 0
        while not stop.is_set():
            site.get("/api/readyz")
            status = site.post("/api/tasks/next", b'{"processor": "other"}', headers)
        return status

    with ThreadPoolExecutor(threads + 2) as clients:
        asked = [clients.submit(site.post, "/api/tasks/next", body, headers)]
        asked += [clients.submit(ask_again) for _ in range(threads)]
        counts = [sessions(site) for _ in range(100)]
        stop.set()
        assert {each.result() for each in asked} == {200}

    # Of each thread, and that which listens.
    assert threads + 1 <= max(counts) <= threads + 3


@pytest.mark.slow
def test_recovery_alone_has_as_many_connections_as_the_page_says(site: Site) -> None:
    program = site.start(["python", "manage.py", "run_recovery"])
    wait_for(lambda: sessions(site) > 0, timeout=START_TIMEOUT)
    counts = [sessions(site) for _ in range(200)]

    assert "| `run_recovery` | up to 3 |" in PAGE.read_text()
    assert max(counts) <= 3
    assert program.stop(signal.SIGTERM, 45) == 0


@pytest.mark.slow
def test_a_parent_has_no_connection(site: Site) -> None:
    site.start(["python", "manage.py", "run_worker", "--workers", "2"])

    wait_for(lambda: sessions(site) == 2 * 3, timeout=START_TIMEOUT)


# A pooler


@pytest.fixture
def pooled(site: Site, tmp_path: Path) -> dict[str, str]:
    """The variables of a site behind PgBouncer, with its configuration of the page."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no pgbouncer: install it with `apt-get install pgbouncer`")
    env, (port,) = site.environment, free_ports(1)
    config = block_of("PgBouncer", "ini").text
    for old, new in {
        "host=db.example.com": f"host={env['DATABASE_HOST']} user={env['DATABASE_USER']}",
        "shop =": f"{env['DATABASE_NAME']} =",
        "dbname=shop": f"dbname={env['DATABASE_NAME']}",
        "0.0.0.0": "127.0.0.1",
        "6432": str(port),
        "scram-sha-256": "any",  # as the server of the tests
        "auth_file = /etc/pgbouncer/userlist.txt": "unix_socket_dir =",
    }.items():
        assert config.count(old) == 1, old
        config = config.replace(old, new)
    path = tmp_path / "pgbouncer.ini"
    path.write_text(config)
    path.chmod(0o644)
    site.start([*find_account().prefix, program, str(path)])
    return {
        "DJANGO_SETTINGS_MODULE": "shop.pooled",
        "POOLER_HOST": "127.0.0.1",
        "POOLER_PORT": str(port),
        "LISTEN_URL": "",
    }


SWALLOWED = "not arrive"


@pytest.mark.slow
def test_a_worker_behind_a_pooler_polls(site: Site, pooled: dict[str, str]) -> None:
    worker = site.start(["python", "manage.py", "run_worker"], **pooled)
    wait_for_status(site, enqueue(site, "invoices.send", pooled, invoice_id=7), "succeeded")
    wait_for(lambda: SWALLOWED in worker.output, timeout=START_TIMEOUT)

    assert worker.stop(signal.SIGTERM, 45) == 0


@pytest.mark.slow
def test_listen_url_leads_around_the_pooler(site: Site, pooled: dict[str, str]) -> None:
    env = pooled | {"LISTEN_URL": site.database}
    worker = site.start(["python", "manage.py", "run_worker"], **env)
    wait_for_status(site, enqueue(site, "invoices.send", env, invoice_id=7), "succeeded")

    assert worker.stop(signal.SIGTERM, 45) == 0
    assert "WARNING" not in worker.output


@pytest.mark.slow
def test_the_checks_find_no_fault_in_the_settings_of_the_page(
    site: Site, pooled: dict[str, str]
) -> None:
    (line,) = (each for each in block_of("Settings", "console").lines if "check" in each)

    for env in ({}, pooled | {"LISTEN_URL": site.database}):
        found = re.findall(r"\((\w+\.\w\d+)\)", site.run(f"{line} || true", **env))
        # How to send mail, and HSTS, are for a site to decide; the server here is not durable.
        assert {"security.W004"} <= set(found) <= {"mail.E001", "security.W004", "leasing.W003"}


# Time-outs


@pytest.mark.slow
def test_a_worker_works_under_the_time_outs_of_the_page(site: Site, tmp_path: Path) -> None:
    name = psycopg.conninfo.conninfo_to_dict(site.database)["dbname"]
    role = f"ROLE {site.environment['DATABASE_USER']} IN DATABASE {name}"
    statements = block_of("Time-outs", "sql").text.replace("ROLE shop", role)
    assert statements.count(role) == 3
    # A hundredth of the time is enough for what a worker does itself.
    statements = re.sub(r"'\d+s'", "'1s'", statements)
    with psycopg.connect(site.database, autocommit=True) as connection:
        connection.execute(statements.encode())
    try:
        worker = site.start(["python", "manage.py", "run_worker", "--ttl", "3"])
        end = tmp_path / "end"
        kept = enqueue(site, "test.stay", until=str(end))
        wait_for_status(site, kept, "running")
        renewals = f"SELECT renewals FROM leasing_tasks_task WHERE id = {kept}"
        wait_for(lambda: ask(site, renewals) >= 3, timeout=START_TIMEOUT)
        end.touch()
        wait_for_status(site, kept, "succeeded")
        assert "WARNING" not in worker.output

        long = enqueue(site, "test.query", seconds=20)
        wait_for_status(site, long, "failed")
        wait_for(lambda: "statement timeout" in worker.output)  # logged after its end is stored
        # What the page says of migrations.
        (line,) = block_of("Time-outs", "console").lines
        assert ask_with(site, line, "statement_timeout") == "0"
        assert ask_with(site, line, "lock_timeout") == "5s"
        assert worker.stop(signal.SIGTERM, 45) == 0
    finally:
        with psycopg.connect(site.database, autocommit=True) as connection:
            connection.execute(f"ALTER {role} RESET ALL".encode())


def ask_with(site: Site, line: str, setting: str) -> str:
    """Return a setting of the server as a command with the variables of ``line`` has it."""
    code = (
        "from django.db import connection\n"
        f"c = connection.cursor(); c.execute('SHOW {setting}'); print(c.fetchone()[0])"
    )
    variables = line.partition(" python ")[0]
    setup = f"import django; django.setup()\n{code}"
    return site.run(f"{variables} python -c {shlex.quote(setup)}").strip()


# The rest of the page


@pytest.mark.slow
def test_the_line_for_cron_prunes(site: Site) -> None:
    (line,) = block_of("Prune leases", "text").lines
    when, command = re.fullmatch(r"((?:\S+ ){5})(.*)", line).groups()  # type: ignore[union-attr]

    assert re.fullmatch(r"(\d+ ){2}(\* ){3}", when)
    # It knows only what the file says, in the quotes of the page.
    shown = dict(each.split("=", 1) for each in block_of("systemd", "text").lines)
    values = {name: site.environment[name] for name in shown} | {"SECRET_KEY": "$(x&y)#" * 8}
    values |= {name: site.environment[name] for name in ("DATABASE_NAME", "DATABASE_USER")}
    file = site.root.parent / "shop.env"
    quotes = {name: "'" if value.startswith("'") else "" for name, value in shown.items()}
    lines = [
        f"{name}={quotes.get(name, '')}{value}{quotes.get(name, '')}\n"
        for name, value in values.items()
    ]
    file.write_text("".join(lines))
    bare = subprocess.run(
        ["sh", "-c", site.placed(command).replace("/etc/shop.env", str(file))],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT,
    )
    assert bare.stdout.startswith("Pruned 0 leases"), bare.stderr


@pytest.mark.slow
def test_on_a_laptop_each_claim_is_a_line(site: Site) -> None:
    enqueue(site, "invoices.send", invoice_id=7)
    lines = logged(site, 0)

    assert any(" INFO    tasks: " in line and " completed by " in line for line in lines)


@pytest.mark.slow
def test_in_production_what_went_wrong_is_a_line_of_json(site: Site) -> None:
    enqueue(site, "invoices.send", invoice_id=7)
    enqueue(site, "test.query", seconds="no number")

    # What a worker prints at its start is for people.
    lines = [json.loads(line) for line in logged(site, 1) if line.startswith("{")]
    events = {line["event"]: line for line in lines}
    assert set(events) == {"worker.started", "task.failed", "worker.stopping", "worker.stopped"}
    assert "Traceback" in events["task.failed"]["traceback"]


def logged(site: Site, number: int) -> list[str]:
    """Return what a worker prints that logs as a block of the page says."""
    block = block_of("Logs and error reporting", "python", number)
    name = f"logged_{number}"
    path = site.root / "shop" / f"{name}.py"
    path.write_text(f"from shop.production import *\n\n{block.text}")
    env = {"DJANGO_SETTINGS_MODULE": f"shop.{name}"}
    return site.run("python manage.py run_worker --once", **env).splitlines()


@pytest.mark.slow
def test_a_database_of_the_queue_is_migrated_and_used(
    request: pytest.FixtureRequest, site: Site
) -> None:
    env = {"DJANGO_SETTINGS_MODULE": "shop.queued"}
    lines = block_of("A queue database", "console").lines
    assert [line.split()[2] for line in lines] == ["migrate"] * 3
    with request.config.stash[DATABASE].another("queue") as url:
        name = urlsplit(url).path.removeprefix("/")
        (site.root / "shop" / "queued.py").write_text(
            "from shop.production import *\n\n"
            + block_of("A queue database", "py").text.replace("shop_queue", name)
        )
        for line in lines:
            site.run(line, **env)
        site.run("python manage.py check --fail-level WARNING", **env)
        enqueue(site, "invoices.send", env, invoice_id=7)
        site.run("python manage.py run_worker --drain", **env)
        code = (
            "from tasks.models import Task\n"
            "for each in ('default', 'queue'):\n"
            "    print([task.status for task in Task.objects.using(each)])"
        )
        assert site.python(code, **env) == "[]\n['succeeded']\n"


# Remote workers


REMOTE_HANDLERS = """
from tasks.client import handler


@handler("invoices.send")
def send(ctx, invoice_id):
    return {"sent": invoice_id}
"""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of the site, in ``tmp_path`` with its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl")
    names = f"subjectAltName=DNS:{HOST},IP:127.0.0.1"
    files = ["-keyout", str(tmp_path / "shop.key"), "-out", str(tmp_path / "shop.pem")]
    options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={HOST}"]
    subprocess.run(
        [program, "req", *options, "-addext", names, *files], check=True, capture_output=True
    )
    return tmp_path / "shop.pem"


@pytest.mark.slow
def test_a_remote_worker_comes_through_the_proxy(
    site: Site, tmp_path: Path, certificate: Path
) -> None:
    server = site.start(site.command, ALLOWED_HOSTS=f"{HOST},127.0.0.1")
    site.wait_until_ready(server)
    (port,) = free_ports(1)
    served = site.placed(block_of("Remote workers", "nginx").text)
    served = served.replace("listen 443", f"listen 127.0.0.1:{port}")
    served = served.replace("/etc/ssl", str(tmp_path))
    (tmp_path / "nginx.conf").write_text(config_around(tmp_path, served))
    site.start(nginx_command(tmp_path))
    trusting = ssl.create_default_context(cafile=str(certificate))

    def get(path: str) -> http.client.HTTPResponse:
        with closing(
            http.client.HTTPSConnection("127.0.0.1", port, context=trusting)
        ) as connection:
            connection.request("GET", path)
            with connection.getresponse() as answer:
                return answer

    def answers() -> bool:
        with suppress(OSError):
            return get("/api/readyz").status == 200
        return False

    wait_for(answers, timeout=START_TIMEOUT)
    assert get("/ops/").headers["Location"].startswith("/ops/login/")  # no more over HTTP
    (sheet, *_) = (site.root / "static" / "leasing").rglob("*.css")
    assert get(f"/static/{sheet.relative_to(site.root / 'static')}").status == 200

    made = site.run(
        "python manage.py api_tokens create remote --scope leasing_tasks.change_task --json"
    )
    (tmp_path / "token").write_text(json.loads(made)["secret"])
    (site.root / "handlers.py").write_text(REMOTE_HANDLERS)
    _, line = block_of("Remote workers", "console").lines
    words = line.replace(f"https://{HOST}", f"https://127.0.0.1:{port}").split()
    words = [word.replace("/run/secrets", str(tmp_path)) for word in words]
    task = enqueue(site, "invoices.send", invoice_id=7)
    worker = site.start([*words, "--ca-file", str(certificate)])
    wait_for_status(site, task, "succeeded")

    assert worker.stop(signal.SIGTERM, 45) == 0


def test_every_block_of_settings_is_python() -> None:
    for block in page_blocks():
        if block.language in ("py", "python"):
            ast.parse(block.text)
