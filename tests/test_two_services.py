"""A lease service and a task service on two databases, each killed in turn and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest

from leasing.models import ApiToken, Lease
from project.services import LEASES, TASKS
from project.two_services import GENERATOR_SCOPES, Service, token
from tasks.generator import generator_status
from tasks.models import GeneratorDesiredState, Task
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.plugin import DATABASE
from tests.processes import Process, wait_for
from tests.remote import SCOPES
from tests.web_servers import Site

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

#: The generators, each with the duration of its tasks, which tells whose a task is.
GENERATORS = {"ann": 0.0, "bob": 0.1}
#: The beginning of the name of their lease, of which each test has one of its own.
PREFIX = "tests.generator."
TTL = 6

HANDLERS = """
import pathlib
from tasks.client import handler

RUNS = pathlib.Path({runs!r})

@handler("sample.sleep")
def sleep(ctx, sleep_duration_seconds):
    with RUNS.open("a") as runs:
        runs.write(f"{{ctx.task.id}}\\n")
"""


class Two:
    """Both services, and what calls them. The tests' database is that of the task service."""

    def __init__(self, spawn: Spawn, leases: Service, tasks: Service, secret: str) -> None:
        self.lease = f"{PREFIX}{tasks.port}"
        self._spawn = spawn
        self._services = {LEASES: leases, TASKS: tasks}
        self._secret = secret
        self.processes: dict[str, Process] = {}
        self.leases, self.tasks = Site(leases.port), Site(tasks.port)

    def serve(self, *names: str) -> None:
        """Start services."""
        for name in names:
            args = ["manage.py", "runserver", "--noreload", "--skip-checks"]
            args.append(self._services[name].address)
            self._start(name, args, LEASING_API_ACCESS="compatible", **self._env(name))
        for name in names:
            site = Site(self._services[name].port)
            wait_for(site.answers, timeout=60, process=self.processes[name])

    def generate(self, *options: str) -> None:
        """Start the generators."""
        for name, seconds in GENERATORS.items():
            # A whole number is an int in the data of a task, and no less the same.
            length = [f"--shortest={seconds}", f"--longest={seconds}", "--rate=50"]
            args = ["manage.py", "run_generator", "--name", name, *length, *options]
            self._start(name, args, **self._env(TASKS))

    def work(self, folder: Path) -> Path:
        """Start a remote worker. Return the file in which it writes what it runs."""
        runs, handlers, secret = (folder / name for name in ("runs", "handlers.py", "token"))
        runs.touch()
        handlers.write_text(HANDLERS.format(runs=str(runs)))
        secret.write_text(ApiToken.objects.issue("remote", scopes=SCOPES)[1])
        args = ["-m", "tasks.client", "--url", self._services[TASKS].api]
        args += ["--token-file", str(secret), "--ttl", "60", str(handlers)]
        self._start("remote", args, DATABASE_URL="", DJANGO_SETTINGS_MODULE="")
        return runs

    def kill(self, name: str) -> None:
        """Kill a process at once, as kill -9 does."""
        self.processes[name].kill()
        self.processes[name].wait()

    def start(self) -> None:
        """Ask the task service to start the generator."""
        assert self.tasks.call("POST", "/generator/start").status == 200
        wait_for(is_running, timeout=60)

    def stop(self) -> None:
        """Ask the task service to stop it, which it answers soon."""
        answer = self.tasks.call("DELETE", "/generator/stop", timeout=5)
        assert (answer.status, answer.body["isRunning"]) == (200, False)

    def states(self) -> set[str]:
        """Return the states of the generators' lease, as the lease service lists it."""
        return {
            state
            for state in ("active", "expired")
            for lease in self.leases.call("GET", f"/leases/{state}").body["leases"]
            if lease["resource"] == self.lease
        }

    def _env(self, name: str) -> dict[str, str]:
        return {
            **self._services[name].env,
            "LEASE_SERVICE_URL": self._services[LEASES].api if name == TASKS else "",
            "LEASE_SERVICE_TOKEN": self._secret,
            "GENERATOR_LEASE": self.lease,
        }

    def _start(self, name: str, args: list[str], **env: str) -> None:
        settings = {"DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONWARNINGS": "default"}
        self.processes[name] = self._spawn(args, **{**settings, **env})


@pytest.fixture(scope="module")
def leases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, str]]:
    """The lease service, which does not run yet, with its database, and a token of it."""
    chosen = request.config.stash[DATABASE]
    with ExitStack() as stack:
        if chosen.url.startswith("sqlite:"):
            url = chosen.named(str(tmp_path_factory.mktemp("leases") / "leases"))
        else:
            url = stack.enter_context(chosen.another("leases"))
        service = Service(LEASES, free_ports(1)[0], url)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("DJANGO_SETTINGS_MODULE", "project.settings")
        service.command("migrate", "--verbosity", "0")
        with token(service, "generators", GENERATOR_SCOPES, "--prefix", PREFIX) as secret:
            patch.undo()
            yield service, secret
            patch.setenv("DJANGO_SETTINGS_MODULE", "project.settings")


@pytest.fixture
def two(
    spawn_cold: Spawn, process_env: dict[str, str], leases: tuple[Service, str]
) -> Iterator[Two]:
    """Both services, at work."""
    service, secret = leases
    tasks = Service(TASKS, free_ports(1)[0], process_env["DATABASE_URL"])
    pair = Two(spawn_cold, service, tasks, secret)
    pair.serve(LEASES, TASKS)
    yield pair
    for name in GENERATORS:
        pair.processes[name].terminate()
    for name in reversed(pair.processes):  # the services last: others call them
        pair.processes[name].end()
    assert not Lease.objects.filter(resource__contains="generator").exists()


def desired() -> GeneratorDesiredState:
    return GeneratorDesiredState.objects.get()


def is_running() -> bool:
    row = desired()
    return row.wanted and row.acknowledged_revision == row.revision and Task.objects.exists()


def leader() -> str:
    """Return the label of the generator that leads, or nothing."""
    return str(desired().acknowledged_by).rpartition(":")[0]


def makers() -> list[str]:
    """Return the generators in the order of the tasks that they made, once for each run of tasks:
    batches are stored one after the other, so ids are in the order of their commits."""
    names = {seconds: name for name, seconds in GENERATORS.items()}
    data = Task.objects.order_by("pk").values_list("task_data", flat=True)
    made = [names[each["sleep_duration_seconds"]] for each in data]
    return [name for name, _ in groupby(made)]


def produces() -> None:
    """Wait until there are more tasks than there were."""
    begun = Task.objects.count()
    wait_for(lambda: Task.objects.count() > begun, timeout=60)


def test_the_singleton_moves_when_its_generator_is_killed(two: Two) -> None:
    two.generate(f"--ttl={TTL}")
    two.start()
    first, token_before = leader(), desired().fence

    two.kill(first)
    wait_for(lambda: leader() not in ("", first), timeout=60)

    produces()
    assert desired().fence > token_before
    assert makers() == [first, leader()]
    assert two.tasks.call("GET", "/generator/status").body["status"] == "RUNNING"


def test_a_lease_service_that_is_back_in_time_moves_nothing(two: Two) -> None:
    two.generate("--ttl=60")
    two.start()
    first, token_before = leader(), desired().fence

    two.kill(LEASES)
    produces()
    two.serve(LEASES)

    produces()
    assert (leader(), desired().fence, makers()) == (first, token_before, [first])
    assert two.states() == {"active"}


def test_a_lease_service_that_is_away_for_long_ends_a_term_and_no_two_generate(two: Two) -> None:
    two.generate(f"--ttl={TTL}")
    two.start()
    first, token_before = leader(), desired().fence

    two.kill(LEASES)
    wait_for(lambda: leader() == "", timeout=60)
    made = Task.objects.count()
    assert two.tasks.call("GET", "/generator/status").body["status"] == "STARTED"
    wait_for(lambda: all("will retry" in two.processes[name].output for name in GENERATORS))
    assert Task.objects.count() == made
    two.serve(LEASES)

    wait_for(lambda: leader() != "", timeout=60)
    produces()
    assert desired().fence > token_before
    assert makers() in ([first], [first, leader()])


def test_a_task_service_that_was_killed_loses_and_doubles_no_task(two: Two, tmp_path: Path) -> None:
    runs = two.work(tmp_path)
    two.generate("--ttl=60")
    two.start()

    def ran() -> Counter[str]:
        return Counter(runs.read_text().split())

    wait_for(lambda: len(ran()) > 20, timeout=60, process=two.processes["remote"])
    two.kill(TASKS)
    produces()
    two.serve(TASKS)
    two.stop()

    wait_for(lambda: not Task.objects.exclude(status="succeeded").exists(), timeout=120)
    assert set(ran()) == set(map(str, Task.objects.values_list("pk", flat=True)))
    assert set(ran().values()) == {1}
    assert set(Task.objects.values_list("attempts", flat=True)) == {1}
    assert len(makers()) == 1


def heard(two: Two) -> Callable[[], bool]:
    """The leading generator has seen the stop, and left."""
    return lambda: desired().acknowledged_revision == desired().revision


def expired(two: Two) -> Callable[[], bool]:
    """The survivor could take over."""
    return lambda: two.states() == {"expired"}


@pytest.mark.parametrize(
    ("killed", "until"),
    [(LEASES, heard), (TASKS, heard), ("leader", expired)],
    ids=["lease service", "task service", "generator"],
)
def test_one_stop_stops_whatever_was_killed(
    two: Two, killed: str, until: Callable[[Two], Callable[[], bool]]
) -> None:
    two.generate(f"--ttl={TTL}")
    two.start()
    gone = leader() if killed == "leader" else killed

    two.kill(gone)
    if gone == TASKS:
        two.serve(TASKS)
    two.stop()
    made = Task.objects.count()
    wait_for(until(two), timeout=60)
    if gone == LEASES:
        two.serve(LEASES)

    assert Task.objects.count() == made
    assert generator_status().status == "STOPPED"
    two.start()
    produces()
