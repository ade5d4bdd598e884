"""``send.enqueue(invoice_id=7)``: enqueue the tasks of a handler with its own parameters.

The arguments of these methods are those of the handler, so that a type checker knows them, and
none can be mistaken for an option. Options are given to ``using``, as in ``django.tasks``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from asgiref.sync import sync_to_async
from django.apps import apps

from leasing.runtime.terminal import closest

if TYPE_CHECKING:
    from tasks.execution.context import Context
    from tasks.models import Task

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
#: A handler as it is written: its context, and its data.
Function: TypeAlias = "Callable[Concatenate[Context, P], R_co]"
OpenFunction: TypeAlias = "Callable[Concatenate[Context, ...], R_co]"
#: The context of the handler that enqueues a child, or the parent task, or its key.
Parent: TypeAlias = "Context | Task | int"

#: The methods that a decorated function gets.
METHODS = (
    *("using", "data", "enqueue", "aenqueue", "enqueue_on_commit"),
    *("enqueue_many", "aenqueue_many"),
)


class ManyOptions(TypedDict, total=False):
    """Options of ``enqueue_many`` in addition to the data."""

    queue: str | None
    priority: int
    scheduled_at: datetime | None
    delay: float | timedelta | None
    max_attempts: int | None
    timeout: float | timedelta | None
    progress_timeout: float | timedelta | None
    concurrency_key: str | None
    concurrency_limit: int | None
    parent: Parent | None


class EnqueueOptions(ManyOptions, total=False):
    """Options of ``enqueue`` in addition to the data."""

    unique_key: str | None
    unique_for: str | float | timedelta
    on_duplicate: str
    idempotency_key: str | None


class ProducerOptions(EnqueueOptions, total=False):
    """Options of ``using``."""

    #: The alias of the database on whose commit ``enqueue_on_commit`` stores the task.
    transaction: str | None


#: Options of other queues, and what serves for them here.
_MEANT = {
    **dict.fromkeys(
        ("eta", "run_after", "run_at", "when"),
        "pass scheduled_at=, a datetime with a time zone, or delay=, seconds or a timedelta",
    ),
    "countdown": "pass delay=, seconds or a timedelta",
    **dict.fromkeys(("retries", "max_retries"), "pass max_attempts=, which counts the first too"),
    **dict.fromkeys(("time_limit", "soft_time_limit"), "pass timeout=, seconds"),
    "task_id": "pass idempotency_key= to store it once",
}


class Data(dict[str, Any], Generic[P]):
    """The data of a task whose handler has the parameters ``P``, without its context."""

    __slots__ = ()


class Producer(Generic[P]):
    """Enqueues tasks of one handler.

    Args:
        name: The name of the handler.
        function: The handler's function.
        options: The options that ``using`` was given.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], options: ProducerOptions | None = None
    ) -> None:
        self._name = name
        self._function = function
        self._options: Any = options or {}

    def using(self, **options: Unpack[ProducerOptions]) -> Producer[P]:
        """Return a producer with these options of ``Task.objects.enqueue``, in addition to those
        that this one has: ``send.using(priority=5, delay=60).enqueue(invoice_id=7)``. One more,
        ``transaction``, is for ``enqueue_on_commit``."""
        for name in sorted(options.keys() - ProducerOptions.__optional_keys__):
            hint = "the data of the task goes to enqueue()."
            if name in _MEANT:
                hint = f"{_MEANT[name]}."
            elif meant := closest(name, EnqueueOptions.__optional_keys__):
                hint = f"did you mean {meant!r}?"
            raise TypeError(f"using() got an unexpected keyword argument {name!r}: {hint}")
        return Producer(self._name, self._function, {**self._options, **options})

    def data(self, /, *args: P.args, **kwargs: P.kwargs) -> Data[P]:
        """Return the data of a task with these arguments, for ``enqueue_many``."""
        return Data(self._named(args, kwargs) if args else kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Store a task with these arguments of its handler. Raises what ``Task.objects.enqueue``
        does."""
        data = self._named(args, kwargs) if args else kwargs
        task: Task = _tasks().enqueue(self._name, data, **self._options)
        return task

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Task:
        """``enqueue``, for async code."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    def enqueue_on_commit(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Check these arguments now, and store the task once the caller's transaction has
        committed: one on another database than that of the tasks, whose alias is the option
        ``transaction``. Raises what ``Task.objects.enqueue_on_commit`` does."""
        options = {**self._options}
        using = options.pop("transaction", None)
        _tasks().enqueue_on_commit(self._name, self._named(args, kwargs), using=using, **options)

    def enqueue_many(self, data: Iterable[Data[P]]) -> Sequence[Task]:
        """Store one task for each of ``data``, all or none: ``send.enqueue_many(send.data(number)
        for number in numbers)``. Plain dictionaries work too, unknown to type checkers. Raises what
        ``Task.objects.enqueue_many`` does."""
        tasks: Sequence[Task] = _tasks().enqueue_many(self._name, data, **self._options)
        return tasks

    async def aenqueue_many(self, data: Iterable[Data[P]]) -> Sequence[Task]:
        """``enqueue_many``, for async code."""
        return await sync_to_async(self.enqueue_many)(data)

    def _named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return the arguments by name: the data of a task has no positions."""
        signature = inspect.signature(self._function)
        try:
            named = signature.bind_partial(None, *args).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        del named[next(iter(signature.parameters))]  # the context
        for name in named:
            if name in kwargs:
                raise TypeError(f"{self._name}: multiple values for argument {name!r}")
            if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                raise TypeError(f"{self._name}: the arguments of *{name} have no names")
        return {**named, **kwargs}


class HandlerFunction(Producer[P], Generic[P, R_co]):
    """The decorated function, as type checkers see it: still that function, with METHODS."""

    if TYPE_CHECKING:

        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class HandlerDecorator(Protocol):
    """``handler("name")``, as type checkers see it."""

    @overload
    def __call__(self, function: Function[P, R_co], /) -> HandlerFunction[P, R_co]: ...

    # mypy does not match ``def f(ctx, **data)`` with the first, for the data may have a ctx.
    @overload
    def __call__(  # type: ignore[overload-cannot-match]
        self, function: OpenFunction[R_co], /
    ) -> HandlerFunction[..., R_co]: ...


def with_methods(name: str, function: Function[P, R_co]) -> HandlerFunction[P, R_co]:
    """Return ``function`` with the methods that enqueue tasks called ``name``. What a callable
    object has under one of their names stays."""
    producer: Producer[P] = Producer(name, function)
    for method in METHODS:
        present = getattr(function, method, None)
        if present is not None and not isinstance(getattr(present, "__self__", None), Producer):
            continue
        try:
            setattr(function, method, getattr(producer, method))
        except AttributeError:
            break  # a bound method, or a built-in function: these have no attributes of their own
    return cast("HandlerFunction[P, R_co]", function)


@cache
def _tasks() -> Any:
    # Not imported: handlers are declared while models are loaded.
    return apps.get_model("leasing_tasks", "Task")._default_manager
