"""The live view's pure parts: addresses, questions, and the component's one module."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrail.dashboard.live.component import FOLDER, MODULES, joined
from kvtrail.dashboard.live.view import (
    DEFAULT_SPAN_MS,
    FILTERS,
    LONGEST_MS,
    View,
    as_query,
    of_component,
    of_query,
    payload,
    question,
)

AT_MS = 1_764_725_076_123.5
MOMENTS = st.integers(1_600_000_000_000_000, 1_900_000_000_000_000).map(lambda us: us / 1000)


@st.composite
def views(draw: st.DrawFn) -> View:
    span_ms = draw(st.integers(1, 86_400_000)) * 1.0
    to_ms = draw(st.none() | MOMENTS)
    paused = to_ms is not None and draw(st.booleans())
    begin, length = draw(MOMENTS), draw(st.integers(1, 10**6))
    return View(
        span_ms=span_ms, to_ms=to_ms, paused=paused, paused_ms=draw(MOMENTS) if paused else None,
        **{name: draw(st.text(max_size=8)) for name in FILTERS}, select=draw(st.none() | st.just((begin, begin + length))),
    )  # fmt: skip


@given(views())
def test_an_address_gives_back_the_view(view: View) -> None:
    read = of_query(as_query(view))
    assert (read.to_ms is None, read.paused) == (view.to_ms is None, view.paused)
    assert all(getattr(read, name) == getattr(view, name) for name in FILTERS)
    for name in ("span_ms", "to_ms", "paused_ms", "select"):
        assert getattr(read, name) == pytest.approx(getattr(view, name), abs=0.01), name


@given(views())
def test_what_the_component_says_comes_through_json(view: View) -> None:
    assert of_component(json.loads(json.dumps(asdict(view)))) == view


def test_the_usual_view_has_no_address() -> None:
    assert as_query(View()) == {}
    assert of_query({}) == View()
    assert as_query(View(span_ms=60_000)) == {"span": "60"}
    data = {"from": "2025-12-03T01:24:26.1235Z", "to": "2025-12-03T01:24:36.1235Z"}
    assert as_query(View(span_ms=10_000, to_ms=AT_MS)) == data


@pytest.mark.parametrize(
    "query",
    [
        {"span": "x"}, {"span": "-5"}, {"span": "nan"}, {"from": "yesterday", "to": "now"}, {"from": "2025-12-03"},
        {"from": "2025-12-03T02:00:00Z", "to": "2025-12-03T01:00:00Z"}, {"select": "~"}, {"select": "1~2~3"},
        {"paused": "yes"}, {"from": "9999-01-01", "to": "9999-01-02"},
    ],
)  # fmt: skip
def test_an_address_that_says_nonsense_is_the_usual_view(query: dict[str, str]) -> None:
    assert of_query(query) == View()


def test_a_pause_without_a_range_ends_where_it_was_made() -> None:
    view = of_query({"paused": "2025-12-03T01:24:36Z", "span": "60"})
    assert (view.paused, view.span_ms, view.to_ms) == (True, 60_000, view.paused_ms)


@pytest.mark.parametrize(
    "said",
    [
        None, "x", [], {"span_ms": "1"}, {"span_ms": float("inf")}, {"to_ms": -1}, {"to_ms": True}, {"select": [1]},
        {"select": [5, 4]}, {"paused": True},
    ],
)  # fmt: skip
def test_a_component_that_says_nonsense_is_not_believed(said: Any) -> None:
    assert of_component(said) == View()


def test_a_span_has_bounds() -> None:
    assert of_query({"span": "1e12"}).span_ms == LONGEST_MS
    assert of_query({"span": "1e-9"}).span_ms == 1


def test_more_than_the_range_is_asked_for() -> None:
    view = View(span_ms=10_000, to_ms=AT_MS, engine="e", q="chat")
    asked = question(view, now_ms=0)
    from_ns, to_ns = (int(asked[name]) for name in ("from_ns", "to_ns"))
    assert (to_ns - from_ns) / 1e6 == pytest.approx(20_000, abs=1)
    assert asked == {
        "from_ns": from_ns, "to_ns": to_ns, "engine": "e", "connector": "", "status": "", "q": "chat",
    }  # fmt: skip
    following = question(View(), now_ms=AT_MS)
    assert int(following["from_ns"]) < (AT_MS - DEFAULT_SPAN_MS) * 1e6 < AT_MS * 1e6 < int(following["to_ns"])
    early = question(View(span_ms=10_000, to_ms=1.0), now_ms=0)
    assert 0 == int(early["from_ns"]) < int(early["to_ns"])


def test_javascript_gets_numbers_that_it_can_hold() -> None:
    answer = {"from_ns": 1_764_725_076_123_456_789, "to_ns": 2, "now_ns": 3, "known": 4}
    data = payload(answer, View(), is_away=True)
    assert data["answer"]["from_ms"] == pytest.approx(1_764_725_076_123.456789)
    assert (data["is_away"], data["view"]["paused"]) == (True, False)
    assert payload(None, View(), is_away=False)["answer"] is None


def test_the_modules_are_joined_whole_and_nothing_is_named_twice() -> None:
    text = joined()
    assert {path.stem for path in FOLDER.glob("*.js")} == set(MODULES)
    assert not re.search(r"^import |^export (?!default)", text, flags=re.MULTILINE)
    assert len(re.findall(r"^export default", text, flags=re.MULTILINE)) == 1
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", text, flags=re.MULTILINE)
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.[jch]*")), ids=lambda p: p.name)
def test_the_components_files_fit_in_the_head(path: Any) -> None:
    assert len(path.read_text().splitlines()) <= 600
