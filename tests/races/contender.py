"""One of several processes that all want the same leases at the same moments.

``python -m tests.races.contender GO RESOURCE...`` prints "ready", waits for the file GO, which
has the moment of the first race on the machine's monotonic clock, and then tries to acquire one
resource after the other, each at its moment. Prints a line of JSON for each.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import django

django.setup()

from leasing.exceptions import LeaseHeld  # noqa: E402
from leasing.models import Lease  # noqa: E402
from tests.processes import wait_for  # noqa: E402

#: Seconds between one race and the next.
PACE = 0.04


def contend(resource: str) -> dict[str, object]:
    try:
        lease = Lease.objects.acquire(resource, ttl=600)
    except LeaseHeld as refusal:
        return {"resource": resource, "won": False, "holder": refusal.holder}
    return {
        "resource": resource,
        "won": True,
        "holder": lease.holder,
        "grant": str(lease.grant_id),
        "token": lease.fencing_token,
    }


def main(go: Path, resources: list[str]) -> None:
    Lease.objects.exists()  # connect before the race
    print("ready")
    begin = float(wait_for(lambda: go.exists() and go.read_text(), timeout=60))
    for number, resource in enumerate(resources):
        time.sleep(max(0.0, begin + number * PACE - time.monotonic()))
        print(json.dumps(contend(resource)))


main(Path(sys.argv[1]), sys.argv[2:])
