"""Each condition of the scripts is there for a test: without it, that one fails.

``tests.mutants`` bends Python. The scripts are text, and are bent here: the text on the left is
replaced by that in the middle, and the test on the right runs over the broken store.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterable
from typing import Any

import pytest
from django.test import SimpleTestCase

from leasing.stores import redis_scripts
from leasing.stores.redis import RedisStore
from tests.leasing.stores import redis_cases

pytestmark = pytest.mark.slow

SCRIPTS = [text for name, text in vars(redis_scripts).items() if name.isupper()]


CONTRACT, TOKENS, ANSWERS = "ContractCases", "TokenCases", "AnswerCases"
MEMORY, SNAPSHOTS, COPIES = "MemoryCases", "SnapshotCases", "CopyCases"
CLOCKS = "ClockCases"
HOLDING = "if it.ends > now then return {'held', it.holder, it.ends, now} end"
FREE = "if it.ends <= now then return {now, it.token, '', '', 0, 0} end"
SHOWN_FREE = "if it.ends <= now then\n        local"
KEPT = "redis.call('PEXPIRE', key, math.floor(longest / 500) + 1)"
KEEPS = "known[1] and ARGV[2] == 'remembers'\n            and string.find("

CONDITIONS = [
    ("if it.grant == '' then return 'gone' end", "", MEMORY, "an_emptied_server_grants_nothing"),
    ("if it.grant ~= grant then", "if false then", CONTRACT, "a_renewal_proves_its_grant"),
    ("if it.over ~= ''", "if false", CONTRACT, "a_release_frees_it_and_a_second_changes_nothing"),
    ("if it.ends <= now then return 'expired' end", "", CONTRACT, "what_has_expired_is_never"),
    ("if it.grant == grant then\n", "if false then\n", ANSWERS, "a_grant_whose_answer_was_lost"),
    ("if over ~= '' then return {over} end", "", ANSWERS, "a_grant_that_has_ended_is_not"),
    (HOLDING, "", CONTRACT, "a_refusal_names_the_holder"),
    (HOLDING, HOLDING.replace("> now", "> 0"), CONTRACT, "tokens_rise_and_proofs_differ"),
    ("if from > now then", "if false then", MEMORY, "an_emptied_server_grants_nothing"),
    ("if token == 0 then token = math.max(it.token + 1, now)", "if token == 0 then token = now")
    + (TOKENS, "a_token_is_not_below_the_clock_and"),
    ("if token == 0 then token = math.max(it.token + 1, now)", "if token == 0 then token = 1")
    + (TOKENS, "a_token_is_not_below_the_clock_and"),
    ("if token <= it.token then", "if false then", TOKENS, "a_token_that_is_not_above_the_last"),
    ("if token <= it.token then", "if token < it.token then")
    + (TOKENS, "a_token_that_is_not_above_the_last"),
    (KEPT, "", TOKENS, "what_was_granted_is_remembered"),
    (KEPT, KEPT.replace("/ 500", "/ 1000"), TOKENS, "what_was_granted_is_remembered"),
    ("local since = tonumber(known[2] or 0)", "local since = 0", MEMORY)
    + ("an_emptied_server_grants_nothing",),
    ("math.max(it.ends, now + it.ttl)", "now + it.ttl", TOKENS, "a_renewal_never_brings"),
    ("math.max(it.ends, now + it.ttl)", "it.ends", CONTRACT, "a_renewal_moves_the_deadline"),
    ("if answer == '' then", "if true then", CONTRACT, "many_are_renewed_at_once"),
    ("is_sure and 'renewed' or 'forgetful'", "'renewed'", SNAPSHOTS, "after_a_restart_it_confirms"),
    ("if over == '' then write", "if true then write", CONTRACT, "a_release_under_an_older_grant"),
    (FREE, "", CONTRACT, "what_is_free_cannot_be_revoked"),
    (
        "local token = math.max(it.token + 1, now)\nwrite",
        "local token = it.token + 1\nwrite",
        TOKENS,
        "a_revocation_raises_the_token",
    ),
    (
        "local token = math.max(it.token + 1, now)\nwrite",
        "local token = now\nwrite",
        TOKENS,
        "a_revocation_raises_the_token",
    ),
    (SHOWN_FREE, "if false then\n        local", CONTRACT, "a_free_name_is_granted"),
    ("it.over == '' and it.grant or ''", "it.grant", CLOCKS, "a_lease_that_was_ended_keeps_no"),
    ("it.over == '' and it.grant or ''", "''", CLOCKS, "a_grant_that_has_expired_is_told"),
    ("if known[1] ~= run then", "if not known[1] then", MEMORY, "a_member_of_a_majority_is_not"),
    ("known[1] and ARGV[2]", "ARGV[2]", MEMORY, "an_emptied_server_grants_nothing"),
    (KEEPS, "known[1] and string.find(", MEMORY, "a_member_of_a_majority_is_not"),
    ("aof_enabled:1", "aof_enabled", SNAPSHOTS, "after_a_restart_it_confirms"),
    ("if not keeps then since = now end", "since = now", MEMORY, "a_restart_with_its_file"),
    ("return since + longest", "return since", MEMORY, "an_emptied_server_grants_nothing"),
    ("if tonumber(token) > it.token then", "if true then", COPIES, "what_is_newer_or_held_here"),
    ("if it.ends <= now + left then", "if true then", COPIES, "what_is_newer_or_held_here"),
    ("if it.ends <= now + left then", "if it.ends <= now then", COPIES, "what_is_held_there"),
]


def run(case: type[SimpleTestCase], names: Iterable[str], kind: type[RedisStore]) -> Any:
    """Run these tests of ``case`` over stores of that kind."""
    broken: Any = type(case.__name__, (case,), {"kind": kind})
    result = unittest.TestResult()
    unittest.TestSuite(map(broken, names)).run(result)
    return result


@pytest.mark.parametrize(("before", "after", "cases", "beginning"), CONDITIONS)
def test_without_its_condition_a_script_fails_a_test(
    before: str, after: str, cases: str, beginning: str
) -> None:
    case = getattr(redis_cases, cases)
    (name,) = [each for each in dir(case) if each.startswith(f"test_{beginning}")]
    assert any(before in text for text in SCRIPTS)

    class Broken(RedisStore):
        def run(self, script: str, resources: Iterable[str] = (), *args: Any) -> Any:
            return super().run(script.replace(before, after), resources, *args)

    result = run(case, [name], Broken)
    assert result.testsRun == 1
    assert not result.wasSuccessful()


def test_every_condition_of_the_scripts_is_broken_once() -> None:
    tried = [before for before, *_ in CONDITIONS]
    for text in SCRIPTS:
        for line in text.splitlines():
            if line.strip().startswith(("if ", "local keeps")):
                assert any(line.strip() in each or each.strip() in line for each in tried), line
