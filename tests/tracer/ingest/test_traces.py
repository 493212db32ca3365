"""Traces from elsewhere: other writers, other dialects, other compressions, damage, newer versions."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import collector
import pytest
import zstandard
from click.testing import CliRunner
from google.protobuf.json_format import MessageToJson
from history import history
from wire import as_request, encoded, to_json_line

from kvtrail.__main__ import main
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.audit import Audit, audit
from kvtrail.tracer.history.history import load
from kvtrail.tracer.ingest.trace_file import TraceReader, UnusableTrace

DRIFT = (
    "L 749 c0 h256 -> 256\nA 256 [1-24]\nS 256+79 [1-24]\nS 335+1 []\nP\n"
    "L 749 c336 h256 -> 256 cached\nevict a\nA 256\nend"
)
EVENTS = history(DRIFT)
ZSTD = zstandard.ZstdCompressor().compress


def numbers(events: list[Event]) -> list[tuple[int, str, dict[str, Any]]]:
    return sorted((event.sequence, event.kind.value, event.numbers()) for event in events)


def is_whole(result: Audit) -> bool:
    """Whether all of EVENTS was read and judged."""
    read = (result.events, result.missing, result.repeated, result.unreadable)
    return read == (len(EVENTS), 0, 0, []) and [f.rule for f in result.findings] == ["stale-lookup"]


@pytest.mark.parametrize("setting", collector.files([EVENTS]))
def test_whatever_the_collector_writes_is_read(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(collector.files([EVENTS[:3], EVENTS[3:5], EVENTS[5:]])[setting])
    assert is_whole(audit([path]))
    assert numbers(load([path]).events) == numbers(EVENTS)


@pytest.mark.parametrize("compress", [gzip.compress, ZSTD])
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst", "t"])
def test_a_compression_is_recognized_by_the_bytes_and_not_by_the_name(
    tmp_path: Path, compress: Callable[[bytes], bytes], name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(compress(collector.line(EVENTS).encode()))
    assert is_whole(audit([path]))


def test_rotated_files_in_any_order_are_one_history(tmp_path: Path) -> None:
    lines = [collector.line([event]) for event in EVENTS]
    paths = [tmp_path / name for name in ("data.json", "data-2025-12-03T01-24-36.001.json", "data-2025-12-03.json.gz")]
    for seed in range(10):
        random.Random(seed).shuffle(paths)
        for number, path in enumerate(paths):
            text = "\n".join(lines[number * 3 : number * 3 + 3 if number < 2 else None]).encode()
            path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        random.Random(seed + 1).shuffle(paths)
        assert is_whole(audit(paths))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnusableTrace, match=f"{tmp_path}: Is a directory"):
        audit([tmp_path])


@pytest.mark.parametrize("setting", collector.files([EVENTS]))
@pytest.mark.parametrize("compress", [None, gzip.compress])
def test_a_file_that_is_cut_anywhere_gives_what_is_left(
    tmp_path: Path, setting: str, compress: Callable[[bytes], bytes] | None
) -> None:
    path = tmp_path / "data"
    whole = collector.files([[event] for event in EVENTS])[setting]
    whole = compress(whole) if compress else whole
    most = 0
    for size in range(len(whole) // 2, len(whole) - 1, max(1, len(whole) // 97)):
        path.write_bytes(whole[:size])
        try:
            result = audit([path])
        except UnusableTrace:
            continue  # so little is left that there is nothing to read
        assert len(result.unreadable) <= 1  # none, where it is cut between two messages
        most = max(most, result.events)
    blocks = (
        setting.removesuffix(" rotated").endswith("native") or compress
    )  # one block may hold all of so short a history
    assert most == 0 if blocks and most == 0 else most >= len(EVENTS) // 2


def test_a_truncated_end_is_reported(tmp_path: Path) -> None:
    lines = "".join(collector.line([event]) + "\n" for event in EVENTS)
    path = tmp_path / "t"
    torn = {
        "the file is damaged: it ends within a compressed block": gzip.compress(lines.encode())[:-30],
        "the file ends within a message of": collector.framed([collector.line([e]).encode() for e in EVENTS])[:-3],
        "Input data was truncated": lines[:-150].encode(),
    }
    for reason, content in torn.items():
        path.write_bytes(content)
        result = audit([path])
        assert len(EVENTS) - 1 <= result.events <= len(EVENTS)
        ((file, number, message),) = result.unreadable
        assert (file, number) == (str(path), len(EVENTS))
        assert message.startswith(reason)


def test_a_damaged_message_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    messages = [ZSTD(collector.line([event]).encode()) for event in EVENTS]
    path.write_bytes(
        collector.framed([*messages[:3], messages[3][:-9], b"\x28\xb5\x2f\xfdjunk", b"\x0ajunk", *messages[4:]])
    )
    result = audit([path])
    assert (result.events, result.missing) == (len(EVENTS) - 1, 1)
    assert [number for _, number, _ in result.unreadable] == [4, 5, 6]
    assert result.unreadable[0][2] == "a message ends within a compressed block"


def _each(data: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    for resource_spans in data["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                change(span)
    return data


def _numeric(span: dict[str, Any]) -> None:
    for attribute in span["attributes"]:
        if "intValue" in attribute["value"]:
            attribute["value"]["intValue"] = int(attribute["value"]["intValue"])
    span["startTimeUnixNano"] = int(span["startTimeUnixNano"])


def _padded(span: dict[str, Any]) -> None:
    span.update(events=[], links=[], droppedAttributesCount=0, droppedEventsCount=0, droppedLinksCount=0, traceState="")


DIALECTS: dict[str, Callable[[Any], Any]] = {
    "integers as numbers": lambda data: _each(data, _numeric),
    "enums by name": lambda data: _each(data, lambda s: s.update(kind="SPAN_KIND_INTERNAL")),
    "upper-case ids": lambda data: _each(data, lambda s: s.update({k: s[k].upper() for k in ("traceId", "spanId")})),
    "empty lists": lambda data: _each(data, _padded),
    "unknown fields": lambda data: _each(data, lambda s: s.update(someday={"traceId": 7})),
    "other order": lambda data: _each(data, lambda s: s.update(name=s.pop("name"), traceId=s.pop("traceId"))),
}  # fmt: skip


@pytest.mark.parametrize("indented", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_other_dialects_of_the_same_json_say_the_same(tmp_path: Path, dialect: str, indented: bool) -> None:
    path = tmp_path / "t.jsonl"
    data = DIALECTS[dialect](json.loads(collector.line(EVENTS)))
    path.write_text(json.dumps(data, separators=(", ", ": ") if indented else (",", ":")))
    assert is_whole(audit([path]))
    assert numbers(load([path]).events) == numbers(EVENTS)
    assert {e.trace_id for e in load([path]).events} == {
        e.trace_id for b in TraceReader(path).decoded() for e in b.events
    }


def test_a_span_without_a_start_is_still_an_event(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = _each(json.loads(collector.line(EVENTS)), lambda s: s.pop("startTimeUnixNano"))
    path.write_text(json.dumps(data, separators=(",", ":")))
    assert is_whole(audit([path]))


def test_json_that_is_no_otlp_is_refused(tmp_path: Path) -> None:
    """Google's writer has ids in base64, or names in snake case."""
    path = tmp_path / "t.jsonl"
    for is_snake, why in (False, "length"), (True, "missing required field `resourceSpans`"):
        path.write_text(MessageToJson(as_request(EVENTS), indent=None, preserving_proto_field_name=is_snake))
        with pytest.raises(UnusableTrace, match=why):
            audit([path])


def test_spans_of_others_in_the_same_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    foreign = [collector.foreign_span(number) for number in range(3)]
    path.write_text("\n".join((collector.line(EVENTS[:4], *foreign), collector.line(EVENTS[4:], foreign[0]))))
    result = audit([path])
    assert (result.events, result.foreign, result.repeated) == (len(EVENTS), 4, 0)
    assert [span.name for span in load([path]).foreign] == ["llm_request"] * 3


def test_what_a_newer_kvtrail_says_is_passed_over_and_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = json.loads(collector.line(EVENTS))
    resource = data["resourceSpans"][0]["resource"]["attributes"]
    spans = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    resource.append({"key": "kvtrail.galaxy", "value": {"stringValue": "far"}})
    for span in spans[:3]:
        span["attributes"] += [
            {"key": "kvtrail.tokens.dreamt", "value": {"intValue": "7"}},
            {"key": "deployment.environment", "value": {"stringValue": "not ours"}},
        ]
    spans.append({**spans[-1], "name": "kv.dream", "spanId": "00000000000000aa"})
    spans[-1]["attributes"] = [_following(each) for each in spans[-1]["attributes"]]
    path.write_text(json.dumps(data, separators=(",", ":")))
    result = audit([path])
    assert (result.events, result.missing, result.unreadable) == (len(EVENTS) + 1, 0, [])
    assert [finding.rule for finding in result.findings] == ["stale-lookup"]
    assert result.unknown_spans == {"kv.dream": 1}
    assert result.unknown_attributes == {"kvtrail.tokens.dreamt": 3, "kvtrail.galaxy": len(EVENTS)}
    history_ = load([path])
    assert history_.unknown == result.unknown_spans
    message = CliRunner().invoke(main, ["audit", str(path)]).output
    assert "spans that this one does not know and skips: kv.dream (1)." in message
    assert "kvtrail.galaxy (10), kvtrail.tokens.dreamt (3)" in message


def _following(attribute: dict[str, Any]) -> dict[str, Any]:
    """The attribute as the next event has it."""
    if not attribute["key"].endswith(".sequence"):
        return attribute
    return {**attribute, "value": {"intValue": str(int(attribute["value"]["intValue"]) + 1)}}


def test_an_attribute_of_another_kind_is_not_understood_either(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    data = json.loads(to_json_line(encoded(EVENTS)))
    spans = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans[0]["attributes"].append({"key": "kvtrail.refs", "value": {"intValue": "7"}})
    path.write_text(json.dumps(data, separators=(",", ":")))
    result = audit([path])
    assert is_whole(result)
    assert result.unknown_attributes == {"kvtrail.refs": 1}


def test_export_names_what_it_did_not_read_and_does_not_understand(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(collector.line(EVENTS).replace("kv.schedule", "kv.dream") + "\n{half")
    result = CliRunner().invoke(main, ["audit", "--export", str(tmp_path / "out.jsonl"), str(path)])
    assert result.exit_code == 0
    assert f"not read: {path}:2:" in result.output
    assert "not understood: kv.dream, " in result.output


def test_more_files_are_read_than_a_process_may_have_open(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in range(300)]
    for path in paths:
        path.write_text(collector.line(EVENTS))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, highest + 250), hard))
    try:
        result = audit(paths)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (result.events, result.repeated, result.unreadable) == (len(EVENTS), 299 * len(EVENTS), [])
