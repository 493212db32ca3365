"""A recorder and a sidecar of neighbouring versions: what is unknown to either of them is passed over, counted, and
never judged.

The golden traces are changed as another version's recorder might have written them, at random. Whatever it is, no finding
comes of it that the trace did not have, and what is only added changes no verdict.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, KEYS
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history.audit import Audit, audit
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.trace_file import TraceReader
from kvtrail.tracer.model.findings import Unknown, Verdict
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

HERE = Path(__file__).parent
TRACES = sorted(HERE.glob("*.jsonl"))
SEEDS = range(12)
Change = Callable[[list[Span], random.Random], list[Span]]
STRANGE: tuple[Any, ...] = ("strange", 7, -1, 2**40, 0.5, True, (), ("strange",), (1, 2))
CALL_RAISED = "failed-call"
"""The rule that reports a call which raised, unless a finding explains it."""
_SEQUENCES = (semconv.SEQUENCE.key, semconv.REQUEST_SEQUENCE.key)
_REQUIRED = {name: {field.encode_name for field in fields(cls) if field.required} for name, cls in CLASSES.items()}


def spans_of(path: Path) -> list[Span]:
    """The spans of a trace in the order of their recorders' numbers. Steps are taken apart."""
    spans = list(TraceReader(path).spans())
    return sorted(spans, key=lambda span: (span.resource[semconv.RECORDER_ID.key], span.attributes[_SEQUENCES[0]]))


def written(spans: list[Span], path: Path) -> Path:
    path.write_text("".join(f"{otlp_json.spans_to_json_line(spans[n : n + 8])}\n" for n in range(0, len(spans), 8)))
    return path


def with_attributes(span: Span, **changes: Any) -> Span:
    return replace(span, attributes={**span.attributes, **changes})


# What a newer recorder adds. It is passed over, and all else is judged as before.


def more_attributes(spans: list[Span], rng: random.Random) -> list[Span]:
    """On spans of any kind, heartbeats included, and on resources."""
    resources = {id(span.resource): {**span.resource, "kvtrail.galaxy": rng.choice(STRANGE[:4])} for span in spans}
    return [
        replace(
            with_attributes(span, **{f"kvtrail.dreamt.{rng.randrange(3)}": rng.choice(STRANGE)})
            if rng.random() < 0.5
            else span,
            resource=resources[id(span.resource)],
        )
        for span in spans
    ]


def other_values(spans: list[Span], rng: random.Random) -> list[Span]:
    """Of attributes with names as values: a new role and outcome, capabilities, lacks, and kinds that were not recorded."""
    changed = []
    for span in spans:
        new: dict[str, Any] = {}
        if span.name == Kind.REQUEST and rng.random() < 0.3:
            new[KEYS["outcome"]] = "evaporated"
        if span.name == Kind.HEARTBEAT:
            new[KEYS["recorder_unrecorded"]] = ("kv.dream:3", "odd", "probe.dreams:x")
        changed.append(with_attributes(span, **new))
    return changed


def more_kinds_about_nothing(spans: list[Span], rng: random.Random) -> list[Span]:
    """Spans that concern no request. Their scope is ours, but they have no numbers: they are not among the numbered events of
    their recorder."""
    dreams = [
        replace(
            span,
            name="kv.dream",
            span_id=f"{rng.getrandbits(64):016x}",
            attributes={"kvtrail.dream": rng.choice(STRANGE)},
        )
        for span in rng.sample(spans, 3)
    ]
    return [*spans, *dreams]


ADDED: tuple[Change, ...] = (
    more_attributes, other_values, more_kinds_about_nothing,
)  # fmt: skip


# What another version says otherwise. What it may have changed is unknown.


def more_kinds(spans: list[Span], rng: random.Random) -> list[Span]:
    """Events of a new kind, each with a number of its own, so that those after it have later ones."""
    changed: list[Span] = []
    shifts: Counter[tuple[str, ...]] = Counter()
    for span in spans:
        keys = ((recorder := str(span.resource[semconv.RECORDER_ID.key]),), (recorder, request_of(span)))
        shifted = with_attributes(
            span,
            **{name: span.attributes.get(name, 0) + shifts[key] for name, key in zip(_SEQUENCES, keys, strict=True)},
        )
        changed.append(shifted)
        if rng.random() < 0.05 and request_of(span):
            shifts.update(keys)
            numbers = {name: shifted.attributes[name] + 1 for name in _SEQUENCES}
            changed.append(
                replace(with_attributes(shifted, **numbers), name="kv.dream", span_id=f"{rng.getrandbits(64):016x}")
            )
    return changed


def request_of(span: Span) -> str:
    return str(span.attributes.get(semconv.REQUEST_ID.key, ""))


def renamed_kind(spans: list[Span], rng: random.Random) -> list[Span]:
    kind = rng.choice(sorted({span.name for span in spans}))
    return [replace(span, name="kv.dream") if span.name == kind else span for span in spans]


def renamed_attribute(spans: list[Span], rng: random.Random) -> list[Span]:
    """A required one, of a kind: without the new name the meaning of the span is unknown."""
    kind = rng.choice(sorted({span.name for span in spans if own_required(span)}))
    key = rng.choice(
        sorted(_REQUIRED[kind] - {semconv.ENGINE_ID.key, semconv.RECORDER_ID.key, *_SEQUENCES, "start_ns", "end_ns"})
    )
    return [
        replace(span, attributes={f"{name}.dreamt" if name == key else name: v for name, v in span.attributes.items()})
        if span.name == kind
        else span
        for span in spans
    ]


def own_required(span: Span) -> set[str]:
    return _REQUIRED.get(span.name, set()) & span.attributes.keys() - set(_SEQUENCES)


def another_type(spans: list[Span], rng: random.Random) -> list[Span]:
    """A required attribute of a kind has another type."""
    kind = rng.choice(sorted({span.name for span in spans if own_required(span)}))
    return [
        with_attributes(span, **{rng.choice(sorted(own_required(span))): "strange"}) if span.name == kind else span
        for span in spans
    ]


OTHERWISE: tuple[Change, ...] = (
    more_kinds, renamed_kind, renamed_attribute, another_type,
)  # fmt: skip


def audits(path: Path, change: Change, folder: Path) -> Iterator[tuple[int, Audit, Audit]]:
    """By seed, what an audit says of a trace, and of the trace with that change."""
    spans = spans_of(path)
    before = audit([written(spans, folder / "before.jsonl")])
    for seed in SEEDS:
        yield seed, before, audit([written(change(spans, random.Random(seed)), folder / "after.jsonl")])


def findings_of(result: Audit) -> set[tuple[str, str, int]]:
    return {(finding.rule, finding.request, finding.epoch) for finding in result.findings}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
@pytest.mark.parametrize("change", ADDED, ids=lambda change: change.__name__)
def test_what_is_added_is_counted_and_changes_no_verdict(path: Path, change: Change, tmp_path: Path) -> None:
    for seed, before, after in audits(path, change, tmp_path):
        assert (after.verdicts, findings_of(after)) == (before.verdicts, findings_of(before)), f"seed {seed}"
        assert (after.missing, after.unreadable, after.reasons) == (before.missing, before.unreadable, before.reasons)
        if change is not other_values:
            assert after.unknown_spans or after.unknown_attributes


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
@pytest.mark.parametrize("change", OTHERWISE, ids=lambda change: change.__name__)
def test_what_another_version_says_otherwise_is_unknown_and_no_drift(
    path: Path, change: Change, tmp_path: Path
) -> None:
    for seed, before, after in audits(path, change, tmp_path):
        found = {each for each in findings_of(after) if each[0] != CALL_RAISED}  # so it did: the trace ends with it
        assert found <= findings_of(before), f"seed {seed}"
        assert after.unknown_spans or after.unknown_attributes or after.unreadable or change is more_kinds
        if change is not another_type:  # what is of another type has no other name: it is taken for damage
            assert (after.missing, after.unreadable) == (before.missing, before.unreadable), f"seed {seed}"
        if after.unknown_spans and before.verdicts[Verdict.OK]:
            assert after.reasons[Unknown.NEWER] or after.verdicts == before.verdicts


def test_the_sidecar_counts_it_by_name_and_loses_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Live: no event is missing, none of it waits for a number that never comes, and a restart knows what was not known."""
    spans = spans_of(HERE / "preempted.jsonl")
    changed = more_attributes(
        [replace(s, name="kv.dream") if s.name == Kind.PREEMPT else s for s in spans], random.Random(1)
    )
    payload = otlp_json.to_protobuf(json.loads(otlp_json.spans_to_json_line(changed)))
    metrics = Metrics()
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), metrics, grace_ns=0)
    pipeline.ingest(payload, transport="grpc")
    pipeline.tidy()
    (preempted,) = (s.attributes[semconv.REQUEST_ID.key] for s in spans if s.name == Kind.PREEMPT)
    reader = SqliteReader(tmp_path / "s.db")
    unknown = {row["request"]: row["unknown"] for row in reader.requests()}
    assert unknown.pop(preempted) == "newer"
    assert set(unknown.values()) == {None}
    (recorder,) = pipeline.recorders.values()
    assert recorder.unknown["kv.dream"] == recorder.unknown["kvtrail.galaxy"] == 1
    assert recorder.missing == pipeline.detector.missing == 0

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"engine": "golden", **labels})

    assert value("kvtrail_unfamiliar_total", what="span") == 1
    names = sum(n for name, n in recorder.unknown.items() if name != "kv.dream")
    assert value("kvtrail_unfamiliar_total", what="attribute") == names > 10
    assert value("kvtrail_events_missing_total") == 0
    assert caplog.text.count("'kv.dream', recorded by kvtrail") == 1
    assert (reader.findings(), reader.totals()["requests"]) == ([], 3)
    pipeline.ingest(payload, transport="grpc")
    assert value("kvtrail_unfamiliar_total", what="span") == 1, "what comes again counts once"
    pipeline.close()


def test_names_from_outside_are_short_and_take_no_engine_s_place(tmp_path: Path) -> None:
    """A span of ours without numbers belongs to no recorder: many of them are counted together."""
    (span, *_) = spans_of(HERE / "preempted.jsonl")
    metrics = Metrics()
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), metrics)
    strange = [
        replace(
            span,
            name="kv." + "x" * 5000,
            span_id=f"{n:016x}",
            attributes={},
            resource={semconv.ENGINE_ID.key: f"e-{n}"},
        )
        for n in range(1, 200)
    ]
    payload = otlp_json.to_protobuf(json.loads(otlp_json.spans_to_json_line([span, *strange])))
    pipeline.ingest(payload, transport="grpc")
    assert metrics.registry.get_sample_value("kvtrail_unfamiliar_total", {"engine": "other", "what": "span"}) == 199
    named = replace(span, name="kv." + "y" * 5000, span_id=f"{500:016x}")
    pipeline.ingest(otlp_json.to_protobuf(json.loads(otlp_json.spans_to_json_line([named]))), transport="grpc")
    (recorder,) = pipeline.recorders.values()
    assert list(map(len, recorder.unknown)) == [100]
    pipeline.close()
