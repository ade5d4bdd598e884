"""``python -m tests.celery_soak``: one line a broker; exits with 1 when one falls short."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.brokers import Broker, NoBroker, serve_rabbitmq, serve_redis
from tests.plugin import ENVIRONMENT
from tests.postgres import serve
from tests.processes import Process

BROKERS: dict[str, Callable[[], AbstractContextManager[Broker]]] = {
    "redis": serve_redis,
    "rabbitmq": serve_rabbitmq,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.celery_soak", description=__doc__)
    parser.add_argument("--broker", choices=[*BROKERS], action="append")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--relay-kills", type=int, default=2)
    parser.add_argument("--purges", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=900, help="seconds, for each broker")
    options = parser.parse_args()
    with serve() as database, tempfile.TemporaryDirectory() as folder:
        os.environ.update(ENVIRONMENT, DATABASE_URL=database.url)
        os.environ.update(DJANGO_SETTINGS_MODULE="tests.celery_settings", LEASING_TTL="3")
        _prepare()
        right = [_run(name, options, Path(folder)) for name in options.broker or BROKERS]
    return 0 if all(right) else 1


def _prepare() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _run(name: str, options: argparse.Namespace, folder: Path) -> bool:
    from django.core.management import call_command
    from django.db import connections

    from tests.celery_soak.soak import Soak

    call_command("flush", verbosity=0, interactive=False)
    logs = iter(range(10_000))
    try:
        with BROKERS[name]() as broker:

            def start(args: list[str]) -> Process:
                env = {**os.environ, "CELERY_BROKER_URL": broker.url, "PYTHONUNBUFFERED": "1"}
                return Process(args, env, folder / f"{name}-{next(logs)}.log")

            outcome = Soak(
                start,
                broker,
                options.tasks,
                seed=options.seed,
                restarts=options.restarts,
                kills=options.kills,
                relay_kills=options.relay_kills,
                purges=options.purges,
                repeats=options.repeats,
                patience=options.patience,
            ).run()
    except NoBroker as error:
        print(f"{name}: not run: {error}", flush=True)
        return False
    finally:
        connections.close_all()
    print(f"{name}: {outcome}", flush=True)
    if not outcome.is_right:
        for log in sorted(folder.glob(f"{name}-*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
    return outcome.is_right


if __name__ == "__main__":
    sys.exit(main())
