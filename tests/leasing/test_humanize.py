"""Times and counts in words."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from leasing import humanize
from leasing.humanize import Moment, Sentence
from leasing.templatetags.leasing_ops import breakable, pretty_json
from leasing.web.fingerprint import fingerprint

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h"),
        (3_661, "1 h 1 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
        (-5, "5 s"),
    ],
)
def test_a_span_is_told_in_its_two_greatest_units(seconds: float, words: str) -> None:
    assert humanize.span(seconds) == words
    assert humanize.span(timedelta(seconds=seconds)) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "just now"), (3, "3 s ago"), (-0.5, "just now"), (-90, "in 1 min 30 s")],
)
def test_a_moment_is_told_by_its_distance(seconds: float, words: str) -> None:
    assert humanize.ago(NOW - timedelta(seconds=seconds), NOW) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(12, "ends in 12 s"), (0.2, "ends in 1 s"), (0, "expired just now"), (-3, "expired 3 s ago")],
)
def test_a_deadline_counts_down_and_then_says_since_when(seconds: float, words: str) -> None:
    assert humanize.until(NOW + timedelta(seconds=seconds), NOW, "ends") == words


def test_a_wait_is_told_as_the_countdown_beside_it_tells_it() -> None:
    for seconds in (0.2, 4.0, 59.5, 61.01):
        ahead = timedelta(seconds=seconds)
        assert humanize.until(NOW + ahead, NOW) == f"in {humanize.left(ahead)}"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "< 0.1 s"), (0.04, "< 0.1 s"), (0.06, "0.1 s"), (9.94, "9.9 s"), (9.96, "9 s")]
    + [(75, "1 min 15 s")],
)
def test_what_took_no_time_is_not_told_as_naught(seconds: float, words: str) -> None:
    assert humanize.brief(timedelta(seconds=seconds)) == words


def test_a_noun_follows_its_number() -> None:
    assert humanize.plural(1, "task") == "1 task"
    assert humanize.plural(1200, "task") == "1,200 tasks"


def test_a_long_name_may_be_broken_after_the_signs_that_part_it() -> None:
    assert breakable("reports.render_all") == "reports.<wbr>render_<wbr>all"
    assert breakable("<a-b>&'") == "&lt;a-<wbr>b&gt;&amp;&#x27;"
    assert breakable("end.") == "end."


def test_long_json_is_cut() -> None:
    assert pretty_json({"ä": [1]}) == '{\n  "ä": [\n    1\n  ]\n}'
    assert pretty_json({"<a>": "\\"}) == '{\n  "<a>": "\\\\"\n}'
    assert pretty_json("x" * 60_000).endswith("… truncated: 10,002 more characters")


def test_json_in_a_script_that_runs_leftwards_keeps_its_order() -> None:
    shown = pretty_json({"שם": 'נמל "<b>', "port": 1})
    isolated = "<bdi>&quot;שם&quot;</bdi>: <bdi>&quot;נמל \\&quot;&lt;b&gt;&quot;</bdi>"
    assert shown == f"{{\n  {isolated},\n  &quot;port&quot;: 1\n}}"


def test_a_sentence_is_the_text_of_its_moment_and_keeps_its_moments() -> None:
    end, seen = NOW + timedelta(seconds=5), NOW - timedelta(seconds=3)
    sentence = Sentence(NOW, "It ends ", Moment(end, past="due"), ", seen ", Moment(seen), ".")

    assert sentence == "It ends in 5 s, seen 3 s ago."
    for same in (pickle.loads(pickle.dumps(sentence)), sentence + ""):
        assert same == sentence and [part for part in same.parts if part] == [*sentence.parts]
    assert sentence + " Then " + Sentence(NOW, Moment(end)) == f"{sentence} Then in 5 s"
    assert f"{json.dumps(sentence)}" == '"It ends in 5 s, seen 3 s ago."'


def test_the_fingerprint_of_a_sentence_is_that_of_its_moments() -> None:
    def seen(now: datetime, at: datetime) -> str:
        return fingerprint(Sentence(now, "It ends ", Moment(at, past="due"), "."), now)

    later = NOW + timedelta(seconds=1)
    end = NOW + timedelta(seconds=5)
    assert seen(NOW, end) == seen(later, end) != seen(NOW, later)
