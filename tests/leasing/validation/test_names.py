"""Names, ttls, and how a process is called."""

from __future__ import annotations

import os
import re
import socket
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from leasing.exceptions import InvalidResource, InvalidTTL
from leasing.validation import names
from leasing.validation.names import check_name, check_ttl, default_holder, recorded_name


def test_no_two_clients_have_one_name_in_the_ledgers() -> None:
    users = [
        "token ci",
        "user token ci",
        "a client at 127.0.0.1",
        "user ",
        "ann",
        "tokens",
        "x" * 254,
    ]
    recorded = [recorded_name(User(username=name)) for name in users]
    assert recorded[4:6] == users[4:6]
    assert len(set(recorded)) == len(users)
    assert not [name for name in recorded if name.startswith((names.TOKEN, names.STRANGER))]
    assert max(map(len, recorded)) == names.MAX_NAME


@pytest.mark.parametrize("ttl", ["30", None.__class__, True, False, b"3", [], complex(1, 1)])
def test_a_ttl_that_is_no_number_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidTTL, match=r"^The ttl must be a number of seconds\.$"):
        check_ttl(ttl)


@pytest.mark.parametrize(
    "ttl",
    [
        0,
        -1,
        0.5,
        86_401,
        10**400,
        -(10**400),
        float("nan"),
        float("inf"),
        float("-inf"),
        timedelta(0),
        timedelta.max,
    ],
    ids=lambda ttl: str(ttl)[:12],
)
def test_a_ttl_out_of_bounds_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidTTL, match=r"^The ttl must be between 1 and 86400 seconds\.$"):
        check_ttl(ttl)


def test_the_bounds_themselves_are_allowed() -> None:
    assert check_ttl(1) == timedelta(seconds=1)
    assert check_ttl(86_400.0) == timedelta(days=1)
    assert check_ttl(timedelta(seconds=2.5)) == timedelta(seconds=2.5)


def test_the_bounds_can_be_configured_and_are_told() -> None:
    with override_settings(LEASING={"MIN_TTL": 0.5, "MAX_TTL": 60, "TTL": 2}):
        assert check_ttl(0.5) == timedelta(seconds=0.5)
        assert check_ttl(None) == timedelta(seconds=2)
        with pytest.raises(InvalidTTL, match="between 0.5 and 60 seconds"):
            check_ttl(61)


def test_invalid_names_and_ttls_are_value_errors_too() -> None:
    with pytest.raises(ValueError, match="must have 1 to 200"):
        check_name("", "resource")
    with pytest.raises(ValueError, match="between"):
        check_ttl(0)


@pytest.mark.parametrize("name", ["\x7f", "a\u200bb", "a\u2028b", "a\u00a0b", "\ufeff", "\t"])
def test_what_does_not_print_is_refused(name: str) -> None:
    with pytest.raises(InvalidResource):
        check_name(name, "queue")


def test_a_space_inside_is_part_of_the_name() -> None:
    assert check_name("crane 7", "resource") == "crane 7"


# The holder's name


def test_a_process_keeps_its_name() -> None:
    assert default_holder() == default_holder()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["/srv/manage.py", "import_stock", "--all"], "import_stock"),
        (["/srv/manage.py"], "python"),
        (["/venv/bin/gunicorn", "-w2"], "gunicorn"),
        (["/site-packages/uvicorn/__main__.py"], "uvicorn"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_the_name_of_a_process_tells_program_host_and_process_and_cannot_be_guessed(
    argv: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_process_name", None)
    monkeypatch.setattr(sys, "argv", argv)
    program, host, pid, rest = re.split("[@:]", default_holder())

    assert (program, host) == (named, socket.gethostname())
    assert pid == str(os.getpid())
    assert len(rest) == 8


def test_a_forked_child_gets_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = default_holder()
    monkeypatch.setattr(names, "_process_name", names._process_name)
    monkeypatch.setattr(os, "getpid", lambda: 1)

    assert default_holder() != parent


@pytest.mark.parametrize("host", ["x" * 300, "bad\nhost", "", "  "])
def test_any_host_name_makes_a_usable_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_process_name", None)
    monkeypatch.setattr(socket, "gethostname", lambda: host)

    assert check_name(default_holder(), "holder")


def test_the_name_can_be_configured_and_is_checked() -> None:
    with override_settings(LEASING={"HOLDER": lambda: "crane driver"}):
        assert default_holder() == "crane driver"
    with override_settings(LEASING={"HOLDER": lambda: ""}), pytest.raises(InvalidResource):
        default_holder()


def test_a_process_can_be_named_for_a_block() -> None:
    before = default_holder()

    with names.process_named("worker-1"):
        assert default_holder() == "worker-1"
        with override_settings(LEASING={"HOLDER": lambda: "crane driver"}):
            assert default_holder() == "crane driver"
    assert default_holder() == before
