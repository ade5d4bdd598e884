"""Tasks of Celery that run under a lease.

Terms
    winner  the call that holds the lease; the keeper renews it while the body runs
    loser   a call that finds the lease held; ``when_held`` decides what happens to it

What happens when
    the worker is killed   the lease expires after its ttl. Celery decides about the message: with
                           ``acks_late`` it is delivered again
    the lease is lost      the body learns of it by ``request.hold``. The task ends in FAILURE with
                           LeaseLost in place of the body's result, unless the body failed
    a message comes twice  while the first still runs, the second is a loser
    a body asks for a retry  the retry waits until the body has ended, and is no loser
    a process forks        the process that runs the body takes the lease, so no hold is inherited
"""

from __future__ import annotations

import inspect
import math
import random
from contextlib import ExitStack
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from celery.app.task import Context
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.time import get_exponential_backoff_interval
from django.db import Error

from leasing.conf import DEFAULT, Wait, leasing_settings
from leasing.decorators import arguments_of, check_template, refuse_generators
from leasing.exceptions import InvalidResource, LeaseError, LeaseHeld
from leasing.runtime.event_lines import log
from leasing.validation.names import check_duration, check_name

if TYPE_CHECKING:
    from leasing.holding import Hold

#: The handling of a call that finds the lease held.
WhenHeld = Literal["skip", "retry", "wait"]

#: The header that counts how often a call was postponed.
PUT_OFF = "lease_put_off"
#: Seconds for which ``when_held="wait"`` waits by default.
WAIT = 30.0
#: Seconds that a retry waits until the attempt that requested it ends, before it is postponed.
SETTLING = 5.0
#: The part by which a pause is shortened or lengthened, so that losers do not come back together.
JITTER = 0.2


class LeasedTask(DjangoTask):  # type: ignore[misc]
    """The base class of tasks whose body runs only while it holds a lease.

    These attributes are options of ``@app.task`` too:

        resource    the lease's name: a format string over the arguments of the call, defaults
                    included. Without a field the task is a singleton
        ttl         seconds; the default is the setting TTL
        lease       other options of ``Lease.objects.hold``: grace, max_hold, priority, ...
        when_held   the effect on a loser: "retry" (default) puts the call off by ``countdown``
                    seconds; "skip" ends it with the result of ``skipped``; "wait" waits, and fails
                    with LeaseTimeout
        wait        seconds to wait before the call counts as a loser, None: for ever; the default
                    is 30 for "wait", else 0
        countdown   seconds by which "retry" puts the call off, give or take a fifth
        max_put_off how often "retry" puts the call off before the call fails with LeaseHeld; None:
                    without limit. This does not count as a retry of the task

    The body finds its hold in ``self.request.hold``, and its token in
    ``self.request.fencing_token``. A task that is called directly, or by ``apply``, acquires the
    lease too. Such a call cannot be put off: with "retry" a loser raises LeaseHeld, and in a direct
    call a loser does so with "skip" too. ``task.run(...)`` runs the body without a lease.

    Raises TypeError when the task is registered: for a ``resource`` that names no argument, an
    unknown ``when_held``, and for a generator function.
    """

    abstract = True

    resource: str = ""
    ttl: float | timedelta | None = None
    lease: dict[str, Any] = {}
    when_held: WhenHeld = "retry"
    wait: Wait = DEFAULT
    countdown: float = 10.0
    max_put_off: int | None = None

    @classmethod
    def bind(cls, app: Any) -> Any:
        _check_declaration(cls)
        return super().bind(app)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        # If the request has a hold, its body is running, and now calls the task directly.
        if not request.called_directly and "hold" not in vars(request):
            return self._run_leased(request, args, kwargs)
        request = Context(args=args, kwargs=kwargs)
        self.request_stack.push(request)
        try:
            return self._run_leased(request, args, kwargs)
        finally:
            self.request_stack.pop()

    def resource_for(self, args: Any, kwargs: Any) -> str:
        """Return the name of the resource that a call with these arguments leases. Override it
        where a format string does not suffice. Raises InvalidResource when the name is unusable."""
        call = self._signature.bind(*args, **kwargs)
        call.apply_defaults()
        resource = self.resource.format(**arguments_of(call))
        try:
            return check_name(resource, "resource")
        except InvalidResource as error:
            raise InvalidResource(
                f"{self.resource!r} of the task {self.name}, with these arguments: {error}"
            ) from error

    def skipped(self, held: LeaseHeld) -> Any:
        """The result of a call that is skipped. Links and chains go on with it; override this to
        raise ``celery.exceptions.Ignore`` instead, which ends them and keeps no result."""
        until = held.expires_at.isoformat() if held.expires_at else None
        return {"skipped": held.resource, "holder": held.holder, "until": until}

    # The pieces

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.run)

    def _run_leased(self, request: Any, args: Any, kwargs: Any) -> Any:
        try:
            resource = self.resource_for(args, kwargs)
            with ExitStack() as block:
                try:
                    hold = block.enter_context(self._free_hold(request, resource))
                except LeaseHeld as held:
                    return self._lose(request, held)
                request.hold, request.fencing_token = hold, hold.fencing_token
                return self.run(*args, **kwargs)
        except (LeaseError, Error) as error:
            self._retry_if_wanted(error)
            raise

    def _free_hold(self, request: Any, resource: str) -> Hold:
        """Return a hold that can be entered now, unless its wait ends without the lease."""
        from leasing.models import Lease

        wait = self.wait
        if wait is DEFAULT:
            wait = WAIT if self.when_held == "wait" else 0.0
        if wait is not None and self._is_retry_of_holder(request, resource):
            wait = max(check_duration(wait, "wait"), timedelta(seconds=SETTLING))
        whose = {"task": self.name, "task_id": request.id, "retries": request.retries}
        options = {**self.lease, "metadata": {**whose, **self.lease.get("metadata", {})}}
        return Lease.objects.hold(resource, ttl=self.ttl, wait=wait, **options)

    def _is_retry_of_holder(self, request: Any, resource: str) -> bool:
        """Return True if an earlier attempt of this call holds ``resource``: the earlier attempt
        has sent this one, and is about to end or has died since."""
        retries: int = request.retries
        return retries > 0 and self._holder_of(request, resource) < retries

    def _holder_of(self, request: Any, resource: str) -> float:
        """Return the number of the attempt of this task that holds ``resource`` or held it last;
        infinity if none did."""
        from leasing.models import Lease
        from leasing.stores.memory import NAMED, memory

        row: Lease | None
        if leasing_settings.ENABLED:
            row = Lease.objects.filter(resource=resource).first()
        else:
            row = memory.look((NAMED, resource))
        if row is None or request.id is None or row.metadata.get("task_id") != request.id:
            return math.inf
        return float(row.metadata.get("retries", math.inf))

    def _lose(self, request: Any, held: LeaseHeld) -> Any:
        """End the call in the way of ``when_held``."""
        if self.when_held == "wait" or request.called_directly:
            raise held
        if self.when_held == "skip" and not self._is_retry_of_holder(request, held.resource):
            log.celery_skipped(
                resource=held.resource,
                holder=held.holder,
                task_name=self.name,
                celery_id=request.id,
                reason=held,
            )
            if self._holder_of(request, held.resource) == request.retries:
                # The same attempt holds the lease, because the message was delivered twice: the
                # result of this delivery would replace the result of the other.
                raise Ignore(str(held))
            return self.skipped(held)
        if request.is_eager:
            raise held
        self._put_off(request, held)

    def _put_off(self, request: Any, held: LeaseHeld) -> NoReturn:
        """Send the call again, to be run later, with the same number of retries."""
        headers = request.headers or {}
        times = headers.get(PUT_OFF, 0)
        if self.max_put_off is not None and times >= self.max_put_off:
            raise held
        countdown = self.countdown * random.uniform(1 - JITTER, 1 + JITTER)
        again = self.signature_from_request(
            request, countdown=countdown, headers={**headers, PUT_OFF: times + 1}
        )
        try:
            again.apply_async()
        except Exception as error:
            # The broker delivers the message of this call again, unless it is acknowledged.
            raise Reject(error, requeue=True) from error
        raise Retry(exc=held, when=countdown, sig=again)

    def _retry_if_wanted(self, error: Exception) -> None:
        """Retry after an error around the body, as Celery does after an error of the body."""
        wanted = tuple(getattr(self, "autoretry_for", ()))
        unwanted = tuple(getattr(self, "dont_autoretry_for", ()))
        if not isinstance(error, wanted) or isinstance(error, unwanted):
            return
        options = dict(getattr(self, "retry_kwargs", {}))
        if backoff := getattr(self, "retry_backoff", False):
            options["countdown"] = get_exponential_backoff_interval(
                factor=int(max(1.0, float(backoff))),
                retries=self.request.retries,
                maximum=int(getattr(self, "retry_backoff_max", 600)),
                full_jitter=getattr(self, "retry_jitter", True),
            )
        raise self.retry(exc=error, **options)


def is_skipped(result: object) -> bool:
    """Return True if ``result`` is that of a call that was skipped because the lease was held."""
    return isinstance(result, dict) and result.keys() == {"skipped", "holder", "until"}


def _check_declaration(task: type[LeasedTask]) -> None:
    """Raise TypeError for what could not work in any call."""
    refuse_generators(task.run)
    if task.when_held not in get_args(WhenHeld):
        raise TypeError(f"when_held of {task.name} must be one of {get_args(WhenHeld)}.")
    if task.resource_for is not LeasedTask.resource_for:
        return
    if not task.resource:
        raise TypeError(f"The task {task.name} declares no resource to lease.")
    check_template("resource", task.resource, task.run, inspect.signature(task.run))
