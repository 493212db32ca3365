"""Loading a history: the same whatever the order of files and lines."""

from __future__ import annotations

import json
import random
from pathlib import Path

from history import history
from wire import encoded, to_json_line

from kvtrail.tracer.history.history import load
from kvtrail.tracer.ingest import otlp_json

STORY = "L 749 c0 h256 -> 256\nA 256 [1-24]\nS 256+48\nP\nL 800 c336 h256 -> 0\nevict a\nb: L 90 c0 -> later\nend"


def test_any_order_of_files_and_lines_gives_the_same_history(tmp_path: Path) -> None:
    events = history(STORY)
    lines = [to_json_line(encoded([event])) for event in events]
    for seed in range(20):
        random.Random(seed).shuffle(lines)
        paths = [tmp_path / f"{n}.jsonl" for n in range(3)]
        for number, path in enumerate(paths):
            path.write_text("\n".join(lines[number::3]))
        loaded = load(paths)
        assert [e.sequence for e in loaded.events] == list(range(len(events)))
        assert [e.numbers() for e in loaded.events] == [e.numbers() for e in events]
        assert (loaded.repeated, loaded.unreadable, loaded.unknown) == (0, (), {})


def test_a_span_that_is_written_again_is_the_same_span(tmp_path: Path) -> None:
    path, again = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text(to_json_line(encoded(history(STORY))))
    loaded = load([path])
    again.write_text(otlp_json.spans_to_json_line([span for _, span in loaded.moments]))
    assert load([again]) == loaded
    assert load([path, again]).repeated == len(loaded.moments)


def test_what_a_newer_recorder_writes_is_counted_and_other_spans_are_kept_apart(tmp_path: Path) -> None:
    request = otlp_json.spans_to_json_line([])
    path = tmp_path / "trace.jsonl"
    data = json.loads(to_json_line(encoded(history("L 749 c0 h256 -> 256"))))
    spans = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    newer = {**spans[0], "name": "kv.from.the.future", "spanId": "00000000000000aa"}
    spans.append(newer)
    foreign = {"scope": {"name": "vllm"}, "spans": [{**newer, "name": "llm_request", "spanId": "00000000000000bb"}]}
    data["resourceSpans"][0]["scopeSpans"].append(foreign)
    path.write_text(f"{json.dumps(data)}\n{request}")
    loaded = load([path])
    assert loaded.unknown == {"kv.from.the.future": 1}
    assert [span.name for span in loaded.foreign] == ["llm_request"]
