"""Launchers of brokers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kombu.connection import Connection

from tests.brokers import Broker, NoBroker, serve_rabbitmq, serve_redis
from tests.processes import Process, wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["redis_broker", "rabbitmq_broker"])
def test_a_broker_keeps_what_it_accepted_when_it_is_killed(
    name: str, request: pytest.FixtureRequest
) -> None:
    broker: Broker = request.getfixturevalue(name)
    put(broker, "kept")

    broker.kill()
    assert not broker.answers()
    broker.start()

    assert take(broker) == "kept"


def test_a_test_may_leave_a_broker_stopped(redis_broker: Broker) -> None:
    redis_broker.stop()
    redis_broker.heal()
    assert redis_broker.answers()


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from tests.brokers import NoBroker, serve_redis\n"
        "try:\n"
        "    with serve_redis() as broker:\n"
        "        print(broker.folder, broker.port, flush=True)\n"
        "        time.sleep(60)\n"
        "except NoBroker as error:\n"
        "    print('skipped:', error, flush=True)\n"
    )
    parent = Process(["-c", code], os.environ, tmp_path / "log")
    wait_for(lambda: "\n" in parent.output, process=parent, timeout=30)
    if "skipped:" in parent.output:
        parent.wait()
        pytest.skip(parent.output)
    folder = Path(parent.output.split()[0])
    assert folder.exists()

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    wait_for(lambda: not folder.exists())


@pytest.mark.parametrize("serve", [serve_redis, serve_rabbitmq])
def test_a_missing_program_is_named(serve: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert callable(serve)
    with pytest.raises(NoBroker, match="on PATH"), serve():
        pass


def put(broker: Broker, body: str) -> None:
    with Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        queue = connection.SimpleQueue("launchers")
        queue.put(body)
        queue.close()


def take(broker: Broker) -> object:
    with Connection(broker.url) as connection:
        queue = connection.SimpleQueue("launchers")
        message = queue.get(timeout=10)
        message.ack()
        queue.close()
        return message.payload
