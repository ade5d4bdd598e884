"""What the commands refuse: a table of lines and what each is told. Options of ``run_worker`` and
``run_generator`` are in ``test_commands.py``, for a wrong one that was taken would start them."""

from __future__ import annotations

import shlex

import pytest
from django.core.management import CommandError, call_command

from leasing.models import ApiToken, AuditEntry
from leasing.runtime.shutdown import ExitCode
from tasks.models import Task

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("queues")]

NO_DURATION = "is no duration"
#: Lines that contradict themselves, are out of bounds, or miss something.
REFUSED = {
    "tasks reschedule 1 --priority 40000": "from -32768 to 32767",
    "leases": "Error: .*ACTION",
    "leases burn": "Error: .*'burn'",
    "leases list --state lost": "Error: .*'lost'",
    "leases list x": "Error: .*x",
    "leases show": "Error: .*NAME",
    "leases show nope": r"\bnope\b",
    "leases revoke nope --reason x": r"\bnope\b",
    "prune_leases --days 0": "--days must be from 1",
    "prune_leases --days -1": "--days must be from 1",
    "prune_leases --days 0.5": "invalid int value",
    "prune_leases --days 99999": "--days must be from 1",
    "prune_leases --batch 0": "--batch must be from 1",
    "prune_leases --batch 10001": "--batch must be from 1",
    "prune_tasks --days -1": "--days must be",
    "prune_tasks --batch 0": "--batch must be",
    "prune_tasks --pause -1": "--pause must be",
    "prune_tasks --state ready": "invalid choice",
    "api_tokens create ci --scope leasing.view_leas": "Did you mean 'leasing.view_lease'",
    "api_tokens create ci --scope leasing.view_lease --days 0": "--days must be",
    "api_tokens create ci --scope leasing.view_lease --days 99999999999": "--days must be",
    "api_tokens create ci --scope leasing.view_lease --queue ''": "1 to 200 characters",
    "api_tokens create ' ' --scope leasing.view_lease": "must not",
    "api_tokens revoke other": "There is no token other",
    "tasks list --limit 0": "--limit .* 1",
    "tasks list --state lost": "'lost'",
    "tasks show 4711": "4711",
    "tasks reschedule 1": "queue",
    "tasks reschedule 1 --at soon": "'soon'",
    "tasks reschedule 1 --at 2030-02-31T00:00": "2030-02-31T00:00",
    "tasks reschedule 1 --at now --in 5": "--in",
    "tasks reschedule 1 --in soon": f"'soon' {NO_DURATION}: .* 10m or 1h30m",
    "tasks reschedule 1 --in 30m1h": f"'30m1h' {NO_DURATION}",
    "tasks reschedule 1 --in ''": f"'' {NO_DURATION}",
    "tasks reschedule 1 --in inf": "--in is out of bounds: inf s",
    "tasks enqueue sample.sleep --in nan": "--in is out of bounds: nan s",
    "tasks enqueue sample.sleep --data '{1'": "--data is not valid JSON",
    "tasks enqueue sample.sleep --data '[1]'": "--data must be a JSON object",
    "tasks enqueue sample.sleep --at soon": "soon",
    "tasks enqueue sample.sleep --priority 99999": "priority",
    "workers check ann": "no worker ann",
}
#: Lines that name a queue or a handler that nobody knows: exit code 2.
UNKNOWN = {
    "tasks list --queue nope": r"Unknown queue 'nope': .* Known: default, mail, reports\.",
    "tasks list --name jobs.ecko": "No handler is registered .* Did you mean 'jobs.echo'",
    "tasks retry --queue nope --yes": "Unknown queue 'nope'",
    "tasks retry 1 --name nope": "No handler is registered for 'nope'",
    "tasks reschedule 1 --to-queue nope": "Unknown queue 'nope'",
    "tasks enqueue nope": "No handler is registered for 'nope'",
    "tasks enqueue sample.sleep --queue nope": "Unknown queue 'nope'",
    "queues pause mail nope --reason x": "nope",
    "queues resume mail nope": "nope",
}


@pytest.mark.parametrize("line", [*REFUSED, *UNKNOWN])
def test_a_command_refuses_a_wrong_line_names_what_is_wrong_and_does_nothing(line: str) -> None:
    with pytest.raises(CommandError, match=(REFUSED | UNKNOWN)[line]) as refused:
        call_command(*shlex.split(line))

    assert (refused.value.returncode == ExitCode.REFUSED) == (line in UNKNOWN)
    for model in (Task, ApiToken, AuditEntry):
        assert not model._default_manager.exists()
