from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.utils.module_loading import import_string

from leasing import audit
from leasing.dashboard.lease_lists import is_internal
from leasing.diagnosis.lease import explain, holding
from leasing.diagnosis.ttl import History, TooFewSamples, history_of_lease, readers, suggest
from leasing.exceptions import StoreError
from leasing.humanize import ago, plural, stamp, until
from leasing.management.base import duration
from leasing.management.stores import Stores
from leasing.management.subcommands import (
    AddAction,
    SubcommandsCommand,
    add_json,
    add_operator,
    attributes,
    operator,
    shown,
)
from leasing.management.suggested_ttl import facts_of, text_of
from leasing.models import Lease, LeaseEvent, LeaseState, leasable_models
from leasing.querysets import LeasableQuerySet
from leasing.runtime.terminal import as_json, as_table, plain
from leasing.stores import InvalidStore, stores
from leasing.web.badges import badge_of_event

#: A day, in seconds: raised tokens stay ahead of the clock until the clock reaches them.
FURTHEST = 86_400
#: Events of a lease that are shown, the latest.
EVENTS = 10


class Command(SubcommandsCommand):
    help = "List named leases, show one, revoke one, or compute a ttl."

    def add_actions(self, add: AddAction) -> None:
        listing = add("list", "List leases by name")
        listing.add_argument("--state", choices=LeaseState.values, help="Only leases in this state")
        listing.add_argument("--store", metavar="ALIAS", help="Leases held in this store")
        add_json(listing, "array")
        show = add("show", "Show one lease and its latest events")
        show.add_argument("name", metavar="NAME", help="Name of the resource")
        add_json(show)
        revoke = add("revoke", "Take a lease from its holder")
        revoke.add_argument("name", metavar="NAME", help="Name of the resource")
        add_operator(revoke, required=True, help="Reason, stored with the event and in the audit")
        ttl = add("ttl", "Suggest a ttl from what is recorded, for a lease or a queue of tasks")
        of = ttl.add_mutually_exclusive_group(required=True)
        of.add_argument("name", nargs="?", metavar="NAME", help="Name of the resource")
        of.add_argument("--queue", metavar="QUEUE", help="Name of a queue of tasks")
        add_json(ttl)
        Stores().add_subcommands(
            add("stores", "List the stores of leases, or admit their servers"), "stores_action"
        )
        tokens = add("raise-tokens", "After a restore: revoke all leases and raise every token")
        tokens.add_argument(
            "--ahead",
            type=duration,
            default=0.0,
            metavar="DURATION",
            help="How far the clock of the lost database may have been ahead of this one",
        )
        tokens.add_argument(
            "--yes", action="store_true", help="Confirm that every holder loses its lease"
        )
        add_operator(
            tokens, default="restored", help="Reason, stored with the events and in the audit"
        )

    def _list(self, options: dict[str, Any]) -> None:
        if options["store"]:
            self._list_store(options)
            return
        leases = Lease.objects.home()
        if options["state"] == LeaseState.FREE:
            leases = leases.filter(grants=0)
        elif options["state"]:
            leases = getattr(leases, options["state"])()
        # Leases of an application come before those that workers hold for their own services.
        rows = sorted(leases.with_state().order_by("resource"), key=is_internal)
        head = ("RESOURCE", "STATE", "HOLDER", "UNTIL", "TOKEN")
        table = [head, *(_columns(lease) for lease in rows)]
        none = f"No lease is {options['state']}." if options["state"] else "No leases."
        self.print_list(options, [_facts(lease) for lease in rows], table, none)

    def _list_store(self, options: dict[str, Any]) -> None:
        alias = options["store"]
        try:
            found = stores.held(alias)
        except (InvalidStore, StoreError) as error:
            raise CommandError(str(error)) from error
        if found is None:
            raise CommandError(f"The store {plain(alias)} does not list its leases.")
        held = sorted(found.items())
        known = "holder", "fencing_token", "expires_at"
        facts = [{"resource": name, **attributes(each, *known)} for name, each in held]
        head = ("RESOURCE", *(name.replace("fencing_", "").upper() for name in known))
        table = [head, *(tuple(map(shown, each.values())) for each in facts)]
        self.print_list(options, facts, table, "No leases are held.")

    def _show(self, options: dict[str, Any]) -> None:
        lease = _find(options["name"])
        found = LeaseEvent.objects.using(lease._state.db).filter(
            model=lease._meta.label_lower, resource=lease.resource
        )
        events = list(found[:EVENTS])
        explanation = explain(lease, lease.now, events=events)
        if options["json"]:
            self.stdout.write(
                as_json(
                    _facts(lease)
                    | {"explanation": explanation.as_json()}
                    | {"events": [_event(event) for event in events]}
                )
            )
            return
        self.stdout.write(f"{plain(lease.resource)}: {plain(explanation.headline)}")
        self.stdout.write(explanation.next)
        facts = {name: shown(value) for name, value in _facts(lease).items()}
        self.stdout.write(as_table([(name, value) for name, value in facts.items() if value]))
        if events:
            self.stdout.write("")
            self.stdout.write(as_table([_cells(event) for event in events]))

    def _revoke(self, options: dict[str, Any]) -> None:
        lease = _find(options["name"])
        by = operator(options)
        held = Lease.objects.home().filter(pk=lease.pk)
        with audit.recording(
            by, "revoke", Lease, keys=[lease.pk], reason=options["reason"], via="command"
        ) as act:
            act.changed = held.revoke(reason=options["reason"], by=by)
        if not act.changed:
            raise CommandError(f"Nothing to revoke: {plain(lease.resource)} is not held.")
        self.print_result(
            options,
            {"revoked": act.changed, "resource": lease.resource, "holder": lease.holder},
            f"Revoked {plain(lease.resource)} from {plain(lease.holder)}.",
        )

    def _ttl(self, options: dict[str, Any]) -> None:
        try:
            suggestion = suggest(_history(options))
        except TooFewSamples as error:
            raise CommandError(str(error)) from error
        self.print_result(options, facts_of(suggestion), text_of(suggestion))

    def _stores(self, options: dict[str, Any]) -> None:
        command = Stores(self.stdout, self.stderr)  # type: ignore[arg-type]
        command.handle(**options | {"action": options["stores_action"]})

    def _raise_tokens(self, options: dict[str, Any]) -> None:
        if not 0 <= options["ahead"] <= FURTHEST:
            raise CommandError(f"--ahead must be from 0 to {FURTHEST}.")
        if not options["yes"]:
            raise CommandError("Every holder will lose its lease or task. Add --yes to confirm.")
        by, reason = operator(options), options["reason"]
        raised = {}
        for model in leasable_models():
            rows: LeasableQuerySet[Any] = model.lease_rows().home()
            with audit.recording(
                by, "raise_tokens", model, filter={}, reason=reason, via="command"
            ) as act:
                act.changed = rows.raise_tokens(options["ahead"], reason, by)
            raised[model._meta.label] = act.changed
            if not options["json"]:
                self.stdout.write(f"{model._meta.label}: {plural(act.changed, 'token')} raised")
        if options["json"]:
            self.stdout.write(as_json(raised))


def _find(name: str) -> Lease:
    lease = Lease.objects.home().with_state().filter(resource=name).first()
    if lease is None:
        raise CommandError(f"There is no lease {plain(name)}.")
    return lease


def _history(options: dict[str, Any]) -> History:
    if options["queue"] is None:
        return history_of_lease(_find(options["name"]))
    if "queue" not in readers:
        raise CommandError('--queue needs the app "tasks" in INSTALLED_APPS.')
    history: History = import_string(readers["queue"])(options["queue"])
    return history


def _facts(lease: Lease) -> dict[str, Any]:
    """Return what may be shown of a lease: not its grant, which proves a term."""
    return {
        **attributes(lease, "resource", "state", "holder"),
        "expires_at": lease.expires_at if lease.state != LeaseState.FREE else None,
        **attributes(lease, "fencing_token", "grants"),
        "ttl_seconds": lease.ttl.total_seconds(),
        **attributes(lease, "acquired_at", "renewed_at", "renewals", "released_at"),
        **attributes(lease, "priority", "yield_to", "metadata"),
    }


def _columns(lease: Lease) -> tuple[str, ...]:
    ends = ""
    if lease.state == LeaseState.RELEASED:
        ends = f"released {ago(lease.released_at or lease.expires_at, lease.now)}"
    elif lease.state != LeaseState.FREE:
        ends = until(lease.expires_at, lease.now)
    return lease.resource, lease.state, holding(lease), ends, str(lease.fencing_token)


def _event(event: LeaseEvent) -> dict[str, Any]:
    who = ("holder", "previous_holder", "fencing_token")
    return attributes(event, "at", "kind", *who, "reason", "actor")


def _cells(event: LeaseEvent) -> tuple[str, ...]:
    by = f"by {event.actor}" if event.actor else ""
    return stamp(event.at), badge_of_event(event.kind).word, event.holder, by, event.reason
