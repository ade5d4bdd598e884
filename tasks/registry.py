"""The registry of handlers, by the names of their tasks.

Only registered handlers can run: a row's name is looked up here and never imported. Modules named
``tasks.py`` of the installed apps are imported at start, which registers the handlers in them. The
file is long for the signature of ``handler``, which type checkers and readers want written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import (
    Any,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from asgiref.sync import iscoroutinefunction

from leasing.runtime.terminal import suggestion
from leasing.validation.names import check_name
from tasks.bounds import COUNTS, check_between, check_limit
from tasks.conf import task_settings
from tasks.exceptions import UnknownQueue, UnknownTask
from tasks.log import log
from tasks.payload import Parameters
from tasks.producer import (
    Function,
    HandlerDecorator,
    HandlerFunction,
    OpenFunction,
    with_methods,
)
from tasks.retry import RetryPolicy

#: The time for which a task whose handler is missing here waits for a worker that has it.
UNKNOWN_DELAY = timedelta(seconds=60)

P = ParamSpec("P")
R = TypeVar("R")
#: Called with a ``Task``, or with a ``ClaimedTask`` if no instance was made.
OnEnd: TypeAlias = Callable[[Any], object]


class Kind(StrEnum):
    """The kind of executor that runs a handler, and its number in the rows of tasks."""

    number: int

    THREAD = "thread", 0
    COROUTINE = "coroutine", 1
    PROCESS = "process", 2

    def __new__(cls, value: str, number: int) -> Kind:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.number = number
        return kind

    @classmethod
    def of(cls, number: int) -> Kind:
        """Return the kind with this ``number``."""
        return _BY_NUMBER[number]


_BY_NUMBER = {kind.number: kind for kind in Kind}
#: The numbers of all kinds.
KINDS = tuple(_BY_NUMBER)


class Ended(Protocol):
    """The part of an ended task that is reported."""

    @property
    def pk(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str: ...


@dataclass(frozen=True)
class Handler:
    """Registered code: ``function(ctx, **data)``, plain or async. What else is said of it are the
    arguments of ``handler``, which describes them."""

    name: str
    function: Callable[..., Any]
    queue: str = "default"
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    timeout: timedelta | None = None
    progress_timeout: timedelta | None = None
    concurrency_key: str = ""
    concurrency_limit: int | None = None
    process: bool = False
    #: May be called with a ``ClaimedTask`` instead of the row, in the process that stores the end.
    on_end: OnEnd | None = None
    aliases: tuple[str, ...] = ()
    compensate: str | None = None

    #: True if the function is a coroutine function.
    is_async: bool = field(init=False)
    #: Its kind: coroutines run on the worker's event loop, unless a process was asked for.
    kind: Kind = field(init=False)
    #: The arguments with which it can be called.
    parameters: Parameters = field(init=False, repr=False, compare=False)
    #: Values for the concurrency key of tasks whose data lacks them: its parameters' defaults.
    key_defaults: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Determined once: the inspection takes longer than a call of a short handler.
        parameters = Parameters.of(self.function)
        key_defaults = parameters.template_defaults("concurrency_key", self.concurrency_key)
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "key_defaults", key_defaults)
        is_async = iscoroutinefunction(self.function)
        kind = Kind.COROUTINE if is_async else Kind.THREAD
        object.__setattr__(self, "is_async", is_async)
        object.__setattr__(self, "kind", Kind.PROCESS if self.process else kind)


#: By name, and by alias.
_handlers: dict[str, Handler] = {}
#: In place of a name: that of the function. A name that turns out to be None is refused.
_OWN_NAME: Any = object()


@overload
def handler(function: Function[P, R], /) -> HandlerFunction[P, R]: ...


@overload
def handler(  # type: ignore[overload-cannot-match] # see HandlerDecorator
    function: OpenFunction[R], /
) -> HandlerFunction[..., R]: ...


@overload
def handler(
    name: str = ...,
    *,
    queue: str = "default",
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | timedelta | None = None,
    progress_timeout: float | timedelta | None = None,
    concurrency_key: str = "",
    concurrency_limit: int | None = None,
    process: bool = False,
    on_end: OnEnd | None = None,
    aliases: Sequence[str] = (),
    compensate: str | None = None,
) -> HandlerDecorator: ...


def handler(
    name: str | Callable[..., Any] = _OWN_NAME,
    *,
    queue: str = "default",
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | timedelta | None = None,
    progress_timeout: float | timedelta | None = None,
    concurrency_key: str = "",
    concurrency_limit: int | None = None,
    process: bool = False,
    on_end: OnEnd | None = None,
    aliases: Sequence[str] = (),
    compensate: str | None = None,
) -> Any:
    """Register the decorated function as the handler of tasks called ``name``.

    It is called with a ``Context`` and the task's data as keyword arguments, and returns JSON. It
    stays a function that can be called, and gets methods that enqueue: see ``tasks.producer``.

    Args:
        name: The name of its tasks; by default, as for a bare ``@handler``, the dotted path of the
            function.
        queue: The queue of its tasks. An enqueue may override this and the defaults below.
        max_attempts: Attempts of a task; None: TASK_QUEUE["MAX_ATTEMPTS"].
        retry: The policy that decides if and when to retry after a failed attempt; None:
            TASK_QUEUE["BACKOFF"].
        timeout: Seconds after which an attempt fails.
        progress_timeout: Seconds without progress after which the task is taken from its holder.
        concurrency_key: A format string over the data, such as "account:{account_id}". Data that
            lacks a parameter has its default.
        concurrency_limit: The number of tasks of one such key that run at a time; 1 by default.
        process: True to run it in a child process, for CPU-bound work.
        on_end: Called with each of its tasks that has ended, once the end is stored.
        aliases: Former names of its tasks: it runs what was enqueued under these too.
        compensate: The name of the task that undoes a task of this one that fails for good: it is
            enqueued with the same data in the transaction that stores the failure.

    Raises TypeError for a function that takes no context or is a generator, and for a
    concurrency_key with a field that is no parameter, or whose default is not JSON; ValueError when
    a name is already used by other code, or a number is out of bounds.
    """
    if callable(name):
        return handler()(name)
    if name is not _OWN_NAME:
        check_name(name, "name of the task")
    if compensate is not None:
        check_name(compensate, "name of the compensation")
    if max_attempts is not None:
        check_between(max_attempts, *COUNTS, "max_attempts")
    if concurrency_limit is not None:
        check_between(concurrency_limit, *COUNTS, "concurrency_limit")
        if not concurrency_key:
            raise ValueError("A concurrency_limit needs a concurrency_key.")

    def register(function: Function[P, R]) -> HandlerFunction[P, R]:
        called = _own_name(function) if name is _OWN_NAME else name
        new = Handler(
            called,
            function,
            queue,
            max_attempts,
            retry,
            None if timeout is None else check_limit(timeout, "The timeout"),
            None
            if progress_timeout is None
            else check_limit(progress_timeout, "The progress_timeout"),
            concurrency_key,
            (concurrency_limit or 1) if concurrency_key else None,
            process,
            on_end,
            _check_aliases(called, aliases),
            compensate,
        )
        _register(new)
        return with_methods(called, function)

    return register


def _own_name(function: Callable[..., Any]) -> str:
    if "<lambda>" in function.__qualname__:
        raise ValueError("A lambda has no name of its own: pass one to handler().")
    return check_name(_place(function), "name of the task")


def _check_aliases(name: str, aliases: Sequence[str]) -> tuple[str, ...]:
    if isinstance(aliases, str):
        raise TypeError(f"aliases must be a list of names: aliases=[{aliases!r}].")
    for alias in aliases:
        check_name(alias, "alias of the task")
    if len({name, *aliases}) <= len(aliases):
        raise ValueError(f"The aliases of {name!r} must differ from it and from each other.")
    return tuple(aliases)


def _register(new: Handler) -> None:
    called = (new.name, *new.aliases)
    for name in called:
        known = _handlers.get(name)
        if known is not None and _place(known.function) != _place(new.function):
            what = "" if known.name == name else f", as an alias of {known.name!r}"
            raise ValueError(
                f"Task name {name!r} is already used by {_place(known.function)}{what}."
            )
    _handlers.update(dict.fromkeys(called, new))
    for name, known in list(_handlers.items()):
        if known.name == new.name and known is not new:  # registered again with fewer aliases
            del _handlers[name]


def find(name_or_function: str | Callable[..., Any]) -> Handler:
    """The handler of that name, or the one made of that function.

    Raises UnknownTask.
    """
    if isinstance(name_or_function, str):
        if name_or_function in _handlers:
            return _handlers[name_or_function]
    else:
        # Of several names the upper decorator gave the latest, as to the methods.
        for known in reversed(_handlers.values()):
            if known.function is name_or_function:
                return known
    if callable(name_or_function):
        raise UnknownTask(
            f"No handler is registered for {name_or_function!r}: decorate it with @handler."
        )
    raise UnknownTask(
        f"No handler is registered for {name_or_function!r}. "
        f"{suggestion(name_or_function, names())} Handlers are looked for in the module tasks.py "
        "of each app in INSTALLED_APPS."
    )


def check_queue(queue: str) -> str:
    """Return ``queue`` if it is one of TASK_QUEUE["QUEUES"]. Raises UnknownQueue."""
    if queue not in task_settings.QUEUES:
        raise UnknownQueue(
            f"Unknown queue {queue!r}: it is not in TASK_QUEUE['QUEUES']. "
            f"{suggestion(queue, task_settings.QUEUES)}"
        )
    return queue


def get(name: str) -> Handler | None:
    """The handler of that name; None where there is none."""
    return _handlers.get(name)


def present_name(name: str) -> str:
    """Return the name of the handler that runs tasks of this ``name``; else ``name``."""
    known = _handlers.get(name)
    return name if known is None else known.name


def all_names(name: str) -> tuple[str, ...]:
    """Return the names under which tasks of the handler called ``name`` are stored: its own and its
    aliases; ``name`` alone where there is no such handler."""
    known = _handlers.get(name)
    return (name,) if known is None else (known.name, *known.aliases)


def observed() -> list[str]:
    """The names of the tasks whose ends are reported: to ``on_end``, or to ``django.tasks``."""
    each = list(_handlers.items())
    return [
        name
        for name, known in each
        if known.on_end is not None or hasattr(known.function, "django_task")
    ]


def tell_end(on_end: OnEnd, task: Ended) -> None:
    """Call ``on_end`` with ``task``. Raises nothing."""
    try:
        on_end(task)
    except Exception:  # as any receiver's: what has happened has happened
        log.task_end_not_told(task, exc_info=True)


def names() -> list[str]:
    """The names of all tasks that can run here, with aliases."""
    return sorted(_handlers)


def kinds() -> dict[str, str]:
    """The names of all tasks that can run here, each with where it runs."""
    return {name: _handlers[name].kind.value for name in names()}


def kinds_in_use() -> list[Kind]:
    """The kinds of the handlers here; threads in any case, for they take what nobody knows."""
    used = {known.kind for known in list(_handlers.values())}
    return [kind for kind in _BY_NUMBER.values() if kind in used or kind is Kind.THREAD]


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
