"""A process that holds leases and releases each when somebody waits for it; prints when."""

from __future__ import annotations

import json
import sys
import time

import django

django.setup()

from django.db import connection  # noqa: E402

from leasing.db.dialects import CHANNEL  # noqa: E402
from leasing.models import Lease  # noqa: E402
from tests.processes import wait_for  # noqa: E402


def someone_listens() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query = %s AND state = 'idle'",
            [f"LISTEN {CHANNEL}"],
        )
        return bool(cursor.fetchone()[0])


def main(rounds: int) -> None:
    for number in range(rounds):
        lease = Lease.objects.acquire(f"crane:{number}", ttl=60)
        wanted = Lease.objects.filter(pk=lease.pk, wanted_until__isnull=False)
        wait_for(wanted.exists)
        wait_for(someone_listens)
        at = time.monotonic()
        Lease.objects.release(lease)
        print(json.dumps({"resource": lease.resource, "at": at}), flush=True)


main(int(sys.argv[1]))
