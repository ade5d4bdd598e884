"""The exit codes of the commands that run something. docs/commands.md has them as a table, for the
configuration of supervisors."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """The exit code of a process, for its supervisor."""

    #: It was asked to stop, or has done what it was to do.
    DONE = 0
    #: It cannot begin as things are (a value is not valid, a migration is missing, a port is in
    #: use), or it could do no more. It may be started again.
    FAILED = 1
    #: The command line is wrong, or another process has its name: to start it again is no remedy.
    REFUSED = 2
    #: Its term as the leader has ended, and it was to lead no more than one (EX_TEMPFAIL).
    TERM_ENDED = 75


#: The exit code of a process that ends by a signal, less the number of the signal.
KILLED_BY: Final = 128
