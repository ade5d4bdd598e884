"""System checks: settings that cannot mean what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured

from leasing.checks.settings import misnamed_settings, unknown_settings
from leasing.conf import is_number, leasing_settings
from leasing.exceptions import InvalidResource
from leasing.stores import InvalidStore, stores
from leasing.stores.rows import RowStore
from leasing.validation.names import check_name
from tasks import registry
from tasks.conf import KEYED, outbox_publisher, retention, task_settings
from tasks.querysets import TaskStatus
from tasks.scheduling import declarations

#: The beginning of names that are kept from clients of the API: ``leasing.api.holders``.
RESERVED = "leasing_tasks."
#: Seconds of a window that the shortest lease fits into twice.
SHORTEST_WINDOW = 3


@register(Tags.compatibility)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """TASK_QUEUE: names, types and bounds, and that what is declared in code fits together."""
    messages = unknown_settings(task_settings, "leasing_tasks.E001")
    messages += misnamed_settings(task_settings, "leasing_tasks.E029")
    return messages or [
        *_check_numbers(),
        *_check_backoff(),
        *_check_queues(),
        *_check_compensations(),
        *_check_housekeeping(),
        *_check_schedules(),
        *_check_generator(),
        *_check_celery(),
        *_check_publisher(),
    ]


def _check_numbers() -> Iterator[CheckMessage]:
    yield from (
        Error(f"TASK_QUEUE[{key!r}] must be more than 0 seconds.", id="leasing_tasks.E002")
        for key in ("SWEEP_EVERY", "POLL_EVERY", "ANSWER_TIMEOUT", "HANDLER_ANSWER_TIMEOUT")
        if not (is_number(value := getattr(task_settings, key)) and value > 0)
        and (key, value) != ("HANDLER_ANSWER_TIMEOUT", None)
    )
    if not is_number(task_settings.STOP_TIMEOUT) or task_settings.STOP_TIMEOUT < 0:
        yield Error(
            "TASK_QUEUE['STOP_TIMEOUT'] must be a number of seconds.", id="leasing_tasks.E003"
        )
    most = task_settings.MAX_ATTEMPTS
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= 32767:
        yield Error(
            "TASK_QUEUE['MAX_ATTEMPTS'] must be a whole number from 1 to 32767.",
            id="leasing_tasks.E004",
        )


def _check_backoff() -> Iterator[CheckMessage]:
    backoff = task_settings.BACKOFF
    if (
        not isinstance(backoff, Mapping)
        or set(backoff) != {"base", "cap"}
        or not all(is_number(value) and value >= 0 for value in backoff.values())
    ):
        text = "TASK_QUEUE['BACKOFF'] must be {'base': seconds, 'cap': seconds}."
        yield Error(text, id="leasing_tasks.E005")


def _check_queues() -> Iterator[CheckMessage]:
    queues = task_settings.QUEUES
    if not queues or not isinstance(queues, list | tuple | set):
        text, hint = "TASK_QUEUE['QUEUES'] must list at least one queue.", None
        if isinstance(queues, str):
            text = f"TASK_QUEUE['QUEUES'] must be a list of queues, not the text {queues!r}."
            hint = f"Write [{queues!r}]."
        yield Error(text, hint=hint, id="leasing_tasks.E006")
        return
    for queue in queues:
        try:
            check_name(queue, "queue")
        except InvalidResource as error:
            yield Error(f"TASK_QUEUE['QUEUES']: {error}", id="leasing_tasks.E007")
    for name in registry.names():
        known = registry.find(name)
        if known.queue not in queues and known.name == name:
            yield Error(
                f"The handler {name!r} uses the queue {known.queue!r}, which is not in "
                "TASK_QUEUE['QUEUES'].",
                id="leasing_tasks.E008",
            )


def _check_compensations() -> Iterator[CheckMessage]:
    """A handler's compensation has no handler, has one itself, or does not take its data."""
    for name in registry.names():
        known = registry.find(name)
        if known.compensate is None or known.name != name:
            continue
        undo, parameters = registry.get(known.compensate), known.parameters
        if undo is None:
            reason = "which has no handler"
        elif undo.compensate is not None:
            reason = f"which is compensated by {undo.compensate!r} itself: nothing undoes an undo"
        else:
            reason = undo.parameters.mismatch(dict.fromkeys(parameters.required))
            reason = reason or undo.parameters.mismatch(dict.fromkeys(parameters.accepted))
        if reason:
            text = f"The handler {name!r} is compensated by {known.compensate!r}"
            yield Error(f"{text}: {reason.rstrip('.')}.", id="leasing_tasks.E035")


def _check_housekeeping() -> Iterator[CheckMessage]:
    yield from (
        Error(
            f"TASK_QUEUE[{key!r}] must be at least {_shortest_window():.12g} seconds.",
            id="leasing_tasks.E009",
        )
        for key in ("EXAMINE_EVERY", "PRUNE_EVERY")
        if not _is_window(getattr(task_settings, key), optional=key == "PRUNE_EVERY")
    )
    ages = task_settings.RETENTION
    if (
        not isinstance(ages, Mapping)
        or not set(ages) <= {*TaskStatus.ended(), KEYED}
        or not all(_is_age(value) for value in ages.values())
    ):
        states = ", ".join(TaskStatus.ended())
        yield Error(
            f"TASK_QUEUE['RETENTION'] must map states ({states}) and {KEYED!r} to a number of "
            "seconds, a timedelta or None.",
            id="leasing_tasks.E010",
        )
    else:
        ages = retention()
        keyed, failed = ages[KEYED], ages["failed"]
        if keyed is not None and (failed is None or keyed < failed):
            yield Error(
                f"TASK_QUEUE['RETENTION'] keeps tasks with an idempotency key ({KEYED!r}) for less "
                "time than failed ones: a request that is sent again, or the undoing of a failed "
                "task, could run twice.",
                hint=f"Leave {KEYED!r} out: it follows 'failed'.",
                id="leasing_tasks.E034",
            )
    if not isinstance(task_settings.SAMPLES, bool):
        yield Error("TASK_QUEUE['SAMPLES'] must be True or False.", id="leasing_tasks.E013")
    if not _is_age(task_settings.SAMPLE_RETENTION):
        text = "must be a number of seconds, a timedelta or None."
        yield Error(f"TASK_QUEUE['SAMPLE_RETENTION'] {text}", id="leasing_tasks.E014")


def _shortest_window() -> float:
    # The lease that the work is done under takes half of it.
    return max(SHORTEST_WINDOW, 2 * leasing_settings.MIN_TTL)


def _is_window(value: object, optional: bool) -> bool:
    if value is None:
        return optional
    return is_number(value) and value >= _shortest_window()


def _is_age(value: object) -> bool:
    if isinstance(value, timedelta):
        return value >= timedelta(0)
    return value is None or is_number(value) and value >= 0


def _check_schedules() -> Iterator[CheckMessage]:
    for schedule in declarations.declared():
        known = registry.get(schedule.task_name)
        if known is None:
            text = f"The schedule {schedule.name!r} enqueues {schedule.task_name!r}, which has no"
            yield Error(f"{text} handler.", id="leasing_tasks.E011")
        elif reason := known.parameters.mismatch(schedule.task_data):
            text = f"The schedule {schedule.name!r} cannot enqueue {schedule.task_name!r}: {reason}"
            yield Error(text, id="leasing_tasks.E028")
        if schedule.queue and schedule.queue not in task_settings.QUEUES:
            text = f"The schedule {schedule.name!r} uses the queue {schedule.queue!r}, which is"
            yield Error(f"{text} not in TASK_QUEUE['QUEUES'].", id="leasing_tasks.E012")


def _check_generator() -> Iterator[CheckMessage]:
    store, lease = task_settings.GENERATOR_STORE, task_settings.GENERATOR_LEASE
    try:
        check_name(lease, "lease")
    except InvalidResource as error:
        yield Error(f"TASK_QUEUE['GENERATOR_LEASE']: {error}", id="leasing_tasks.E030")
        return
    try:
        kind = stores.kind_of(store)
    except InvalidStore as error:
        # What is wrong with a store that is there, is reported by leasing.
        if not _is_store(store):
            yield Error(f"TASK_QUEUE['GENERATOR_STORE']: {error}", id="leasing_tasks.E031")
        return
    if lease.startswith(RESERVED) and not issubclass(kind, RowStore):
        yield Error(
            f"TASK_QUEUE['GENERATOR_LEASE'] must be a name of its own in the store {store!r}: "
            f"{lease!r} is that of a generator in the rows of a database, and a lease service "
            "refuses it.",
            hint="Other sites may have their generators' leases in the same store, so let the name "
            "be that of this site: 'shop.generator'.",
            id="leasing_tasks.E032",
        )


def _is_store(alias: str) -> bool:
    try:
        return alias in stores
    except InvalidStore:
        return True


def _check_celery() -> Iterator[CheckMessage]:
    queues: object = task_settings.CELERY_QUEUES
    if not isinstance(queues, list | tuple | set) or not all(
        queue in task_settings.QUEUES for queue in queues
    ):
        text = "TASK_QUEUE['CELERY_QUEUES'] must list only queues of TASK_QUEUE['QUEUES']."
        yield Error(text, id="leasing_tasks.E015")
    if queues and not isinstance(task_settings.CELERY_APP, str):
        text = "TASK_QUEUE['CELERY_QUEUES'] needs TASK_QUEUE['CELERY_APP'] to be published."
        hint = "Set it to the path of the Celery application, such as 'project.celery.app'."
        yield Error(text, hint=hint, id="leasing_tasks.E016")
    if queues and find_spec("celery") is None:
        hint = "pip install 'django-leasing[celery]'"
        yield Error("Celery is not installed.", hint=hint, id="leasing_tasks.E017")
    window = task_settings.CELERY_WINDOW
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        text = "TASK_QUEUE['CELERY_WINDOW'] must be a whole number of at least 1."
        yield Error(text, id="leasing_tasks.E018")
    patience = task_settings.CELERY_PATIENCE
    if not is_number(patience) or patience <= 0:
        text = "TASK_QUEUE['CELERY_PATIENCE'] must be more than 0 seconds."
        yield Error(text, id="leasing_tasks.E019")
    if not _is_age(task_settings.OUTBOX_RETENTION):
        text = "must be a number of seconds, a timedelta or None."
        yield Error(f"TASK_QUEUE['OUTBOX_RETENTION'] {text}", id="leasing_tasks.E026")
    if not isinstance(task_settings.OUTBOX_EXCHANGE, str) or not task_settings.OUTBOX_EXCHANGE:
        text = "TASK_QUEUE['OUTBOX_EXCHANGE'] must name an exchange."
        yield Error(text, id="leasing_tasks.E027")


def _check_publisher() -> Iterator[CheckMessage]:
    """TASK_QUEUE['OUTBOX_PUBLISHER'] cannot be loaded, or is no plain function."""
    try:
        outbox_publisher()
    except ImproperlyConfigured as error:
        hint = "Set it to the path of a function of one message, such as 'shop.webhooks.send'."
        yield Error(str(error), hint=hint, id="leasing_tasks.E033")
