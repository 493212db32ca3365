"""The phases of one request, out of an answer about many; and the legends with the time in each."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.dashboard import palette
from kvtrail.dashboard.content.legend import Entry, legend
from kvtrail.dashboard.content.request import charts as request_charts
from kvtrail.dashboard.content.request import phases
from kvtrail.dashboard.content.request.phases import Stretch
from kvtrail.tracer.ledger.phases import WORDS, Phase

NAMES = list(WORDS.values())
REQUEST = {"request": "chat-1", "engine": "a", "started_ns": 1_000, "last_ns": 9_000, "ended_ns": 9_000}
PARTS = [
    Stretch("queued", 0.0, 10.0),
    Stretch("prefill", 10.0, 40.0),
    Stretch("store", 35.0, 50.0),
    Stretch("queued", 40.0, 60.0),
]


def lanes(*segments: tuple[int, Phase, int, int]) -> dict[str, Any]:
    """An answer about chat-1 of engine b, chat-10 and chat-1 of engine a, in this order."""
    columns = ("lane", "phase", "begin_us", "end_us")
    return {
        "phases": NAMES,
        "requests": {"request": ["chat-1", "chat-10", "chat-1"], "engine": ["b", "a", "a"]},
        "segments": {name: [int(segment[n]) for segment in segments] for n, name in enumerate(columns)},
    }


def test_the_request_is_found_among_others() -> None:
    answer = lanes(
        (0, Phase.QUEUED, 0, 5), (1, Phase.QUEUED, 0, 5), (2, Phase.PREFILL, 500, 2500), (2, Phase.DECODE, 2500, 9000)
    )
    assert phases.stretches(answer, REQUEST) == [Stretch("prefill", 0.5, 2.5), Stretch("decode", 2.5, 9.0)]
    assert phases.stretches(answer, {**REQUEST, "engine": "c"}) == []


def test_what_is_asked_is_the_whole_of_the_request() -> None:
    asked = phases.question(REQUEST, now_ns=20_000)
    assert (asked["from_ns"], asked["to_ns"], asked["q"], asked["engine"]) == (1_000, 9_000, "chat-1", "a")
    assert phases.question({**REQUEST, "ended_ns": None}, now_ns=20_000)["to_ns"] == 20_000
    new = {**REQUEST, "last_ns": 1_000, "ended_ns": 1_000}
    assert phases.question(new, now_ns=20_000)["to_ns"] == 1_001  # the api refuses an empty range


def test_the_time_in_each_phase() -> None:
    assert phases.times(PARTS) == {"queued": 30.0, "prefill": 30.0, "store": 15.0}
    assert phases.time_texts(PARTS) == {"queued": "30 ms (50.0 %)", "prefill": "30 ms (50.0 %)", "store": "15 ms"}
    assert phases.time_texts([]) == {}


@pytest.mark.parametrize("dark", [False, True])
def test_every_phase_has_its_colour_in_the_legend(dark: bool) -> None:
    spent = phases.time_texts([Stretch(name, 0.0, 1.0) for name in NAMES])
    entries = request_charts.legend_of(spent, palette.PHASE, dark=dark)
    known = set(NAMES) - set(phases.OVER)
    assert {entry.name for entry in entries} == known
    assert len({entry.colour for entry in entries}) == len(known)
    assert all(entry.help for entry in entries)


def test_names_in_a_legend_are_text() -> None:
    drawn = legend([Entry("<b>x</b>", "#123456", value="1 & 2", help='"why"')])
    assert "<b>x</b>" not in drawn
    assert "&lt;b&gt;x" in drawn
    assert "1 &amp; 2" in drawn
    assert 'title="&quot;why&quot;"' in drawn


def test_after_a_call_that_raised_nothing_is_said_of_the_time() -> None:
    """A request of 7 ms was drawn over the ten seconds until its engine ended: 99.9 % failed."""
    parts = [Stretch("queued", 0.0, 7.0), Stretch("failed", 7.0, 10_000.0)]
    assert phases.time_texts(parts) == {"queued": "7 ms (100 %)"}
    assert phases.known(parts) == parts[:1]
