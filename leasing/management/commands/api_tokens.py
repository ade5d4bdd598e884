from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import transaction

from leasing import audit
from leasing.functions import database_now
from leasing.humanize import ago, until
from leasing.management.subcommands import (
    AddAction,
    SubcommandsCommand,
    add_json,
    add_operator,
    attributes,
    operator,
)
from leasing.models import ApiToken
from leasing.models.api_token import TokenState, known_scopes
from leasing.runtime.terminal import as_json, as_table, plain

#: Days until a token expires, unless the operator says otherwise.
DAYS = 365
MOST_DAYS = 36_500


class Command(SubcommandsCommand):
    help = "Create, list and revoke the tokens with which programs call the API."

    def add_actions(self, add: AddAction) -> None:
        create = add("create", "Create a token and print its secret, once")
        create.add_argument("name", metavar="NAME", help="Name in lists and in the audit")
        create.add_argument(
            "--scope",
            action="append",
            required=True,
            metavar="PERMISSION",
            help="Permission, such as leasing.change_lease (see scopes); may be repeated",
        )
        create.add_argument(
            "--prefix", default="", help="Only resources whose names begin with this"
        )
        create.add_argument(
            "--queue", action="append", default=[], help="Only tasks of this queue; may be repeated"
        )
        end = create.add_mutually_exclusive_group()
        end.add_argument(
            "--days", type=int, default=DAYS, help=f"Days until it expires (default: {DAYS})"
        )
        end.add_argument(
            "--never-expires", action="store_true", help="Let it be valid until it is revoked"
        )
        add_operator(create)
        listing = add("list", "List tokens, the newest first")
        listing.add_argument("--state", choices=TokenState.values, help="Only tokens in this state")
        add_json(listing, "array")
        revoke = add("revoke", "Revoke a token: its next request is refused")
        revoke.add_argument("name", metavar="NAME", help="Name of the token")
        add_operator(revoke)
        add_json(add("scopes", "List the scopes that a token can have"), "array")

    def _create(self, options: dict[str, Any]) -> None:
        tokens = ApiToken.objects.home()
        now = database_now(tokens.db)
        try:
            with transaction.atomic(using=tokens.db):
                token, secret = tokens.issue(
                    options["name"],
                    scopes=options["scope"],
                    prefix=options["prefix"],
                    queues=options["queue"],
                    expires_at=None if options["never_expires"] else now + _days(options["days"]),
                )
                audit.record(
                    operator(options),
                    "create",
                    ApiToken,
                    changed=1,
                    keys=[token.pk],
                    filter={"name": token.name},
                    reason=options["reason"],
                    via="command",
                )
        except ValidationError as error:
            raise CommandError(plain(" ".join(error.messages))) from error
        token.refresh_from_db()
        if options["json"]:
            self.stdout.write(as_json(_facts(token, now) | {"secret": secret}))
            return
        self.stdout.write(as_table([_HEAD, _columns(token, now)]))
        self.stdout.write("\nThe secret, which is not shown again:")
        self.stdout.write(secret)

    def _list(self, options: dict[str, Any]) -> None:
        tokens = ApiToken.objects.home()
        if options["state"]:
            tokens = getattr(tokens, options["state"])()
        now, rows = database_now(tokens.db), list(tokens)
        table = [_HEAD, *(_columns(token, now) for token in rows)]
        none = f"No token is {options['state']}." if options["state"] else "No tokens."
        self.print_list(options, [_facts(token, now) for token in rows], table, none)

    def _revoke(self, options: dict[str, Any]) -> None:
        by, name = operator(options), options["name"]
        token = ApiToken.objects.home().filter(name=name).first()
        if token is None:
            raise CommandError(f"There is no token {plain(name)}.")
        with audit.recording(
            by, "revoke", ApiToken, keys=[token.pk], reason=options["reason"], via="command"
        ) as act:
            act.changed = ApiToken.objects.home().filter(pk=token.pk).revoke()
        if not act.changed:
            raise CommandError(f"Nothing to revoke: {plain(name)} was revoked already.")
        self.print_result(
            options,
            {"revoked": act.changed, "name": token.name},
            f"Revoked {plain(token.name)}. What it holds stays held until it expires or is "
            "revoked.",
        )

    def _scopes(self, options: dict[str, Any]) -> None:
        names = sorted(known_scopes())
        self.print_result(options, names, as_table([(name,) for name in names]))


def _days(days: int) -> timedelta:
    if not 1 <= days <= MOST_DAYS:
        raise CommandError(f"--days must be from 1 to {MOST_DAYS}.")
    return timedelta(days=days)


_HEAD = ("NAME", "STATE", "SCOPES", "PREFIX", "QUEUES", "EXPIRES", "LAST USED")


def _columns(token: ApiToken, now: datetime) -> tuple[str, ...]:
    return (
        token.name,
        token.state_at(now),
        " ".join(token.scopes),
        token.prefix,
        " ".join(token.queues),
        until(token.expires_at, now) if token.expires_at else "never",
        ago(token.last_used_at, now) if token.last_used_at else "never",
    )


def _facts(token: ApiToken, now: datetime) -> dict[str, Any]:
    """Return what may be shown of a token: not its hash."""
    return {"name": token.name, "state": token.state_at(now)} | attributes(
        token,
        *("scopes", "prefix", "queues"),
        *("created_at", "expires_at", "last_used_at", "revoked_at"),
    )
