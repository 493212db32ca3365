"""Silences: which findings they cover, and which cannot be made."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvtrail.tracer.model.silences import LATEST_NS, MAX_ACTIVE, MAX_WHY, Place, Silence, Silencing, proposed

NOW = 10**18
ENGINES = {"e-1": {"name": "alpha", "version": "0.32.0", "kvtrail": "0.1.0"}}
PLACE = Place("stale-lookup", "e-1", "LMCache")


def silence(**changes: Any) -> Silence:
    return Silence(
        **{"id": "s", "began_ns": 1, "ends_ns": None, "why": "known", "by": "me", "written_ns": 1, **changes}
    )


@pytest.mark.parametrize(
    ("matchers", "covers"),
    [
        ({"rule": "stale-lookup"}, True),
        ({"rule": "full-hit"}, False),
        ({"engine": "e-1"}, True),
        ({"engine": "alpha"}, True),
        ({"engine": "beta"}, False),
        ({"connector": "LMCache"}, True),
        ({"connector": "NixlConnector"}, False),
        ({"vllm_version": "0.32.0"}, True),
        ({"vllm_version": "0.31.0"}, False),
        ({"kvtrail_version": "0.1.0"}, True),
        ({"kvtrail_version": "0.2.0"}, False),
        ({"rule": "stale-lookup", "engine": "alpha", "connector": "LMCache", "vllm_version": "0.32.0"}, True),
        ({"rule": "stale-lookup", "engine": "beta"}, False),
    ],
)
def test_a_silence_covers_what_meets_all_its_matchers(matchers: dict[str, str], covers: bool) -> None:
    assert silence(**matchers).covers(PLACE, ENGINES["e-1"]) is covers


def test_what_an_engine_does_not_say_of_itself_meets_no_matcher() -> None:
    assert not silence(vllm_version="0.32.0").covers(Place("full-hit", "other", "C"), {})


def test_only_active_silences_count_and_the_one_that_lasts_longest_is_named() -> None:
    some = [
        silence(id="short", ends_ns=NOW + 1, rule=PLACE.rule),
        silence(id="long", ends_ns=NOW + 9, rule=PLACE.rule),
        silence(id="over", ends_ns=NOW, connector=PLACE.connector),
    ]
    named = Silencing(some, ENGINES, at_ns=NOW)
    assert getattr(named.of(PLACE), "id", None) == "long"
    assert named.until_ns == NOW + 1
    assert Silencing(some, ENGINES, at_ns=NOW + 9).of(PLACE) is None
    assert Silencing(some, ENGINES, at_ns=NOW).of(PLACE._replace(rule="full-hit")) is None, "its silence is over"
    for_good = [*some, silence(id="for good", ends_ns=None, rule=PLACE.rule)]
    assert getattr(Silencing(for_good, ENGINES, at_ns=NOW).of(PLACE), "id", None) == "for good"


ASKED = {"rule": "stale-lookup", "ends_ns": NOW + 1, "why": "fixed in 0.33", "by": "ana"}


def propose(asked: dict[str, Any], *, active: int = 0) -> Silence:
    return proposed(asked, id="new", now_ns=NOW, rules=["stale-lookup", "full-hit"], active=active)


def test_a_proposal_is_stripped_and_dated() -> None:
    made = propose({**ASKED, "why": " fixed in 0.33\n"})
    assert (made.why, made.began_ns, made.ends_ns, made.written_ns) == ("fixed in 0.33", NOW, NOW + 1, NOW)
    assert propose({**ASKED, "ends_ns": None}).ends_ns is None


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"rule": ""}, "a silence without a matcher would silence everything"),
        ({"rule": "stale-lookpu"}, "there is no rule 'stale-lookpu'; did you mean 'stale-lookup'?"),
        ({"rule": 5}, "'rule' must be a text"),
        ({"why": " "}, "say in 'why' why these findings are known"),
        ({"by": ""}, "say in 'by' who silences them"),
        ({"why": "x" * (MAX_WHY + 1)}, "'why' has 501 characters"),
        ({"by": "\ud800"}, "'by' has characters that no store can hold"),
        ({"ends_ns": NOW}, "'ends_ns' is in the past"),
        ({"ends_ns": True}, "'ends_ns' must be Unix nanoseconds or null"),
        ({"ends_ns": "tomorrow"}, "'ends_ns' must be Unix nanoseconds or null"),
        ({"ends_ns": LATEST_NS + 1}, "'ends_ns' is beyond"),
        ({"until": 5}, "a silence has no 'until'"),
    ],
)
def test_what_cannot_be_a_silence_is_refused_with_the_reason(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(wrong)}"):
        propose({**ASKED, **changes})


def test_an_end_must_be_given_and_the_number_of_silences_is_limited() -> None:
    with pytest.raises(ValueError, match="say when it ends"):
        propose({name: value for name, value in ASKED.items() if name != "ends_ns"})
    with pytest.raises(ValueError, match="500 silences are active already"):
        propose(ASKED, active=MAX_ACTIVE)
