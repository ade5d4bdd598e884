"""Commands that have subcommands: Django's options on both sides of them, and shell completion."""

from __future__ import annotations

import getpass
import json
import os
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, DjangoHelpFormatter

from leasing.dashboard.forms import REASON_LENGTH
from leasing.humanize import stamp
from leasing.management.base import TablesCommand
from leasing.runtime.terminal import as_json, as_table

#: Adds a subcommand by its name and its help, and returns its parser.
AddAction = Callable[[str, str], ArgumentParser]


class CommonOptions(BaseCommand):
    """Makes a parser of Django's own options, for the subcommands."""

    def add_base_argument(self, parser: CommandParser, *args: str, **kwargs: Any) -> None:
        # A default would override an option that stands before the subcommand.
        super().add_base_argument(parser, *args, **kwargs | {"default": SUPPRESS})


class SubcommandsCommand(TablesCommand):
    """A command with subcommands. Each is run by a method of its name: ``raise-tokens`` by
    ``_raise_tokens``."""

    def add_actions(self, add: AddAction) -> None:
        """Add the subcommands."""
        raise NotImplementedError

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_subcommands(parser, "action")

    def add_subcommands(self, parser: ArgumentParser, dest: str) -> None:
        """Add the subcommands to ``parser``, which may belong to another command. The option
        ``dest`` has the name of the subcommand that was chosen."""
        actions = parser.add_subparsers(dest=dest, required=True, metavar="ACTION")
        common = CommonOptions().create_parser("", "", add_help=False, argument_default=SUPPRESS)

        def add(name: str, says: str, /) -> ArgumentParser:
            added: ArgumentParser = actions.add_parser(
                name,
                help=says,
                description=f"{says}.",
                formatter_class=DjangoHelpFormatter,
                parents=[common],
            )
            return added

        self.add_actions(add)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        if "DJANGO_AUTO_COMPLETE" in os.environ:
            offer(parser, os.environ["COMP_WORDS"].split()[2 : int(os.environ["COMP_CWORD"])])
        return parser

    def handle(self, **options: Any) -> None:
        getattr(self, f"_{options['action'].replace('-', '_')}")(options)

    def print_result(self, options: Mapping[str, Any], facts: object, text: str) -> None:
        """Print the result of an action, or a list.

        Args:
            options: The options of the subcommand.
            facts: The result that is printed as JSON with --json.
            text: The result that is printed without --json.
        """
        self.stdout.write(as_json(facts) if options["json"] else text)

    def print_list(
        self,
        options: Mapping[str, Any],
        facts: Sequence[object],
        table: Sequence[tuple[str, ...]],
        none: str,
    ) -> None:
        """Print a list, as JSON with --json.

        Args:
            options: The options of the subcommand.
            facts: The rows for JSON.
            table: The table of the rows, with its head.
            none: The sentence that is printed if there are no rows.
        """
        self.print_result(options, facts, as_table(table) if facts else none)


def add_json(parser: ArgumentParser, what: str = "object") -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help=f"Print a JSON {what}")


def add_operator(parser: ArgumentParser, *, required: bool = False, **reason: Any) -> None:
    """Add --by, --reason (both stored in the audit) and --json.

    Args:
        parser: The parser of a subcommand.
        required: True if the operator has to give a reason.
        reason: Further options of --reason.
    """

    def checked(text: str) -> str:
        text = text.strip()
        if not required <= len(text) <= REASON_LENGTH:
            raise ArgumentTypeError(
                f"Give a reason of {int(required)} to {REASON_LENGTH} characters."
            )
        return text

    parser.add_argument("--by", help="Name of the operator (default: the current user)")
    options = {"default": None if required else "", "help": "Reason, stored in the audit"} | reason
    parser.add_argument("--reason", required=required, type=checked, **options)
    add_json(parser)


def operator(options: Mapping[str, Any]) -> str:
    """Return the name of the operator."""
    return options["by"] or getpass.getuser()


def attributes(row: Any, *names: str) -> dict[str, Any]:
    """Return these attributes of ``row``, by their names."""
    return {name: getattr(row, name) for name in names}


def shown(value: Any) -> str:
    """Return ``value`` as text of a table."""
    if isinstance(value, datetime):
        return stamp(value)
    if value is None or value == "":
        return ""
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def offer(parser: CommandParser, words: Sequence[str]) -> None:
    """Make Django's completion offer what may follow ``words``, which stand between the command and
    the word that is typed: subcommands, options of the one that was chosen, choices of values.

    Django prints the options of the parser that it gets, and knows nothing of subcommands.
    """
    (actions,) = (each.choices for each in parser._actions if each.dest == "action")
    parsers: Mapping[str, ArgumentParser] = actions or {}  # type: ignore[assignment]
    chosen = next((parsers[word] for word in words if word in parsers), None)
    if chosen is None:
        parser._actions += [_Word(name) for name in parsers]
        return
    known = {name: each for each in chosen._actions for name in each.option_strings}
    awaited = known.get(words[-1])
    if awaited is not None and awaited.choices:
        parser._actions = [_Word(str(choice)) for choice in awaited.choices]
        return
    places = (each.choices or () for each in chosen._actions if not each.option_strings)
    parser._actions = [*chosen._actions, *(_Word(str(word)) for one in places for word in one)]


class _Word(Action):
    """A word that completion offers as if it were an option without a value."""

    def __init__(self, word: str) -> None:
        super().__init__([word], dest=SUPPRESS, nargs=0)
