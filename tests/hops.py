"""Count the functions of both packages that one verb walks through, and their files.

``measured()`` does so in a process and on a database of its own, with the settings of a small
project: uncontended, warm, nobody listening. Counted by the interpreter are distinct functions,
lambdas too, in the calling thread; of five walks the shortest: on a loaded machine enqueues are
slower than the pause between two notifications, and some send one. ``python -m tests.hops`` prints
the figures as JSON, on the empty database that DATABASE_URL names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tests.plugin import ROOT
from tests.postgres import serve

OURS = tuple(f"{ROOT / package}{os.sep}" for package in ("leasing", "tasks"))


def measured(url: str = "") -> dict[str, int]:
    """Return the hops of each verb on the empty database at ``url``, or on a throw-away server."""
    if not url:
        with serve() as database:
            return measured(database.url)
    command = [sys.executable, "-m", "tests.hops"]
    env = {**os.environ, "DATABASE_URL": url}
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def main() -> None:
    """Walk through each verb, and print the figures."""
    _set_up()
    from django.core.management import call_command

    from leasing.models import Lease
    from tasks import handler

    @handler("hops.nothing")
    def nothing(ctx: Any, n: int = 0) -> None:
        """Do nothing: it never runs."""

    def hold() -> None:
        with Lease.objects.hold("hops", ttl=30):
            pass

    def enqueue() -> None:
        nothing.enqueue(n=1)

    call_command("migrate", verbosity=0)
    found = {**_hops("hold", hold), **_hops("enqueue", enqueue)}
    with Lease.objects.hold("hops-2", ttl=30) as held:
        found.update(_hops("renew", held.renew))
    print(json.dumps(found), flush=True)
    os._exit(0)  # no thread is waited for


def _set_up() -> None:
    import django
    import environ
    from django.conf import settings

    logging = {
        "version": 1,
        "handlers": {"null": {"class": "logging.NullHandler"}},
        "root": {"handlers": ["null"], "level": "ERROR"},
    }
    settings.configure(
        SECRET_KEY="known to everybody",
        USE_TZ=True,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "leasing", "tasks"],
        DATABASES={"default": environ.Env().db("DATABASE_URL")},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        LOGGING=logging,
    )
    django.setup()


def _hops(verb: str, action: Callable[[], object]) -> dict[str, int]:
    for _ in range(25):
        action()  # what is compiled once and kept is there, and so is a mean of latencies
    walked = min((_walked(action) for _ in range(5)), key=len)
    files = {code.co_filename for code in walked}
    return {f"{verb}: functions": len(walked), f"{verb}: files": len(files)}


def _walked(action: Callable[[], object]) -> set[CodeType]:
    entered: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            entered.add(code)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    # A comprehension is a part of its function, and Python 3.12 enters no frame for it.
    return {code for code in entered if code.co_name[0] != "<" or code.co_name == "<lambda>"}


if __name__ == "__main__":
    main()
