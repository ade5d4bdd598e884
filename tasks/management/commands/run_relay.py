from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.management.base import ServiceCommand, duration
from leasing.metrics import port
from leasing.runtime.shutdown import on_stop_signal
from leasing.validation.names import unique_name
from tasks.conf import outbox_publisher, task_settings
from tasks.management.greeting import STOP
from tasks.models import WorkerRole
from tasks.outbox.relay import Relay
from tasks.worker.registration import registered


class Command(ServiceCommand):
    help = (
        "Publish messages of the outbox by OUTBOX_PUBLISHER or Celery's broker, and tasks of "
        "CELERY_QUEUES, until SIGTERM or SIGINT. Any number of relays may run."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--ttl",
            type=duration,
            metavar="DURATION",
            help="Time from the death of a relay until others publish what it had claimed",
        )
        parser.add_argument("--name", help="Name of this relay (default: host:pid:random)")
        port.add_arguments(parser)

    def handle(self, **options: Any) -> None:
        name = unique_name(options["name"])
        try:
            publish = outbox_publisher()
            is_over_celery = publish is None or task_settings.CELERY_QUEUES
            broker: Any = _celery_broker() if is_over_celery else None
            relay = Relay(publish or broker.send_message, broker, ttl=options["ttl"], name=name)
        except (ImproperlyConfigured, InvalidResource, InvalidTTL) as error:
            raise CommandError(str(error)) from error
        port.serve(options)
        queues = ", ".join(task_settings.CELERY_QUEUES) or "none: messages of the outbox only"
        self.greet(options, f"relay {name}", {"queues": queues, "stop": STOP})
        present = registered(name, relay.stopping, WorkerRole.RELAY)
        with on_stop_signal(relay.stop), present as threads:
            relay.run(threads)


def _celery_broker() -> Any:
    try:
        from tasks.celery.broker import CeleryBroker
    except ImportError as error:
        raise CommandError(
            f"Celery is not installed ({error}). Install the extra celery, or let "
            "TASK_QUEUE['OUTBOX_PUBLISHER'] name a publisher of your own."
        ) from error
    return CeleryBroker.of_settings()
