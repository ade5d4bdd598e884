"""Workers under one parent that die, and parents."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from tasks.models import Task, TaskAttempt, TaskStatus, Worker
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.races import doomed
from tests.races.support import PATIENCE, begins, let_go, waiting
from tests.tasks.support import attempts, row_of

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

#: Longer than any test: nothing in them waits until a lease has run out.
FLEET = ["manage.py", "run_worker", "--skip-checks", "--name", "fleet", "--ttl", "300"]


def start_fleet(spawn: Spawn, *options: str, workers: int = 2) -> Process:
    """A parent whose workers are there."""
    parent = spawn([*FLEET, "--workers", str(workers), *options])
    wait_for(lambda: len(present()) == workers, timeout=PATIENCE, process=parent)
    return parent


def present() -> list[Worker]:
    return list(Worker.objects.filter(fleet="fleet", stopped_at=None).order_by("fleet_index"))


def sockets_of(pid: int) -> list[str]:
    links = [os.readlink(each) for each in Path("/proc", str(pid), "fd").iterdir()]
    return [link for link in links if link.startswith("socket:")]


def holder_of(task: Task) -> Worker:
    return Worker.objects.get(name=row_of(task)["holder"])


def test_a_worker_that_is_killed_is_replaced_and_its_handlers_end_before_their_tasks_are_ready(
    spawn: Spawn, tmp_path: Path
) -> None:
    task = Task.objects.enqueue("jobs.compute", {"do": "ignore", "folder": str(tmp_path)})
    parent = start_fleet(spawn)
    assert [row.fleet_index for row in present()] == [1, 2]
    # One to each worker, and two for signals: none to the database.
    assert len(sockets_of(parent.pid)) == 4
    wait_for((tmp_path / "began").exists, timeout=PATIENCE, process=parent)
    handler, victim = int((tmp_path / "began").read_text()), holder_of(task)
    os.kill(handler, signal.SIGSTOP)  # or it would end by itself

    os.kill(victim.pid, signal.SIGKILL)
    wait_for(lambda: attempts(task), process=parent)

    with pytest.raises(ProcessLookupError):
        os.kill(handler, 0)
    assert TaskAttempt.objects.get().error == "its worker was killed by signal 9"
    wait_for(lambda: victim.name not in {row.name for row in present()}, process=parent)
    wait_for(lambda: len(present()) == 2, timeout=PATIENCE, process=parent)
    Task.objects.filter(pk=task.pk).cancel(by="olga")
    parent.terminate()
    assert parent.wait(PATIENCE) == 0, parent.output
    assert not present()
    assert "Traceback" not in parent.output


UNBEGUN = ["before the claim", "after the claim", "before the entry", "before the mark"]


@pytest.mark.parametrize("point", [*doomed.BEFORE, *doomed.AFTER])
def test_a_worker_that_is_killed_anywhere_loses_nothing(
    spawn: Spawn, tmp_path: Path, point: str
) -> None:
    """Tasks that had not begun have their only attempt left. The second worker runs it all:
    none is replaced under ``--drain``."""
    most = 1 if point in UNBEGUN else 2
    tasks = Task.objects.enqueue_many("jobs.echo", [{}] * 12, max_attempts=most)
    (tmp_path / "worker").mkdir()

    options = ["--workers", "2", "--threads", "1", "--drain", "--ttl", "300"]
    parent = spawn(["-m", "tests.races.doomed", point, str(tmp_path), *options])

    assert parent.wait(PATIENCE) == 1, parent.output
    assert (tmp_path / "killed").exists()
    assert Task.objects.succeeded().count() == len(tasks), parent.output
    lost = TaskAttempt.objects.filter(outcome="lost", error="its worker was killed by signal 9")
    assert TaskAttempt.objects.count() == lost.count()
    assert Task.objects.filter(attempts=2).count() == lost.count()
    if point != "after storing":  # when others may have begun, or not
        assert lost.exists() == (point not in UNBEGUN)
    assert not Worker.objects.filter(stopped_at=None).exists()


def test_a_worker_whose_parent_is_killed_ends_with_its_tasks(spawn: Spawn, tmp_path: Path) -> None:
    """Another parent of its name can start meanwhile."""
    task = waiting(tmp_path)
    parent = start_fleet(spawn, "--stop-timeout", "60")
    begins(tmp_path, 1)
    name = holder_of(task).name

    parent.kill()
    wait_for(lambda: [row.name for row in present()] == [name], timeout=PATIENCE)
    successor = spawn([*FLEET, "--workers", "2"])
    wait_for(lambda: len(present()) == 3, timeout=PATIENCE, process=successor)
    let_go(tmp_path, 1)

    wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED, timeout=PATIENCE)
    wait_for(lambda: len(present()) == 2, timeout=PATIENCE)
    assert name not in {row.name for row in present()}
    successor.terminate()
    assert successor.wait(PATIENCE) == 0, successor.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_stops_once_and_a_second_one_hurries(
    spawn: Spawn, tmp_path: Path, number: signal.Signals
) -> None:
    task = waiting(tmp_path)
    parent = start_fleet(spawn, "--stop-timeout", "60")
    begins(tmp_path, 1)

    os.killpg(parent.pid, number)
    wait_for(lambda: len(present()) == 1, timeout=PATIENCE, process=parent)
    assert row_of(task)["status"] == TaskStatus.RUNNING
    parent.send_signal(number)

    assert parent.wait(PATIENCE) == 0, parent.output
    assert (row_of(task)["status"], row_of(task)["attempts"]) == (TaskStatus.READY, 0)
    assert "Traceback" not in parent.output


def test_a_fleet_whose_workers_do_not_start_ends(spawn: Spawn, tmp_path: Path) -> None:
    parent = spawn(["-m", "tests.races.doomed", "no start", str(tmp_path), "--workers", "2"])

    assert parent.wait(PATIENCE) == 1
    assert (
        "exited 5 times in a row before it was ready: its worker ended with exit code 1"
        in parent.output
    )


def test_a_parent_with_threads_starts_workers_that_serve_and_are_handed_back(
    spawn: Spawn, tmp_path: Path
) -> None:
    """By exec, with the map as a descriptor, and so the process that hands back."""
    task, file = waiting(tmp_path), tmp_path / "health"
    options = ["--name", "fleet", "--workers", "2", "--ttl", "300", "--health-file", str(file)]
    parent = spawn(["-m", "tests.races.doomed", "with another thread", str(tmp_path), *options])
    begins(tmp_path, 1)

    os.kill(holder_of(task).pid, signal.SIGKILL)
    wait_for(lambda: attempts(task) == [(1, "lost")], timeout=PATIENCE, process=parent)

    assert "this process has other threads: other" in parent.output
    wait_for(lambda: "given back: 0; lost: 1" in parent.output, timeout=PATIENCE, process=parent)
    wait_for(lambda: len(present()) == 2, timeout=PATIENCE, process=parent)
    (tmp_path / "polite").touch()
    parent.terminate()
    assert parent.wait(PATIENCE) == 0, parent.output
    assert not present()


def test_what_is_handed_back_is_counted_where_workers_share_a_directory(
    spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    task, (port,) = waiting(tmp_path), free_ports(1)
    env = {"PROMETHEUS_MULTIPROC_DIR": str(counts)}
    parent = spawn([*FLEET, "--workers", "2", "--metrics-port", str(port)], **env)
    begins(tmp_path, 1)

    os.kill(holder_of(task).pid, signal.SIGKILL)

    def counted() -> bool:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return 'tasks_recovered_total{queue="default",reason="died"} 1.0' in str(page.read())
        return False

    wait_for(counted, timeout=PATIENCE, process=parent)
    (tmp_path / "polite").touch()
    parent.terminate()
    assert parent.wait(PATIENCE) == 0, parent.output


def test_a_worker_that_is_suspended_is_killed_and_replaced(spawn: Spawn, tmp_path: Path) -> None:
    task = waiting(tmp_path)
    options = ["--name", "fleet", "--workers", "1", "--ttl", "3"]
    parent = spawn(["-m", "tests.races.doomed", "suspended", str(tmp_path), *options])
    begins(tmp_path, 1)
    victim = holder_of(task)

    os.kill(victim.pid, signal.SIGSTOP)
    wait_for(lambda: attempts(task) == [(1, "lost")], timeout=PATIENCE, process=parent)

    assert f"{victim.name} (pid {victim.pid}) has sent no report for 3 s" in parent.output
    # Its task is taken back before its row goes, and its successor starts meanwhile.
    wait_for(
        lambda: [each.name == victim.name for each in present()] == [False],
        timeout=PATIENCE,
        process=parent,
    )
    (tmp_path / "polite").touch()
    parent.terminate()
    assert parent.wait(PATIENCE) == 0, parent.output


def test_a_worker_that_has_run_its_tasks_is_replaced(spawn: Spawn, tmp_path: Path) -> None:
    parent = start_fleet(spawn, "--max-tasks", "1")
    names = {row.name for row in present()}
    Task.objects.enqueue_many("jobs.echo", [{}] * 6)

    wait_for(lambda: Task.objects.succeeded().count() == 6, timeout=PATIENCE, process=parent)

    assert len(set(Task.objects.values_list("holder", flat=True)) | names) >= 6
    assert not TaskAttempt.objects.exists()
    parent.terminate()
    assert parent.wait(PATIENCE) == 0, parent.output
