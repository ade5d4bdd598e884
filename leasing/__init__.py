"""Time-bound leases with fencing tokens, on rows of your database.

See ``leasing.models.Lease`` for named leases, ``leasing.models.Leasable`` for your own models,
and ``leasing.exceptions`` for what can go wrong. ``leased``, ``Leader``, ``FencedModel`` and
``once`` can be imported from here, ``Hold`` and ``Term`` for annotations, and ``shutdown`` for
programs of your own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasing.decorators import leased
    from leasing.fencing import FencedModel
    from leasing.holding import Hold, Term
    from leasing.idempotency import once
    from leasing.leader import Leader
    from leasing.runtime.shutdown import shutdown

__all__ = ["FencedModel", "Hold", "Leader", "Term", "leased", "once", "shutdown"]

# Models can be imported only once the apps are loaded, and this module is imported before.
_MODULES = {
    "FencedModel": "leasing.fencing",
    "Hold": "leasing.holding",
    "Leader": "leasing.leader",
    "Term": "leasing.holding",
    "leased": "leasing.decorators",
    "once": "leasing.idempotency",
    "shutdown": "leasing.runtime.shutdown",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
