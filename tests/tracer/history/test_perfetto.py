"""The file for ui.perfetto.dev and chrome://tracing, held against the format, and against what it is to show."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import collector
import pytest
from click.testing import CliRunner, Result
from history import history
from wire import encoded

from kvtrail.__main__ import main
from kvtrail.tracer.ingest import otlp_json

DRIFT = (
    "L 749 c0 h256 -> 256\nA 256 [1-24]\nS 256+400 [1-24]\nS 656+93 []\nS 749+1 []\nP free 7\n"
    "L 750 c336 -> later\nL 750 c336 h256 -> 256 cached\nA 256 [1-24]\nend"
)
ASYNC = "b: L 90 c0 h64 -> 64 async\nb: A 64 [1 2]\nb: load 64/64\nb: R\nb: S 64+26 [1-3]\nb: end delayed\nb: sent"
Data = dict[str, Any]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["audit", "--export", "perfetto", *map(str, arguments)], catch_exceptions=False)


def exported(tmp_path: Path, *texts: str, foreign: int = 0) -> list[Data]:
    """The trace events of these requests, as they are in the file."""
    path = tmp_path / "t.jsonl"
    lines = []
    for number, text in enumerate(texts):
        others = [collector.foreign_span(n) for n in range(foreign if number == 0 else 0)]
        events = history(text, request=f"r-{number}-0123abcd", recorder=f"rec-{number}")
        lines.append(collector.line(events, *others))
    path.write_text("\n".join(lines))
    result = run(path, "-o", tmp_path / "out.json", "--force")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out.json").read_text(), parse_constant=lambda constant: pytest.fail(constant))
    assert set(data) == {"displayTimeUnit", "traceEvents"}
    check(data["traceEvents"])
    trace_events: list[Data] = data["traceEvents"]
    return trace_events


FIELDS = {
    "M": {"ph", "pid", "tid", "name", "args"},
    "X": {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"},
    "i": {"ph", "pid", "tid", "name", "cat", "ts", "s", "args"},
    "C": {"ph", "pid", "tid", "name", "ts", "args"},
    "s": {"ph", "pid", "tid", "name", "cat", "ts", "id", "bp"},
    "f": {"ph", "pid", "tid", "name", "cat", "ts", "id", "bp"},
}


def check(events: list[Data]) -> None:
    """Hold trace events against the format: fields and types, names for all tracks, slices that nest, arrows in pairs
    between slices that are there."""
    named: dict[str, set[Any]] = defaultdict(set)
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    arrows: dict[int, list[Data]] = defaultdict(list)
    for event in events:
        assert set(event) == FIELDS[event["ph"]], event
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["name"]
        assert type(event["name"]) is str
        if event["ph"] == "M":
            where = event["pid"] if event["name"].startswith("process") else (event["pid"], event["tid"])
            named[event["name"]].add(where)
            (key,) = event["args"]
            assert key == ("name" if event["name"].endswith("_name") else "sort_index")
            continue
        assert type(event["ts"]) is float
        assert event["ts"] >= 0
        assert event["ts"] * 8 % 1 == 0, "no fraction that a double cannot hold"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values())
        elif event["ph"] == "i":
            assert event["s"] in "tpg"
        else:
            arrows[event["id"]].append(event)
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xi"}
    assert used <= named["thread_name"]
    assert {e["pid"] for e in events} == named["process_name"]
    for held in slices.values():
        _assert_nested(sorted(held, key=lambda s: (s[0], -s[1])))
    for pair in arrows.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
        assert pair[0]["ts"] <= pair[1]["ts"]
        for event in pair:
            assert any(a <= event["ts"] <= b for a, b in slices[event["pid"], event["tid"]])


def _assert_nested(slices: list[tuple[float, float]]) -> None:
    around: list[tuple[float, float]] = []
    for start, end in slices:
        while around and around[-1][1] <= start:
            around.pop()
        assert not around or end <= around[-1][1], "a slice reaches beyond the one that it begins in"
        around.append((start, end))


def named(events: list[Data], category: str, tid: int | None = None) -> list[str]:
    found = [e for e in events if e.get("cat") == category and e["ph"] in "Xi" and tid in (None, e["tid"])]
    return [e["name"] for e in sorted(found, key=lambda e: (e["ts"], -e.get("dur", 0)))]


def test_a_request_is_a_slice_with_its_phases_and_calls(tmp_path: Path) -> None:
    events = exported(tmp_path, DRIFT)
    assert named(events, "request") == ["r-0-0123abcd"]
    assert named(events, "phase") == [
        "queued",
        "lookup",
        "queued",
        "prefill",
        "decode",
        "preempted",
        "lookup",
        "preempted",
    ]
    assert named(events, "call")[:4] == ["arrival", "lookup", "allocation", "schedule"]
    lookup = [e for e in events if e.get("cat") == "call" and e["name"] == "lookup"][-1]
    assert (lookup["args"]["computed"], lookup["args"]["returned"], lookup["args"]["cached"]) == (336, 256, True)
    assert "336 of 750 computed" in lookup["args"]["says"]
    alloc = next(e for e in events if e["name"] == "allocation")
    assert alloc["args"]["blocks_ids"] == "1-24"


def test_an_asynchronous_load_is_waited_for_and_copied_on_a_track_of_its_own(tmp_path: Path) -> None:
    events = exported(tmp_path, ASYNC)
    phases = ["queued", "lookup", "queued", "waiting for remote KV", "queued", "prefill", "store"]
    assert named(events, "phase") == phases
    (copy,) = [e for e in events if e.get("cat") == "worker"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert (copy["name"], tracks[copy["pid"], copy["tid"]]) == ("load b-r-0-0123abcd", "worker 0")
    assert [e["args"] for e in events if e["name"] == "tokens loaded"] == [{"tokens loaded": 64}]


def test_requests_that_overlap_lie_on_tracks_of_their_own_and_others_share_one(tmp_path: Path) -> None:
    one = "a: L 90 c0 -> 0\nb: L 90 c0 -> 0\na: end\nc: L 90 c0 -> 0\nb: end\nc: end\nd: L 90 c0 -> 0\nd: end"
    events = exported(tmp_path, one)
    tracks = {e["name"][0]: e["tid"] for e in events if e["ph"] == "X" and e["name"].endswith("0123abcd")}
    assert len({tracks["a"], tracks["b"]}) == len({tracks["b"], tracks["c"]}) == 2
    assert tracks["c"] == tracks["a"]
    assert len(set(tracks.values())) == 2
    open_ = [e["args"]["open requests"] for e in events if e["name"] == "open requests"]
    assert open_ == [1, 2, 1, 2, 1, 0, 1, 0]


def test_engines_are_processes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    two = [history(DRIFT, engine=engine, recorder=engine) for engine in ("east", "west")]
    path.write_text("\n".join(otlp_json.to_json_line(encoded(events)) for events in two))
    assert run(path, "-o", tmp_path / "out.json").exit_code == 0
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    check(events)
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["engine east", "engine west"]
    assert Counter(e["pid"] for e in events if e["name"].startswith("finding")) == {1: 1, 2: 1}


def test_a_finding_is_a_mark_with_arrows_between_its_witnesses(tmp_path: Path) -> None:
    events = exported(tmp_path, DRIFT)
    (mark,) = [e for e in events if e["ph"] == "i" and e["cat"] == "finding"]
    assert mark["name"] == "finding: stale-lookup"
    assert "at most max(0, 256 - 336) = 0 can be new" in mark["args"]["explanation"]
    tail, tip = [e for e in events if e["ph"] in "sf"]
    lookups = [e["ts"] for e in events if e.get("cat") == "call" and e["name"] == "lookup"]
    assert (tail["ts"], tip["ts"]) == (lookups[0], lookups[2])
    assert mark["ts"] == tip["ts"]


def test_what_concerns_no_request_and_spans_of_others_have_their_tracks(tmp_path: Path) -> None:
    events = exported(tmp_path, "evict a\nreset\nL 90 c0 -> 0\nend", foreign=3)
    assert named(events, "engine") == ["eviction", "reset"]
    assert named(events, "foreign") == ["llm_request"] * 3
    assert len({e["tid"] for e in events if e.get("cat") == "foreign"}) == 3, "they overlap"
    assert "gateway: spans of others" in [e["args"].get("name") for e in events if e["name"] == "process_name"]


@pytest.mark.parametrize(
    "text", ["sent", "b: L 5 c0 -> 0\nend", "P\nP\nS 0+5\nL 9 c0 -> 9\nA 3 !no", "load 3/9 rank 2\nend"]
)
def test_histories_without_a_beginning_or_an_end_are_shown_too(tmp_path: Path, text: str) -> None:
    assert named(exported(tmp_path, text), "request")


def test_calls_within_calls_and_backward_clocks_still_nest(tmp_path: Path) -> None:
    events = history(DRIFT)
    for number, event in enumerate(events):
        event.start_ns += 7 * number
        event.end_ns += 13 * number
    events[3].start_ns = events[1].start_ns
    events[5].start_ns = events[5].end_ns - 10**10
    events[6].end_ns = events[6].start_ns + 10**12
    path = tmp_path / "t.jsonl"
    path.write_text(otlp_json.to_json_line(encoded(events)))
    assert run(path, "-o", tmp_path / "out.json").exit_code == 0
    check(json.loads((tmp_path / "out.json").read_text())["traceEvents"])


def test_export_says_what_it_did_not_read_and_does_not_understand(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = collector.line(history(DRIFT)).replace("kv.schedule", "kv.dream")
    path.write_text(line + "\n{half")
    result = run(path, "-o", tmp_path / "out.json")
    assert result.exit_code == 0
    assert f"not read: {path}:2:" in result.output
    assert "not understood: kv.dream, 3 times: a newer kvtrail wrote it" in result.output


def test_export_keeps_what_is_there_and_names_what_it_cannot_use(tmp_path: Path) -> None:
    path, output = tmp_path / "t.jsonl", tmp_path / "out.json"
    path.write_text(collector.line(history(DRIFT)))
    output.write_text("precious")
    kept = run(path, "-o", output)
    assert (kept.exit_code, output.read_text()) == (2, "precious")
    assert "already exists; --force overwrites it" in kept.output
    assert "is one of the files to read" in run(path, "-o", path, "--force").output
    gone = run(tmp_path / "none", "-o", tmp_path / "x.json")
    assert gone.exit_code == 2
    assert f"{tmp_path / 'none'}: No such file" in gone.output
    nowhere = run(path, "-o", tmp_path / "no" / "x.json")
    assert nowhere.exit_code == 2
    assert "No such file or directory" in nowhere.output
    assert not (tmp_path / "x.json").exists()


def test_export_to_the_standard_output_is_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(collector.line(history(DRIFT)))
    check(json.loads(run(path, "-o", "-").stdout)["traceEvents"])


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz", "run"])
def test_export_needs_nothing_but_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = collector.line(history(DRIFT)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = run(tmp_path / name)
    assert result.exit_code == 0, result.output
    assert "run.perfetto.json: " in result.output
    assert [path.name for path in Path().iterdir()] == ["run.perfetto.json"]
    check(json.loads(Path("run.perfetto.json").read_text())["traceEvents"])
    assert "already exists" in run(tmp_path / name).output
