"""Commands with subcommands: Django's options on both sides, and shell completion."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import ManagementUtility, call_command, load_command_class
from django.core.management.base import BaseCommand

from leasing.management.subcommands import SubcommandsCommand
from tests.factories import make_lease

COMMANDS = {"leases": "leasing", "tasks": "tasks", "queues": "tasks", "workers": "tasks"}
COMMANDS["schedules"] = "tasks"


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """Each command with subcommands, by its name."""
    return request.param, load_command_class(COMMANDS[request.param], request.param)


def test_django_s_options_may_stand_on_both_sides(command: tuple[str, Any]) -> None:
    name, made = command
    assert isinstance(made, SubcommandsCommand)
    parser = made.create_parser("manage.py", name)
    plain = BaseCommand().create_parser("manage.py", name)
    for given in (
        ["--settings", "a.b", "--verbosity", "2", "--no-color", "--traceback", "--skip-checks"],
        ["--pythonpath", "/a", "--force-color"],
    ):
        wanted = vars(plain.parse_args(given))
        for line in ([*given, "list"], ["list", *given], [*given[:2], "list", *given[2:]]):
            said = vars(parser.parse_args(line))
            assert {key: said[key] for key in wanted} == wanted, line


@pytest.mark.django_db
def test_a_command_is_called_with_django_s_options_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_lease(resource="crane:1")
    call_command("leases", "list", "--json", "--settings", "tests.settings", "--verbosity", "0")
    assert [row["resource"] for row in json.loads(capsys.readouterr().out)] == ["crane:1"]


# Completion


def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> Any:
    """The words that Django's completion offers for the last word of ``line``."""
    words = line.split(" ")
    monkeypatch.setenv("DJANGO_AUTO_COMPLETE", "1")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        ManagementUtility(["manage.py"]).autocomplete()
    return set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "wanted", "unwanted"),
    [
        ("manage.py que", {"queues"}, {"tasks"}),
        ("manage.py tasks ", {"list", "retry", "enqueue", "--verbosity="}, {"--state="}),
        ("manage.py tasks re", {"retry"}, {"list"}),
        ("manage.py leases ra", {"raise-tokens"}, set()),
        ("manage.py tasks retry --", {"--reason=", "--yes", "--settings="}, {"--limit="}),
        ("manage.py tasks list --state st", {"stuck"}, {"--stuck", "ready"}),
        ("manage.py tasks monitoring ", {"alerts", "dashboard", "--runbook="}, {"list"}),
        ("manage.py queues pause mail --reason why --b", {"--by="}, {"--reason="}),
    ],
)
def test_the_shell_completes_subcommands_their_options_and_choices(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    wanted: set[str],
    unwanted: set[str],
) -> None:
    said = offered(monkeypatch, capsys, line)
    assert wanted <= said and not unwanted & said
