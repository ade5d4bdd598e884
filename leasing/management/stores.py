"""``leases stores``: the stores of LEASING["STORES"], and which of their servers grant leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from leasing import audit
from leasing.exceptions import StoreError
from leasing.management.subcommands import (
    AddAction,
    SubcommandsCommand,
    add_json,
    add_operator,
    operator,
)
from leasing.models import Lease
from leasing.stores import InvalidStore, stores
from leasing.stores.rows import RowStore


class Stores(SubcommandsCommand):
    def add_actions(self, add: AddAction) -> None:
        add_json(add("list", "List stores, and which of their servers grant leases"), "array")
        admit = add("admit", "Let servers that may have forgotten leases grant some again")
        admit.add_argument("alias", metavar="ALIAS", help="Alias of the store")
        admit.add_argument(
            "--nothing-is-held",
            action="store_true",
            help="Confirm that no process holds a lease of the store",
        )
        add_operator(admit, default="admitted", help="Reason, stored in the audit")

    def _list(self, options: dict[str, Any]) -> None:
        facts = [each for alias in stores for each in _facts(alias)]
        table = [("STORE", "LEASES ARE IN", "STATE"), *(tuple(each.values()) for each in facts)]
        self.print_list(options, facts, table, "")

    def _admit(self, options: dict[str, Any]) -> None:
        alias, reason = options["alias"], options["reason"]
        try:
            store: Any = stores[alias]
            with audit.recording(
                operator(options),
                "admit_servers",
                Lease,
                filter={"store": alias},
                reason=reason,
                via="command",
            ) as act:
                admitted = []
                if hasattr(store, "admit"):  # others forget nothing
                    admitted = store.admit(options["nothing_is_held"])
                act.changed = len(admitted)
        except StoreError as error:
            raise CommandError(f"{error} See --nothing-is-held.") from error
        except InvalidStore as error:
            raise CommandError(str(error)) from error
        words = f"Admitted: {', '.join(admitted)}." if admitted else "All servers grant already."
        self.print_result(options, {"admitted": admitted}, words)


def _facts(alias: str) -> Iterator[dict[str, str]]:
    store: Any = stores[alias]
    for server in getattr(store, "members", [store]):
        state = "grants"
        try:
            if until := getattr(server, "remembers_from", lambda: None)():
                state = (
                    f"may have forgotten leases, and grants none until {until:%Y-%m-%d %H:%M:%S}"
                )
        except StoreError as error:
            state = str(error)
        place = "rows of the database" if isinstance(server, RowStore) else str(server)
        yield {"store": alias, "place": place, "state": state}
