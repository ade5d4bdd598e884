from __future__ import annotations

import getpass
import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from leasing import audit
from leasing.diagnosis.lease import explain
from leasing.humanize import ago, plural, stamp, until
from leasing.management.base import TablesCommand
from leasing.models import Lease, LeaseEvent, LeaseState, leasable_models
from leasing.querysets.leasable import LeasableQuerySet
from leasing.runtime.terminal import as_json, as_table, plain
from leasing.web.badges import badge_of_event

#: Seconds, a day: tokens that are raised stay ahead of the clock until it has come so far.
FURTHEST = 86_400
#: Events of a lease that are shown, the latest.
EVENTS = 10


class Command(TablesCommand):
    help = "List named leases, show one, or revoke one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="List leases by name")
        listing.add_argument("--state", choices=LeaseState.values, help="Only leases in this state")
        listing.add_argument("--json", action="store_true", help="Print a JSON array")
        show = actions.add_parser("show", help="Show one lease and its latest events")
        show.add_argument("name", metavar="NAME", help="Name of the resource")
        show.add_argument("--json", action="store_true", help="Print a JSON object")
        revoke = actions.add_parser("revoke", help="Take a lease from its holder")
        revoke.add_argument("name", metavar="NAME", help="Name of the resource")
        revoke.add_argument("--reason", required=True, help="Reason, stored with the event")
        revoke.add_argument("--by", help="Name of the operator (default: the current user)")

        tokens = actions.add_parser(
            "raise-tokens", help="After a restore: revoke all leases and raise every token"
        )
        tokens.add_argument(
            "--ahead",
            type=float,
            default=0.0,
            metavar="SECONDS",
            help="How far the clock of the lost database may have been ahead of this one",
        )
        tokens.add_argument("--reason", default="restored", help="Reason, stored with the event")
        tokens.add_argument("--by", help="Name of the operator (default: the current user)")
        tokens.add_argument(
            "--yes", action="store_true", help="Confirm that every holder loses its lease"
        )

    def handle(self, **options: Any) -> None:
        getattr(self, f"_{options['action'].replace('-', '_')}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        leases = Lease.objects.home()
        if options["state"] == LeaseState.FREE:
            leases = leases.filter(grants=0)
        elif options["state"]:
            leases = getattr(leases, options["state"])()
        rows = leases.with_state().order_by("resource").iterator()
        if options["json"]:
            self.stdout.write(as_json([_facts(lease) for lease in rows]))
            return
        head = ("RESOURCE", "STATE", "HOLDER", "UNTIL", "TOKEN")
        self.stdout.write(as_table([head, *(_columns(lease) for lease in rows)]))

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
        facts = _facts(lease)
        self.stdout.write(
            as_table([(name, _shown(facts[name])) for name in facts if facts[name] != ""])
        )
        if events:
            self.stdout.write("")
            self.stdout.write(as_table([_cells(event) for event in events]))

    def _revoke(self, options: dict[str, Any]) -> None:
        lease = _find(options["name"])
        by = options["by"] or getpass.getuser()
        held = Lease.objects.home().filter(pk=lease.pk)
        with audit.recording(
            by, "revoke", Lease, keys=[lease.pk], reason=options["reason"], via="command"
        ) as act:
            act.changed = held.revoke(reason=options["reason"], by=by)
        if not act.changed:
            raise CommandError(f"Nothing to revoke: {plain(lease.resource)} is not held.")
        self.stdout.write(f"Revoked {plain(lease.resource)} from {plain(lease.holder)}.")

    def _raise_tokens(self, options: dict[str, Any]) -> None:
        if not 0 <= options["ahead"] <= FURTHEST:
            raise CommandError(f"--ahead must be from 0 to {FURTHEST}.")
        if not options["yes"]:
            raise CommandError("Every holder will lose its lease or task. Add --yes to confirm.")
        by, reason = options["by"] or getpass.getuser(), options["reason"]
        for model in leasable_models():
            rows: LeasableQuerySet[Any] = model.lease_rows().home()
            with audit.recording(
                by, "raise_tokens", model, filter={}, reason=reason, via="command"
            ) as act:
                act.changed = rows.raise_tokens(options["ahead"], reason, by)
            self.stdout.write(f"{model._meta.label}: {plural(act.changed, 'token')} raised")


def _find(name: str) -> Lease:
    lease = Lease.objects.home().with_state().filter(resource=name).first()
    if lease is None:
        raise CommandError(f"There is no lease {plain(name)}.")
    return lease


def _facts(lease: Lease) -> dict[str, Any]:
    """All that may be told of a lease: not its grant, which proves a term."""
    granted = lease.state != LeaseState.FREE
    return {
        "resource": lease.resource,
        "state": lease.state,
        "holder": lease.holder,
        "expires_at": lease.expires_at if granted else None,
        "fencing_token": lease.fencing_token,
        "grants": lease.grants,
        "ttl_seconds": lease.ttl.total_seconds(),
        "acquired_at": lease.acquired_at,
        "renewed_at": lease.renewed_at,
        "renewals": lease.renewals,
        "released_at": lease.released_at,
        "priority": lease.priority,
        "yield_to": lease.yield_to,
        "metadata": lease.metadata,
    }


def _columns(lease: Lease) -> tuple[str, ...]:
    ends = ""
    if lease.state == LeaseState.RELEASED:
        ends = f"released {ago(lease.released_at or lease.expires_at, lease.now)}"
    elif lease.state != LeaseState.FREE:
        ends = until(lease.expires_at, lease.now)
    return lease.resource, lease.state, lease.holder, ends, str(lease.fencing_token)


def _event(event: LeaseEvent) -> dict[str, Any]:
    return {
        "at": event.at,
        "kind": event.kind,
        "holder": event.holder,
        "previous_holder": event.previous_holder,
        "fencing_token": event.fencing_token,
        "reason": event.reason,
        "actor": event.actor,
    }


def _cells(event: LeaseEvent) -> tuple[str, ...]:
    by = f"by {event.actor}" if event.actor else ""
    return stamp(event.at), badge_of_event(event.kind).word, event.holder, by, event.reason


def _shown(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return stamp(value)
    return json.dumps(value) if isinstance(value, dict) else str(value)
