"""A hold: the door to one lease. Whoever enters it gets a term, which the keeper renews until the
block ends; entered again, it gives another.

When the term is lost, its ``lost`` event is set, ``on_lost`` is called, ``ensure()`` raises, and
leaving the block raises LeaseLost unless the block already failed. It is lost when the store says
so (revoked, taken over), or when no renewal was answered in time. In a forked child it is lost from
the start.
"""

from __future__ import annotations

from collections.abc import Callable

from leasing.holding.interrupt import Interrupt
from leasing.holding.keeper import Keeper, keeper
from leasing.holding.term import Term, keep_all
from leasing.runtime.aio import Steps, adrive, drive
from leasing.runtime.events import happened
from leasing.runtime.framework import SynchronousOnlyOperation
from leasing.runtime.terminal import label
from leasing.store import Store

IN_COROUTINE = "A coroutine holds a lease by `async with`; this hold was entered by `with`."

#: Returns the steps that acquire the lease, for a driver to run.
Acquire = Callable[[], Steps[Term]]
#: Called with a term when something happens to it.
TermCallback = Callable[[Term], object]


class Hold:
    """A context manager that holds one lease, for ``with`` and ``async with``. Made by
    ``Lease.objects.hold(...)``.

        with Lease.objects.hold("import:shop-7") as term:
            import_orders(term.fencing_token)

    ``on_lost`` and ``on_yield`` are called once, with the term, on a thread of the keeper.
    """

    __slots__ = (
        *("__weakref__", "_acquire", "_keeper", "_on_lost", "_on_yield", "_resource", "_term"),
        "store",
    )

    def __init__(
        self,
        store: Store,
        acquire: Acquire,
        *,
        resource: str = "of a lease",
        on_lost: TermCallback | None = None,
        on_yield: TermCallback | None = None,
        keeper: Keeper = keeper,
    ) -> None:
        #: The store that grants and renews it.
        self.store = store
        self._acquire = acquire
        self._resource = resource
        self._on_lost = on_lost
        self._on_yield = on_yield
        self._keeper = keeper
        self._term: Term | None = None

    def __repr__(self) -> str:
        if self._term is None:
            return f"<Hold {label(self._resource)}: not entered>"
        return f"<Hold {label(self._resource)}: {self._term!r}>"

    @property
    def term(self) -> Term:
        """The current term, or the latest. Raises RuntimeError before the first."""
        if self._term is None:
            raise RuntimeError("The lease is not held: enter the hold first.")
        return self._term

    def __enter__(self) -> Term:
        try:
            term = drive(self.entering())
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(IN_COROUTINE) from error
        happened("hold.begun", [term], inside=True)
        return term

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._term is not None
        try:
            self._term.end(error)
        finally:
            happened("hold.ended", [self._term])

    async def __aenter__(self) -> Term:
        """As ``with``; in addition the body is cancelled when the term is lost."""
        term = await adrive(self.entering())
        happened("hold.begun", [term], inside=True)
        term.interrupt_by(Interrupt())
        return term

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.term.aleave(error)

    def entering(self) -> Steps[Term]:
        """Return the steps that acquire the lease and begin to keep it, for a driver."""
        if self._term is not None and self._term.is_kept:
            raise RuntimeError("This hold is already in use.")
        self._keeper.start()  # first: if it fails, nobody would renew the lease
        self._term = term = yield from self._acquire()
        term.store, term.on_lost, term.on_yield = self.store, self._on_lost, self._on_yield
        keep_all([term], self._keeper)
        return term
