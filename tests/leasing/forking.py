"""A process that forks while it holds a lease, and prints what parent and child see."""

from __future__ import annotations

import json
import os
import sys
import warnings

import django

django.setup()

from django.db import connections  # noqa: E402
from django.test import override_settings  # noqa: E402

from leasing.exceptions import LeaseLost  # noqa: E402
from leasing.holding.keeper import keeper  # noqa: E402
from leasing.holding.term import Term  # noqa: E402
from leasing.models import Lease  # noqa: E402
from leasing.validation.names import default_holder  # noqa: E402
from tests.processes import wait_for  # noqa: E402


def say(who: str, **what: object) -> None:
    print(json.dumps({"who": who, **what}), flush=True)


def loss(hold: Term, verb: str) -> str:
    try:
        hold.ensure() if verb == "ensure" else hold.end(None)
    except LeaseLost as error:
        return str(error)
    return "none"


def child(hold: Term, parents_name: str) -> None:
    for name in connections:
        connections[name].connection = None  # the parent's: not ours to close
    renewals = []
    first_look = {"valid": hold.valid, "lost": hold.lost.is_set()}
    with Lease.objects.hold("crane:2", ttl=30) as own:
        deadline = own.trusted_until
        wait_for(lambda: own.trusted_until > deadline)
        renewals.append(own.valid)
    say(
        "child",
        **first_look,
        ensure=loss(hold, "ensure"),
        exit=loss(hold, "exit"),
        renewed_in_child=hold in keeper.holds,
        other_holder=default_holder() != parents_name,
        own_hold_renewed=renewals == [True],
    )


def main() -> None:
    reported: list[str] = []
    parents_name = default_holder()
    with (
        override_settings(LEASING={"RENEW_EVERY": 0.05, "JITTER": 0}),
        Lease.objects.hold("crane:1", ttl=30, on_lost=lambda h: reported.append("lost")) as hold,
    ):
        wait_for(lambda: Lease.objects.get(resource="crane:1").renewals >= 1)
        with warnings.catch_warnings():
            # From 3.12 on Python warns of forks with threads; that is what is tried here.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            code = 1
            try:
                child(hold, parents_name)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0, "the child failed"
        count = Lease.objects.get(resource="crane:1").renewals
        wait_for(lambda: Lease.objects.get(resource="crane:1").renewals > count)
        say("parent", valid=hold.valid, renewed_after_the_fork=True, reported=reported)


main()
