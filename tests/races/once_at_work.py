"""A process that does something once, and prints what it was given.

``python -m tests.races.once_at_work FOLDER HOW``: it begins when FOLDER/go is there. Each run of
the body leaves a line in FOLDER/done. HOW is "done" or "hang" (the body never ends).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import django

django.setup()

from leasing import once  # noqa: E402


def charge(folder: Path, how: str = "done", ttl: float = 4) -> dict[str, int]:
    """Do it, unless that has been done: which process did."""

    def body() -> dict[str, int]:
        with (folder / "done").open("a") as file:
            file.write(f"{os.getpid()}\n")
        while how == "hang":
            time.sleep(0.01)
        return {"by": os.getpid()}

    do = once("charge:42", window=3600, ttl=ttl, wait=30, payload={"amount": 5})
    given: dict[str, int] = do.run(body)
    return given


def main(folder: Path, how: str) -> None:
    (folder / f"ready-{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.005)
    print(json.dumps(charge(folder, how)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
