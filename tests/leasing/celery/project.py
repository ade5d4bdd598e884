"""A user's project, for processes of Celery: ``celery -A tests.leasing.celery.project ...``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from leasing.celery import LeaderScheduler, LeasedTask

app = Celery("project", broker=os.environ["BROKER"])
app.conf.result_expires = None
app.conf.worker_hijack_root_logger = False
app.conf.broker_connection_retry_on_startup = True
if folder := os.environ.get("BROKER_FOLDER"):
    app.conf.broker_transport_options = {
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": f"{folder}-control",
    }
#: Minutes of three plans, sixty times as fast: every 6, 15 and 60 seconds of a minute.
app.conf.beat_schedule = {
    "often": {"task": "often", "schedule": 0.1},
    "regularly": {"task": "regularly", "schedule": 0.25},
    "rarely": {"task": "rarely", "schedule": 1.0},
}


class PatientScheduler(LeaderScheduler):
    """Makes up for every slot, however slow the machine is that the tests run on."""

    catch_up = 3600.0


@app.task(base=LeasedTask, bind=True, name="cross", resource="gate:{gate}", countdown=0.2)  # type: ignore[untyped-decorator]
def cross(self: Any, gate: str, path: str) -> None:
    """Two at a time would be seen in the file: a line "in" follows another."""
    with Path(path).open("a") as file:
        file.write(f"in {self.request.fencing_token}\n")
        file.flush()
        time.sleep(0.02)
        assert self.request.hold.valid
        file.write("out\n")
