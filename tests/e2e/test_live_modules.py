"""The live view's modules in the browser, without a page: pan and zoom, rows, clocks, and what the page is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browser import needs_chromium, playwright

from kvtrail.tracer.events.semconv import NO_END_RECORD

pytest.importorskip("streamlit", reason="the component is Streamlit's")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def ask(chromium: playwright.Browser) -> Any:
    """Evaluates an expression over the modules."""
    from kvtrail.dashboard.live.component import script

    names = "rangeOf, zoomed, panned, pinched, centred, showing, fitted, between, ticks, clock, lasting, count"
    names += ", Rows, modelOf, requestAt, counts, stepped, rangeText, deathsText, Live, Hover, listenToPointer"
    names += ", cutId, cutIds"
    text = script().replace("export default function", "function started", 1) + f"\nwindow.live = {{ {names} }};"
    page = chromium.new_page()
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


def test_a_moment_in_sight_moves_nothing(ask: Any) -> None:
    assert ask("m.centred({span_ms: 1000, to_ms: 5000}, 4500, 9000).to_ms") == 5000
    assert ask("m.centred({span_ms: 1000, to_ms: 5000}, 1000, 9000).to_ms") == 1500


def test_a_range_fits_itself_to_what_there_is(ask: Any) -> None:
    now = 10_000_000
    assert ask(f"m.fitted(null, {now})") == {"span_ms": 300_000, "to_ms": None}
    assert ask(f"m.fitted({{from: {now - 50_000}, to: {now}}}, {now})") == {"span_ms": 60_000, "to_ms": None}
    assert ask(f"m.fitted({{from: {now - 5_000_000}, to: {now}}}, {now})") == {"span_ms": 900_000, "to_ms": None}
    past = ask(f"m.fitted({{from: {now - 700_000}, to: {now - 600_000}}}, {now})")
    assert past["span_ms"] == 120_000, "half of it would be empty if it followed the present"
    assert now - 600_000 < past["to_ms"] < now - 590_000


def test_a_range_in_words(ask: Any) -> None:
    now = 1_764_725_076_123
    for to, said in (
        ("null", "now-1m to now"),
        (now, "01:23:36 to 01:24:36"),
        (now - 86_400_000, "2025-12-02 01:23:36 to 2025-12-02 01:24:36"),
    ):
        assert ask(f"m.rangeText({{span_ms: 60000, to_ms: {to}}}, {now})") == said
    assert ask(f"m.between({now - 86_400_000}, {now})") == "2025-12-02 01:24:36 to 2025-12-03 01:24:36"
    assert ask(f"m.between({now - 60_000}, {now})") == "2025-12-03 01:23:36 to 01:24:36"


def test_clocks_and_lengths(ask: Any) -> None:
    assert ask("[1, 1000, 60000].map((step) => m.clock(1764725076123, step))") == ["01:24:36.123", "01:24:36", "01:24"]
    said = ask("[0.009, 2.31, 1240, 123000, 300000, 7500000].map(m.lasting)")
    assert said == ["9 µs", "2.31 ms", "1.24 s", "2 min 03 s", "5 min", "2 h 05 min"]
    assert ask("[m.count(1, 'request'), m.count(1234, 'request')]") == ["1 request", "1,234 requests"]
    assert ask("m.ticks(0, 300000, 10)") == {"step": 30_000, "at": list(range(0, 300_001, 30_000))}


OPENED = """(() => {
  const sent = [], timers = new Map(), { setTimeout, clearTimeout } = window;
  window.setTimeout = (call) => timers.set(timers.size + 1, call).size;
  window.clearTimeout = (id) => timers.set(id, () => {});
  const send = (name, value) => sent.push([name, value]);
  const live = Object.create(m.Live.prototype);
  Object.assign(live, { view: {}, hover: new m.Hover(),
                        model: { requests: { request: ['r'], engine: ['e'] } }, redraw() {} });
  Object.assign(live, { setStateValue: send, setTriggerValue: send });
  live.change({ span_ms: 1, fit: true });
  live.change({ span_ms: 2, fit: true });
  live.open(0);
  timers.forEach((call) => call());
  Object.assign(window, { setTimeout, clearTimeout });
  return sent;
})()"""


def test_a_view_is_sent_before_a_request_opens_and_never_after(ask: Any) -> None:
    """After it, the view would become the address of the request's page."""
    assert ask(OPENED) == [["view", {"span_ms": 2, "fit": False}], ["open", {"request": "r", "engine": "e"}]]


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
    assert second == [1, 0, 2], "a has left: nothing moves"
    a, b, is_open, c, e, d = third
    assert (b, c) == (1, 0)
    assert is_open not in (a, b, c, e), "what goes on has the rest of its row for itself"
    assert e in (0, 1)
    assert d > max(a, b, c, e, is_open), "another engine, other rows"


REOPENED = """(() => {
  const requests = (ids) => ({request: ids, engine: ids.map(() => 'x'), begin: ids.map((_, n) => n), end: ids.map(() => 50),
                              is_open: ids.map(() => false)});
  const before = new m.Rows();
  before.place(requests(['a', 'b', 'c']), 100);
  const again = new m.Rows(JSON.parse(JSON.stringify(before.remembered())));
  return [...again.place(requests(['c', 'b', 'new']), 100).row];
})()"""


def test_rows_are_kept_when_the_page_is_opened_again(ask: Any) -> None:
    assert ask(REOPENED) == [2, 1, 0]


FOLDED = """(() => {
  const requests = {request: ['a', 'b', 'c'], engine: ['x', 'x', 'y'], begin: [0, 0, 0], end: [9, 9, 9],
                    is_open: [false, false, false]};
  const placed = (folded) => new m.Rows().place(requests, 100, {folded, names: {x: 'z-last', y: 'a-first'}});
  return [placed([]), placed(['x'])].map(({tops, heads, height}) => [tops, heads.map((each) => each.name), height]);
})()"""


def test_a_folded_engine_has_one_row_and_engines_are_ordered_by_name(ask: Any) -> None:
    (tops, names, height), (folded, _, less) = ask(FOLDED)
    assert names == ["a-first", "z-last"]
    assert len(set(tops)) == 3
    assert folded[1] == folded[2], "its rows lie on each other"
    assert less < height


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
  return [m.requestAt(model, [0], 310, 20), m.requestAt(model, [0], 330, 20),
          [...model.segments.goes_on], model.heads.map((head) => head.name)];
})()"""


def test_what_is_under_the_pointer(ask: Any) -> None:
    near, far, goes_on, names = ask(MODEL)
    assert (near, far) == (0, -1)
    assert goes_on == [0, 1, 0], "the last phase goes on, a transfer that ended does not"
    assert names == ["llama-0"], "an engine's rows have its name"


DEAD = """(() => {
  const answer = {
    from_ms: 1000, to_ms: 2000, now_ms: 2000, phases: ['decode'],
    requests: {request: ['r', 's', 't'], external: ['r', 's', 't'], engine: ['e', 'e', 'f'], begin_us: [0, 0, 0],
               end_us: [900000, 100000, 900000], is_open: [true, false, true], is_unsure: [false, false, false],
               status: ['running', 'finished', 'running']},
    segments: {lane: [0], phase: [0], begin_us: [0], end_us: [900000]},
    marks: {lane: [1], at_us: [5], rule: ['x'], title: ['t'], severity: ['s'], healed: [0]},
    gaps: {engine: [], begin_us: [], end_us: [], missing: []}, engine_names: {e: 'llama-0', f: 'llama-1'},
    deaths: [{engine: 'e', at_ms: 1500, ended_by: 'AssertionError: no', lost: 1}],
  };
  const model = m.modelOf(answer, new m.Rows());
  return [[...model.isLost], [...model.requests.end], [...model.segments.end], m.counts(model, 0, 1000).heads,
          m.deathsText(answer.deaths, answer.engine_names)];
})()"""


def test_what_was_open_when_an_engine_died_is_lost_and_ends_there(ask: Any) -> None:
    lost, ends, segments, inside, said = ask(DEAD)
    assert lost == [1, 0, 0]
    assert ends == [500, 100, 900]
    assert segments == [500]
    assert inside == [{"requests": 2, "findings": 1}, {"requests": 1, "findings": 0}]
    assert said == "Engine llama-0 died at 00:00:01 of AssertionError with 1 open request"


def test_a_process_that_ended_without_a_goodbye_is_not_said_to_have_died_of_something(ask: Any) -> None:
    """`died of its process ended without a goodbye`."""
    death = {"engine": "e", "at_ms": 1500, "ended_by": NO_END_RECORD, "lost": 1}
    assert ask(f"m.deathsText([{json.dumps(death)}], {{}})") == "Engine e was killed at 00:00:01 with 1 open request"


RESTING = """((story) => {
  // 'a' of engine e at 0 to 100 ms, 'b' at 160 to 250 ms of the same row; the picture follows the present, a pixel each ms.
  const answer = (requests) => ({
    from_ms: 0, to_ms: 1000, now_ms: 1000, phases: ['decode'],
    requests: {request: requests, external: requests, engine: requests.map(() => 'e'),
               begin_us: requests.map((id) => ({a: 0, b: 160000, z: 900000})[id]),
               end_us: requests.map((id) => ({a: 100000, b: 250000, z: 990000})[id]), is_open: requests.map(() => false),
               is_unsure: requests.map(() => false), status: requests.map(() => 'finished'),
               verdict: requests.map(() => 'ok'), findings: requests.map(() => 0), complete: requests.map(() => true),
               connector: requests.map(() => '')},
    segments: {lane: [], phase: [], begin_us: [], end_us: []},
    marks: {lane: [], at_us: [], rule: [], title: [], severity: [], healed: []},
    gaps: {engine: [], begin_us: [], end_us: [], missing: []}, engine_names: {},
  });
  const canvas = document.createElement('canvas');
  Object.assign(canvas.style, {position: 'fixed', left: 0, top: 0, width: '1000px', height: '300px'});
  document.body.append(canvas);
  canvas.setPointerCapture = () => {};
  const named = [], opened = [];
  const live = Object.create(m.Live.prototype);
  let now = 1000, drawn = null;
  Object.assign(live, {
    canvas, view: {span_ms: 1000, to_ms: null}, rows: new m.Rows(), hover: new m.Hover(), scroll: 0, chosen: -1,
    card: {request: (model, number) => named.push(model.requests.request[number]), mark() {},
           hide: () => named.push('')},
    find: () => document.createElement('div'), now: () => now, sendSoon() {}, show() { live.draw(); }, redraw() {},
    setTriggerValue: (name, {request}) => opened.push(request), drawWords() {}, drawLanes() {},
    theme: {},
  });
  m.listenToPointer(live);
  const send = (type, x) => {
    const y = 20 + live.model.tops[0] + 12;
    canvas.dispatchEvent(new PointerEvent(type, {clientX: x, clientY: y, pointerId: 1, button: 0, bubbles: true}));
  };
  const act = {
    take: (requests) => live.build(answer(requests)),
    move: (x) => send('pointermove', x), leave: () => send('pointerleave', 0),
    down: (x) => send('pointerdown', x), up: (x) => send('pointerup', x), later: (ms) => { now += ms; live.draw(); },
    zoom: () => { live.change({...live.view, span_ms: 500}); live.draw(); },
  };
  for (const [name, argument] of story) act[name](argument);
  canvas.remove();
  return [named.at(-1) ?? '', opened];
})"""
BOTH = ["take", ["a", "b"]]
CLICK = [["down", 50], ["up", 50]]


@pytest.mark.parametrize(
    ("story", "named", "opened"),
    [
        ([BOTH, ["move", 50], *CLICK], "a", ["a"]),
        # It slides on: b lies under the pointer, then nothing does.
        ([BOTH, ["move", 50], ["later", 150], *CLICK], "a", ["a"]),
        ([BOTH, ["move", 50], ["later", 500], *CLICK], "a", ["a"]),
        # An answer numbers the requests differently, even between press and release, or has no such request any more.
        ([BOTH, ["move", 50], ["later", 150], ["take", ["z", "b", "a"]], *CLICK], "a", ["a"]),
        ([BOTH, ["move", 50], ["down", 50], ["later", 150], ["take", ["b", "z", "a"]], ["up", 50]], "a", ["a"]),
        ([BOTH, ["move", 50], ["later", 150], ["take", ["b"]], *CLICK], "b", ["b"]),
        ([BOTH, ["move", 50], ["later", 500], ["take", ["b"]], *CLICK], "", []),
        # What comes to a resting pointer is named as well.
        ([BOTH, ["move", 300], ["later", 650], ["take", ["a", "b", "z"]], ["down", 300], ["up", 300]], "z", ["z"]),
        # No hand is quite still: an event without movement, or with a pixel of it, names nothing else.
        ([BOTH, ["move", 50], ["later", 150], ["move", 50], *CLICK], "a", ["a"]),
        ([BOTH, ["move", 50], ["later", 150], ["move", 51], *CLICK], "a", ["a"]),
        # Whoever moves the pointer, or the picture, means what is there then.
        ([BOTH, ["move", 50], ["later", 150], ["move", 60], ["down", 60], ["up", 60]], "b", ["b"]),
        ([BOTH, ["move", 50], ["zoom", 0], *CLICK], "", []),
        ([BOTH, ["move", 50], ["leave", 0], ["later", 150], *CLICK], "", ["b"]),
    ],
    ids=[
        "at once", "over another", "over nothing", "numbered again", "between press and release", "gone, another there",
        "gone", "it comes", "an event without movement", "a pixel", "pointer moved", "picture moved", "a finger",
    ],
)  # fmt: skip
def test_a_click_opens_what_the_card_names(ask: Any, story: list[Any], named: str, opened: list[str]) -> None:
    """Hover, rest, click: the picture slides under a resting pointer, and another request opened, or none."""
    assert ask(f"{RESTING}({json.dumps(story)})") == [named, opened]


WALKED = """(() => {
  const answer = {
    from_ms: 0, to_ms: 1000, now_ms: 1000, phases: ['decode'],
    requests: {request: ['a', 'b', 'c'], external: ['a', 'b', 'c'], engine: ['e', 'e', 'e'], begin_us: [0, 50000, 300000],
               end_us: [100000, 200000, 400000], is_open: [false, false, false], is_unsure: [false, false, false],
               status: ['finished', 'finished', 'finished']},
    segments: {lane: [], phase: [], begin_us: [], end_us: []},
    marks: {lane: [], at_us: [], rule: [], title: [], severity: [], healed: []},
    gaps: {engine: [], begin_us: [], end_us: [], missing: []}, engine_names: {},
  };
  const model = m.modelOf(answer, new m.Rows());
  const place = {from: 0, to: 1000};
  const walk = (...steps) => steps.reduce((at, by) => m.stepped(model, at, place, by), -1);
  const [down, up, on, back] = [{rows: 1}, {rows: -1}, {within: 1}, {within: -1}];
  return [walk({}), walk({}, down), walk({}, down, down), walk({}, on), walk({}, on, back), walk({}, on, down, up)];
})()"""


def test_keys_go_from_request_to_request(ask: Any) -> None:
    first, below, end, beside, back, near = ask(WALKED)
    assert (first, below, end) == (0, 1, 1)
    assert (beside, back) == (2, 0)
    assert near == 0, "up again to what is nearest in time to where one was"


def test_ids_that_differ_only_in_their_middle_are_not_cut_alike(ask: Any) -> None:
    """Those of a P/D proxy begin and end alike."""
    assert ask("m.cutId('chat-1', 6)") == "chat-1"
    assert ask("m.cutId('0123456789', 5)") == "01…89"
    assert ask("m.cutId('0123456789', 1)") == "…"
    alike = ["a" * 20 + middle + "z" * 20 for middle in "123"]
    other = "b" * 43
    assert ask(f"m.cutIds({json.dumps([*alike, other, other])}, 9)") == [*alike, "bbbb…bbbb", "bbbb…bbbb"]
