"""The live view's modules in the browser, without a page: pan and zoom, rows, clocks, and what the page is sent."""

from __future__ import annotations

from typing import Any

import pytest
from browser import needs_chromium, playwright

pytest.importorskip("streamlit", reason="the component is Streamlit's")
pytestmark = needs_chromium


@pytest.fixture
def ask(page: playwright.Page) -> Any:
    """Evaluates an expression over the modules."""
    from kvtrail.dashboard.live.component import joined

    names = "rangeOf, zoomed, panned, pinched, centred, showing, ticks, clock, lasting, count"
    names += ", Rows, modelOf, requestAt, spent, Live"
    text = joined().replace("export default function", "function started", 1) + f"\nwindow.live = {{ {names} }};"
    page.goto("about:blank")
    page.add_script_tag(content=text, type="module")
    page.wait_for_function("window.live")
    return lambda expression: page.evaluate(f"() => {{ const m = window.live; return ({expression}); }}")


def test_zoom_keeps_the_moment_under_the_pointer(ask: Any) -> None:
    view = ask("m.zoomed({span_ms: 1000, to_ms: 5000}, 0.5, 4250, 9000)")
    assert view == {"span_ms": 500, "to_ms": 4625}  # a quarter from the left before, and after
    assert ask("m.rangeOf({span_ms: 500, to_ms: 4625}, 9000)") == {"from": 4125, "to": 4625}


def test_zoom_follows_the_present_and_has_an_end(ask: Any) -> None:
    assert ask("m.zoomed({span_ms: 1000, to_ms: null}, 0.5, 0, 9000)") == {"span_ms": 500, "to_ms": None}
    assert ask("m.zoomed({span_ms: 1, to_ms: null}, 0.001, 0, 9000).span_ms") == 1
    assert ask("m.zoomed({span_ms: 1e8, to_ms: null}, 1e9, 0, 9000).span_ms") == 7 * 86_400_000


def test_two_fingers_keep_the_moment_between_them(ask: Any) -> None:
    # Twice as far apart around the middle, which moves from a quarter to a half: 4250 is what is under it.
    view = ask("m.pinched({span_ms: 1000, to_ms: 5000}, 0.5, 0.25, 0.5, 9000)")
    assert view == {"span_ms": 500, "to_ms": 4500}
    # Who follows the present goes on to, unless the fingers carry it off.
    assert ask("m.pinched({span_ms: 1000, to_ms: null}, 0.5, 0.5, 0.51, 9000)") == {"span_ms": 500, "to_ms": None}
    assert ask("m.pinched({span_ms: 1000, to_ms: null}, 0.5, 0.5, 0.9, 9000)") == {"span_ms": 500, "to_ms": 8550}


def test_moving_leaves_the_present_and_comes_back_to_it(ask: Any) -> None:
    assert ask("m.panned({span_ms: 1000, to_ms: null}, -100, 9000)") == {"span_ms": 1000, "to_ms": 8900}
    assert ask("m.panned({span_ms: 1000, to_ms: 8900}, 200, 9000)") == {"span_ms": 1000, "to_ms": None}
    paused = ask("m.panned({span_ms: 1000, to_ms: 8900, paused: true}, 200, 9000)")
    assert paused == {"span_ms": 1000, "to_ms": 9100, "paused": True}


def test_a_moment_in_sight_moves_nothing(ask: Any) -> None:
    assert ask("m.centred({span_ms: 1000, to_ms: 5000}, 4500, 9000).to_ms") == 5000
    assert ask("m.centred({span_ms: 1000, to_ms: 5000}, 1000, 9000).to_ms") == 1500


def test_clocks_and_lengths(ask: Any) -> None:
    assert ask("[1, 1000, 60000].map((step) => m.clock(1764725076123, step))") == ["01:24:36.123", "01:24:36", "01:24"]
    said = ask("[0.009, 2.31, 1240, 123000, 300000, 7500000].map(m.lasting)")
    assert said == ["9 µs", "2.31 ms", "1.24 s", "2 min 03 s", "5 min", "2 h 05 min"]
    assert ask("[m.count(1, 'request'), m.count(1234, 'request')]") == ["1 request", "1,234 requests"]
    assert ask("m.ticks(0, 300000, 10)") == {"step": 30_000, "at": list(range(0, 300_001, 30_000))}


OPENED = """(() => {
  const sent = [];
  const send = (name, value) => sent.push([name, value]);
  const live = Object.create(m.Live.prototype);
  Object.assign(live, { model: { requests: { request: ['r'], engine: ['e'] } }, redraw() {} });
  Object.assign(live, { setStateValue: send, setTriggerValue: send });
  live.change({ span_ms: 1 });
  live.change({ span_ms: 2 });
  live.open(0);
  return new Promise((done) => setTimeout(() => done(sent), 500));
})()"""


def test_a_view_is_sent_before_a_request_opens_and_never_after(ask: Any) -> None:
    """After it, the view would become the address of the request's page."""
    assert ask(OPENED) == [["view", {"span_ms": 2}], ["open", {"request": "r", "engine": "e"}]]


PLACE = """(() => {
  const rows = new m.Rows();
  const place = (list) => {
    const of = (name) => list.map((each) => each[name]);
    const requests = {request: of('id'), engine: of('engine'), begin: of('from'), end: of('to'), is_open: of('open')};
    return [...rows.place(requests, 100).row];
  };
  const a = {id: 'a', engine: 'x', from: 0, to: 10}, b = {id: 'b', engine: 'x', from: 5, to: 15};
  const c = {id: 'c', engine: 'x', from: 20, to: 30}, d = {id: 'd', engine: 'y', from: 0, to: 1};
  const o = {id: 'o', engine: 'x', from: 12, to: 13, open: true}, e = {id: 'e', engine: 'x', from: 40, to: 41};
  return [place([a, b, c, d]), place([b, c, d]), place([a, b, o, c, e, d])];
})()"""


def test_requests_share_rows_and_keep_them(ask: Any) -> None:
    first, second, third = ask(PLACE)
    assert first == [0, 1, 0, 2]
    assert second == [1, 0, 2], "a has left: nobody moves"
    a, b, is_open, c, e, d = third
    assert (b, c) == (1, 0)
    assert is_open not in (a, b, c, e), "what goes on has the rest of its row for itself"
    assert e in (0, 1)
    assert d > max(a, b, c, e, is_open), "another engine, other rows"


MODEL = """(() => {
  const answer = {
    from_ms: 1000, to_ms: 2000, now_ms: 2000, phases: ['queued', 'load', 'decode'],
    requests: {request: ['r'], external: ['r'], engine: ['e'], begin_us: [0], end_us: [300000], is_open: [true],
               is_unsure: [false]},
    segments: {lane: [0, 0, 0], phase: [0, 2, 1], begin_us: [0, 100000, 150000], end_us: [100000, 300000, 200000]},
    marks: {lane: [0], at_us: [5], rule: ['x'], title: ['t'], severity: ['s'], healed: [0]},
    gaps: {engine: [], begin_us: [], end_us: [], missing: []}, engine_names: {e: 'llama-0'},
  };
  const model = m.modelOf(answer, new m.Rows());
  return [m.requestAt(model, 0, 310, 20), m.requestAt(model, 0, 330, 20), m.spent(model, 50, 200),
          [...model.segments.goes_on], model.heads.map((head) => head.name)];
})()"""


def test_what_is_under_the_pointer_and_in_a_range(ask: Any) -> None:
    near, far, spent, goes_on, names = ask(MODEL)
    assert (near, far) == (0, -1)
    assert spent == [["decode", 100], ["queued", 50], ["load", 50]]
    assert goes_on == [0, 1, 0], "the last phase goes on, a transfer that ended does not"
    assert names == ["llama-0"], "an engine's rows have its name"
