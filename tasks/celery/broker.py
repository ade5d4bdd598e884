"""A relay's broker, over the connection of a Celery application."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from kombu import Exchange, Producer
from kombu.exceptions import OperationalError

from tasks.celery import RUN
from tasks.conf import task_settings
from tasks.log import log
from tasks.models import OutboxMessage
from tasks.outbox.relay import BrokerAway, QueueRefused

#: Seconds that a connect, and an answer of the broker, may take.
PATIENCE = 10.0
#: Options of transports where the project's own say nothing else: that RabbitMQ confirms what it
#: has stored, and that no answer is waited for without end.
OPTIONS: dict[str, dict[str, Any]] = {
    "amqp": {"confirm_publish": True, "read_timeout": PATIENCE, "write_timeout": PATIENCE},
    "redis": {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE},
}


class Unroutable(Exception):
    """No queue is bound to the exchange for this topic."""


class CeleryBroker:
    """Sends over a connection of its own, made when it is needed."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._producer: Any = None
        self._returned = False

    @classmethod
    def of_settings(cls) -> CeleryBroker:
        """Return the broker of TASK_QUEUE["CELERY_APP"]. Raises ImproperlyConfigured."""
        path = task_settings.CELERY_APP
        if path is None:
            raise ImproperlyConfigured(
                "TASK_QUEUE['CELERY_APP'] must be the path of the Celery application, or "
                "TASK_QUEUE['OUTBOX_PUBLISHER'] that of a publisher of messages."
            )
        try:
            return cls(import_string(path))
        except ImportError as error:
            raise ImproperlyConfigured(f'TASK_QUEUE["CELERY_APP"]: {error}') from error

    def send_task(self, key: int, queue: str) -> None:
        def send(producer: Any) -> None:
            self._app.send_task(
                RUN,
                args=(key, queue),
                queue=queue,
                producer=producer,
                ignore_result=True,
                retry=False,
            )

        try:
            self._send(send)
        except BrokerAway:
            raise
        except Exception as error:
            self.close()
            raise QueueRefused(f"the queue {queue} did not take a task's key: {error}") from error

    def send_message(self, message: OutboxMessage) -> None:
        exchange = Exchange(task_settings.OUTBOX_EXCHANGE, type="topic", durable=True)
        headers = {
            "id": str(message.uid),
            "sequence": message.pk,
            "key": message.key,
            "created_at": message.created_at.isoformat(),
        }

        def send(producer: Any) -> None:
            self._returned = False
            producer.publish(
                message.payload,
                exchange=exchange,
                routing_key=message.topic,
                declare=[exchange],
                serializer="json",
                headers=headers,
                message_id=str(message.uid),
                delivery_mode=2,
                mandatory=True,
                retry=False,
            )
            if self._returned:
                raise Unroutable(f"no queue is bound for {message.topic!r}")

        self._send(send)

    def waiting(self, queue: str) -> int | None:
        self._open()
        try:
            with self._connection.channel() as channel:
                count: int = channel.queue_declare(queue, passive=True).message_count
                return count
        except Exception as error:
            log.broker_silent(queue=queue, error=error)
            self.close()
            return None

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _send(self, send: Callable[[Any], object]) -> None:
        """Call ``send``, and again over a new connection if that broke. Raises BrokerAway if none
        can be made; other errors of a live broker are raised as they are."""
        try:
            send(self._open())
            return
        except self._breaks as error:
            log.broker_lost(error=error)
            self.close()
        try:
            send(self._open())
        except self._breaks:
            self.close()
            raise

    @property
    def _breaks(self) -> tuple[type[BaseException], ...]:
        known = self._connection
        of_transport = () if known is None else (*known.connection_errors, *known.channel_errors)
        return (*of_transport, OperationalError, OSError)

    def _open(self) -> Any:
        if self._producer is not None:
            return self._producer
        try:
            connection = self._app.connection_for_write(connect_timeout=PATIENCE)
            given = connection.transport_options or {}
            ours = OPTIONS.get(connection.transport.driver_type, {})
            connection.transport_options = {**ours, **given}
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            self._connection = connection
            channel = connection.default_channel
            # Only RabbitMQ's own protocol returns what it could route nowhere.
            returned = self._on_return if hasattr(channel, "events") else None
            self._producer = Producer(channel, on_return=returned)
        except Exception as error:
            self.close()
            raise BrokerAway(f"the broker does not answer: {error}") from error
        return self._producer

    def _on_return(self, *args: Any, **kwargs: Any) -> None:
        self._returned = True
