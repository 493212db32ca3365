"""What a pasted line of a log is about: what is a text, the sentence, and the links."""

from __future__ import annotations

from typing import Any

import pytest
from history import START_NS

from kvtrail.dashboard.content import pasted
from kvtrail.dashboard.content.time_range import TimeRange, of_query
from kvtrail.tracer.serve.api.search import MAX_TEXT

MIN = 60 * 10**9
SHOWN = of_query({}, now_ns=START_NS)
NOTHING: dict[str, Any] = {
    "requests": [], "engines": {}, "rules": [], "looked_for": [], "times_ns": [], "since_ns": None, "until_ns": None,
}  # fmt: skip
TIMED = {"times_ns": [START_NS], "since_ns": START_NS - MIN, "until_ns": START_NS + MIN}


@pytest.mark.parametrize(
    ("search", "is_one"),
    [
        ("", False), ("chatcmpl-9f0c-0123abcd", False), ("4bf92f3577b34da6a3ce929d0e0e4736", False), ("a/b:c@d.e+f~g", False),
        ("INFO 11-20 14:59:37 [a.py:1] x", True), ("request_id=chatcmpl-1", True), ('"chatcmpl-1"', True), ("x" * 201, True),
    ],
)  # fmt: skip
def test_a_part_of_an_id_is_no_text(search: str, is_one: bool) -> None:
    assert pasted.is_text(search) is is_one


def test_what_is_sent_is_no_longer_than_what_is_taken() -> None:
    assert pasted.MAX_TEXT == MAX_TEXT


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "The text has nothing in it that looks like the id of a request or a trace."),
        ({"looked_for": ["cmpl-1"]}, "No request has cmpl-1 as its id or trace id, or as a part of it."),
        ({"requests": [{}, {}]}, "The text names 2 requests."),
        (
            {"requests": [{}], "engines": {"e-1": "alpha"}, "rules": ["stale-lookup"]},
            "The text names 1 request. Engine: alpha. Rule: stale-lookup.",
        ),
    ],
)
def test_a_sentence_says_what_the_text_names(found: dict[str, Any], said: str) -> None:
    assert pasted.sentence({**NOTHING, **found}, now_ns=START_NS) == said
    assert pasted.sentence({**NOTHING, **found, **TIMED}, now_ns=START_NS).startswith(f"{said} Its time is ")


def test_a_time_leads_to_what_happened_around_it() -> None:
    found = {**NOTHING, **TIMED, "engines": {"e-1": "alpha"}, "rules": ["stale-lookup"]}
    around = TimeRange(START_NS - MIN, START_NS + MIN).address
    assert pasted.links(found, SHOWN) == [
        ("requests", "Requests at that time", {**around, "on": "e-1"}),
        ("live", "Live at that time", {**around, "engine": "e-1"}),
        ("findings", "Findings at that time", {**around, "rule": "stale-lookup", "engine": "e-1"}),
    ]


def test_without_a_time_the_pages_range_stays_and_without_anything_there_is_no_link() -> None:
    assert pasted.links(NOTHING, SHOWN) == []
    two = {**NOTHING, "engines": {"e-1": "alpha", "e-2": "beta"}, "rules": ["stale-lookup"]}
    assert pasted.links(two, SHOWN) == [
        ("findings", "Findings in this range", {**SHOWN.address, "rule": "stale-lookup"})
    ]
