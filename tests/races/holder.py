"""A process that holds a lease, and says what it sees when it is asked.

``python -m tests.races.holder RESOURCE TTL ASK`` acquires and prints its grant. Once the file
ASK exists it prints, as a line of JSON, whether it still believes in its hold, and what renewing
and releasing answer.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import django

django.setup()

from leasing.exceptions import LeaseLost  # noqa: E402
from leasing.models import Lease  # noqa: E402


def refusal(verb: object, *args: object) -> str:
    try:
        verb(*args)  # type: ignore[operator]
    except LeaseLost as loss:
        return loss.reason
    return ""


def main(resource: str, ttl: float, ask: Path) -> None:
    reported: list[str] = []
    hold = Lease.objects.hold(resource, ttl=ttl, on_lost=lambda hold: reported.append("lost"))
    term = hold.__enter__()
    lease = Lease.objects.get(pk=term.key)
    print(json.dumps({"holder": term.holder, "token": term.fencing_token}))
    while not ask.exists():
        time.sleep(0.001)
    first_look = term.valid  # before anything else that could take time
    answer = {
        "valid": first_look,
        "renew": refusal(Lease.objects.renew, lease),
        "release": refusal(Lease.objects.release, lease),
        "hold": refusal(term.release),
        "lost": term.lost.wait(10),
    }
    while not reported and answer["lost"]:
        time.sleep(0.001)
    print(json.dumps({**answer, "told": reported}))


main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
