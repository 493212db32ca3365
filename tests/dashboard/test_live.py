"""The live view's pure parts: addresses, questions, and the component's one module."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from kvtrail.dashboard.live.component import FOLDER, MODULES, payload, script
from kvtrail.dashboard.live.view import (
    CLOSEST_MS,
    DEFAULT_SPAN_MS,
    FIT_MS,
    LONGEST_MS,
    View,
    as_query,
    closer_question,
    of_component,
    of_query,
    question,
    typed_view,
)

AT_MS = 1_764_725_076_123.5
HOUR_MS = 3_600_000.0
NO_COMMAND = {"count": 0, "view": None}
MOMENTS = st.integers(1_600_000_000_000_000, 1_900_000_000_000_000).map(lambda us: us / 1000)


@st.composite
def views(draw: st.DrawFn) -> View:
    # An address has a moment to the microsecond, and a length that follows the present to the second.
    to_ms = draw(st.none() | MOMENTS)
    span_ms = draw(st.integers(2, 86_400_000) if to_ms else st.integers(1, 86_400).map(lambda s: s * 1000)) * 1.0
    fit = draw(st.booleans()) and to_ms is None
    return View(
        fit=fit, span_ms=DEFAULT_SPAN_MS if fit else span_ms, to_ms=to_ms,
        folded=tuple(draw(st.lists(st.text(min_size=1, max_size=8), max_size=3))),
    )  # fmt: skip


def read(query: dict[str, Any]) -> View:
    """The view of an address, read at `AT_MS`."""
    texts = {name: text for name, text in query.items() if isinstance(text, str)}
    return of_query(texts, folded=query.get("fold", ()), now_ms=AT_MS)


@given(views())
def test_an_address_gives_back_the_view(view: View) -> None:
    again = read(as_query(view))
    assert (again.fit, again.to_ms is None) == (view.fit, view.to_ms is None)
    assert again.folded == view.folded
    for name in ("span_ms", "to_ms"):
        assert getattr(again, name) == pytest.approx(getattr(view, name), abs=2), name


@given(views())
def test_what_the_component_says_comes_through_json(view: View) -> None:
    assert of_component(json.loads(json.dumps(to_builtins(view)))) == view


def test_a_whole_millisecond_stays_one() -> None:
    """One in eight of today's came out as a hair less, and was shown as the millisecond before."""
    for milliseconds in range(1000):
        seen = read({"from": "2026-11-22T20:00:00Z", "to": f"2026-11-22T20:00:01.{milliseconds:03}Z"})
        assert (seen.to_ms or 0) % 1000 == milliseconds
        assert seen.span_ms == 1000 + milliseconds


def test_the_usual_view_fits_itself_and_has_no_address() -> None:
    assert as_query(View()) == {}
    assert read({}) == View()
    assert View().fit
    assert as_query(View(fit=False, span_ms=60_000)) == {"from": "now-1m", "to": "now"}
    assert as_query(View(fit=False, span_ms=90_000)) == {"from": "now-90s", "to": "now"}
    written = {"from": "2025-12-03T01:24:26.123Z", "to": "2025-12-03T01:24:36.123Z"}
    assert as_query(View(fit=False, span_ms=10_000, to_ms=AT_MS)) == written


def test_an_address_is_read_as_on_the_other_pages() -> None:
    assert read({"from": "now-2h", "to": "now"}) == View(fit=False, span_ms=2 * HOUR_MS)
    assert read({"from": "now-2h"}) == View(fit=False, span_ms=2 * HOUR_MS)
    before = read({"from": "now-2h", "to": "now-1h"})
    assert (before.fit, before.span_ms) == (False, HOUR_MS)
    assert before.to_ms == pytest.approx(AT_MS - HOUR_MS, abs=1)


@pytest.mark.parametrize(
    "query",
    [
        {"from": "yesterday", "to": "now"}, {"to": "2025-12-03"}, {"from": "now", "to": "now-1h"},
        {"from": "2025-12-03T02:00:00Z", "to": "2025-12-03T01:00:00Z"}, 
        {"from": "9999-01-01", "to": "9999-01-02"},
    ],
)  # fmt: skip
def test_an_address_that_says_nonsense_is_the_usual_view(query: dict[str, str]) -> None:
    assert read(query) == View()


def test_a_typed_time_is_a_range() -> None:
    view = View(fit=False, span_ms=60_000)
    assert typed_view("now-2h", view, now_ms=AT_MS) == View(fit=False, span_ms=2 * HOUR_MS)
    middle = typed_view("2025-12-02 14:59", view, now_ms=AT_MS)
    assert middle is not None
    assert as_query(middle) == {"from": "2025-12-02T14:58:30Z", "to": "2025-12-02T14:59:30Z"}
    assert typed_view("tomorrow", view, now_ms=AT_MS) is None


@pytest.mark.parametrize(
    "said",
    [
        None, "x", [], {"span_ms": "1"}, {"span_ms": float("inf")}, {"to_ms": -1}, {"to_ms": True},
    ],
)  # fmt: skip
def test_a_component_that_says_nonsense_is_not_believed(said: Any) -> None:
    assert of_component(said) == View()


def test_a_span_has_bounds() -> None:
    for span_ms in (LONGEST_MS * 2, 1e-9):
        assert of_component({"span_ms": span_ms}) == View()


def test_more_than_the_range_is_asked_for() -> None:
    chosen = {"engine": "e", "q": "chat", "where": "new > 5", "verdict": "ok"}
    asked = question(View(fit=False, span_ms=10_000, to_ms=AT_MS), chosen, end_ms=0)
    from_ns, to_ns = (int(asked[name]) for name in ("from_ns", "to_ns"))
    assert (to_ns - from_ns) / 1e6 == pytest.approx(20_000, abs=1)
    assert asked == {
        "from_ns": from_ns, "to_ns": to_ns, "engine": "e", "q": "chat", "where": "new > 5",
    }, "lanes have no filter by the verdict"  # fmt: skip
    assert {"outcome": "lost"}.items() <= question(View(), {"status": "lost"}, end_ms=0).items()
    assert {"outcome": "running", "status": "queued"}.items() <= question(
        View(), {"status": "queued"}, end_ms=0
    ).items()
    following = question(View(fit=False), {}, end_ms=AT_MS)
    assert int(following["from_ns"]) < (AT_MS - DEFAULT_SPAN_MS) * 1e6 < AT_MS * 1e6 < int(following["to_ns"])
    early = question(View(fit=False, span_ms=10_000, to_ms=1.0), {}, end_ms=0)
    assert 0 == int(early["from_ns"]) < int(early["to_ns"])


def test_a_view_that_fits_itself_asks_for_the_most_that_it_may_show() -> None:
    asked = question(View(span_ms=10_000, to_ms=1.0), {}, end_ms=AT_MS)
    assert int(asked["from_ns"]) < (AT_MS - FIT_MS) * 1e6 < AT_MS * 1e6 < int(asked["to_ns"])


def test_short_contents_are_requested_again_to_distinguish_their_phases() -> None:
    """An engine that died after a second had lanes of one phase each: the answer for half an hour has 0.9 s per point."""
    asked = question(View(), {}, end_ms=AT_MS)
    died_ms = AT_MS - 120_000
    begin_us = int((died_ms - 900) * 1000 - int(asked["from_ns"]) / 1000)
    answer = {
        **asked,
        "requests": {"begin_us": [begin_us, begin_us + 400_000], "end_us": [begin_us + 300_000, begin_us + 890_000]},
        "marks": {"at_us": [begin_us + 200_000]},
        "deaths": [{"at_ns": int(died_ms * 1e6)}],
    }
    closer = closer_question(View(), {"q": "chat"}, answer)
    assert closer is not None
    assert closer["q"] == "chat"
    assert int(closer["from_ns"]) / 1e6 == pytest.approx(died_ms - 900 - CLOSEST_MS, abs=1)
    assert int(closer["to_ns"]) / 1e6 == pytest.approx(died_ms + CLOSEST_MS, abs=1)
    assert closer_question(View(fit=False), {}, answer) is None, "somebody chose the range"
    long = {"begin_us": [begin_us - 300_000_000], "end_us": [begin_us]}
    assert closer_question(View(), {}, {**answer, "requests": long}) is None, "they fill the answer"
    assert closer_question(View(), {}, {**answer, "requests": {"begin_us": [], "end_us": []}}) is None


def test_javascript_gets_numbers_that_it_can_hold() -> None:
    answer = {"from_ns": 1_764_725_076_123_456_789, "to_ns": 2, "now_ns": 3, "known": 4}
    data = payload(answer, View(), command=NO_COMMAND, is_away=True)
    assert data["answer"]["from_ms"] == pytest.approx(1_764_725_076_123.456789)
    assert (data["is_away"], data["view"]["fit"], data["answer"]["deaths"]) == (True, True, [])
    assert payload(None, View(), command=NO_COMMAND, is_away=False)["answer"] is None


def test_a_marker_has_the_words_of_the_other_charts() -> None:
    row = {"kind": "deploy", "at_ns": 60 * 10**9, "engine_name": "llama-a", "text": "was started", "count": 2}
    (marker,) = payload(None, View(), command=NO_COMMAND, is_away=False, markers=[row])["markers"]
    assert marker == {"at_ms": 60_000, "kind": "deploy", "text": "00:01:00 UTC 2 × deploy: llama-a was started"}  # noqa: RUF001


def test_the_modules_are_joined_whole_and_nothing_is_named_twice() -> None:
    text = script()
    assert {path.stem for path in FOLDER.glob("*.js")} == set(MODULES)
    assert not re.search(r"^import |^export (?!default)", text, flags=re.MULTILINE)
    assert len(re.findall(r"^export default", text, flags=re.MULTILINE)) == 1
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", text, flags=re.MULTILINE)
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.[jch]*")), ids=lambda p: p.name)
def test_the_components_files_fit_in_the_head(path: Any) -> None:
    assert len(path.read_text().splitlines()) <= 600
