"""Odd spans: recorded ones with one or two things changed, sent through the sidecar's pipeline beside spans of innocents.

What must hold, whatever the spans say: nothing is raised and no request is refused; the innocents' spans of the same request
are stored and judged as if they had come alone; the store can be opened again, and what it holds read back; every endpoint
of the api answers. `benchmarks/odd_spans.py` tries a million of them.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Request
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from wire import to_json_line

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, KEYS, STEP_FIELDS
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

GOLDEN = Path(__file__).parent / "golden"
INNOCENT = "loaded-asynchronously"
"""A whole recording; its requests are `ok`."""
INNOCENT_BYTES = b"innocent-"
"""Begins the names of innocent engines."""
HISTORIES_A_BATCH = 20
BATCHES_A_LIFE = 60
"""Batches between two starts of the sidecar."""
LIVES = 3
"""Starts of the sidecar with one store."""
DAY_NS = 86_400 * 10**9
NUMBERS = (-(2**63), -(2**50) - 1, -1, 0, 1, 2**31, 2**40, 2**50, 2**50 + 1, 2**63 - 1)
TIMES = (0, 1, 10**18, 2**62, 2**63 - 2, 2**63 - 1, 2**64 - 1)
"""Unix nanoseconds: from 1970 to the year 2554, the last that OTLP has a number for."""
TEXTS = (
    "", "\0", "a\0b", "16", "-1", "NaN", "null", "{}", "[" * 200, '{"a":', "é\u202e\U0010ffff", "\n\r", "'; --", "%s{0}{a}",
    "x" * 5_000, "/" * 50,
)  # fmt: skip
LENGTHS = (0, 1, 7, 9, 15, 17, 64)
"""Bytes of ids that no recorder writes."""


def any_value(value: Any) -> AnyValue:
    """A value as OTLP has it."""
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case str():
            return AnyValue(string_value=value)
        case dict():
            pairs = AnyValue()
            pairs.kvlist_value.SetInParent()
            for key, each in value.items():
                pairs.kvlist_value.values.add(key=key).value.CopyFrom(any_value(each))
            return pairs
    items = AnyValue()
    items.array_value.SetInParent()
    items.array_value.values.extend(map(any_value, value))
    return items


def odd_value(dice: random.Random) -> Any:
    """A value of any type and size."""
    some: list[Callable[[], Any]] = [
        lambda: dice.choice(NUMBERS),
        lambda: dice.choice(NUMBERS),
        lambda: dice.choice(TEXTS),
        lambda: dice.choice((True, False)),
        lambda: dice.choice((0.5, -1.0, 1e300, float("nan"), float("inf"))),
        lambda: b"\xff\x00",
        lambda: None,
        list,
        lambda: [5],
        lambda: [dice.choice(NUMBERS) for _ in range(3)],
        lambda: [dice.choice(TEXTS), 7, None],
        lambda: ["host:99999999999999999999", "disk:-1", ":", "host:٣", "tier:x:5"],
        lambda: [[[["deep"]]], {"a": [1]}],
        lambda: list(range(3_000)),
        lambda: {"a": {"b": {}}, "": None},
    ]
    return dice.choice(some)()


Odd = Callable[[random.Random, ResourceSpans, ProtoSpan], None]


def _attribute(dice: random.Random, held: Any) -> KeyValue | None:
    return dice.choice(held.attributes) if held.attributes else None


def value(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    if (attribute := _attribute(dice, span)) is not None:
        attribute.value.CopyFrom(any_value(odd_value(dice)))


def size(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    """A number stays a number."""
    if numbers := [a for a in span.attributes if a.value.WhichOneof("value") == "int_value"]:
        dice.choice(numbers).value.int_value = dice.choice(NUMBERS)


def near(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    """A number is nearly what it was."""
    if numbers := [a for a in span.attributes if a.value.WhichOneof("value") == "int_value"]:
        held = dice.choice(numbers).value
        held.int_value = min(NUMBERS[-1], max(NUMBERS[0], held.int_value + dice.choice((-16, -1, 1, 16))))


def element(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    """An array loses an element, gets one more, or one changes: of the columns of a step, one does not fit the others."""
    if arrays := [a.value.array_value.values for a in span.attributes if a.value.WhichOneof("value") == "array_value"]:
        held = dice.choice(arrays)
        place = dice.randrange(len(held) + 1)
        if place < len(held) and dice.random() < 0.5:
            del held[place]
        if place == len(held) or dice.random() < 0.5:
            held.insert(place, any_value(odd_value(dice)))


def added(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    """An attribute of another kind of span, or an unknown one."""
    tables = (*FIELDS.values(), STEP_FIELDS, semconv.COMMON)
    every = [attribute.key for table in tables for attribute in table]
    key = dice.choice([*every, "kvtrail.of.the.future", "gen_ai.request.id", "", "start_ns", "error"])
    span.attributes.add(key=key).value.CopyFrom(any_value(odd_value(dice)))


def absent(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    if span.attributes:
        del span.attributes[dice.randrange(len(span.attributes))]


def twice(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    if (attribute := _attribute(dice, span)) is not None:
        again = span.attributes.add()
        again.CopyFrom(attribute)
        if dice.random() < 0.7:
            again.value.CopyFrom(any_value(odd_value(dice)))


def unordered(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    attributes = list(span.attributes)
    dice.shuffle(attributes)
    del span.attributes[:]
    span.attributes.extend(attributes)


def moment(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    at_ns = dice.choice((*TIMES, time.time_ns() + 400 * DAY_NS, time.time_ns() - 4_000 * DAY_NS))
    which = dice.choice(("start", "end", "both"))
    if which in ("start", "both"):
        span.start_time_unix_nano = at_ns
    if which in ("end", "both"):
        span.end_time_unix_nano = at_ns


def backwards(_: random.Random, __: ResourceSpans, span: ProtoSpan) -> None:
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    span.start_time_unix_nano, span.end_time_unix_nano = end_ns, max(0, start_ns - 5)


def identity(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    length = dice.choice(LENGTHS)
    setattr(
        span, dice.choice(("trace_id", "span_id", "parent_span_id")), dice.choice((bytes(length), b"\xab" * length))
    )


def name(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    span.name = dice.choice([*semconv.Kind, semconv.STEP_SPAN, "", "kv.of.the.future", "\0"])


def status(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    span.status.MergeFrom(Status(code=dice.choice(Status.StatusCode.values()), message=dice.choice(TEXTS)))


def inner(dice: random.Random, _: ResourceSpans, span: ProtoSpan) -> None:
    """Events within the span."""
    event = span.events.add(name=dice.choice(TEXTS), time_unix_nano=dice.choice(TIMES))
    event.attributes.add(key="kvtrail.x").value.CopyFrom(any_value(odd_value(dice)))


def resource(dice: random.Random, spans: ResourceSpans, _: ProtoSpan) -> None:
    if (attribute := _attribute(dice, spans.resource)) is not None:
        attribute.value.CopyFrom(any_value(odd_value(dice)))


def resource_absent(dice: random.Random, spans: ResourceSpans, _: ProtoSpan) -> None:
    if spans.resource.attributes:
        del spans.resource.attributes[dice.randrange(len(spans.resource.attributes))]


def resource_of_ours(dice: random.Random, spans: ResourceSpans, _: ProtoSpan) -> None:
    key = dice.choice(semconv.RESOURCE).key
    spans.resource.attributes.add(key=key).value.CopyFrom(any_value(odd_value(dice)))


def repeated(_: random.Random, spans: ResourceSpans, span: ProtoSpan) -> None:
    spans.scope_spans[0].spans.add().CopyFrom(span)


def lost(_: random.Random, spans: ResourceSpans, span: ProtoSpan) -> None:
    spans.scope_spans[0].spans.remove(span)


def order(dice: random.Random, spans: ResourceSpans, _: ProtoSpan) -> None:
    held = list(spans.scope_spans[0].spans)
    dice.shuffle(held)
    del spans.scope_spans[0].spans[:]
    spans.scope_spans[0].spans.extend(held)


def stranger(dice: random.Random, spans: ResourceSpans, span: ProtoSpan) -> None:
    """The span in another scope: a foreign one, with our attributes."""
    scope = spans.scope_spans.add()
    scope.scope.name = dice.choice(("", "kvtrail ", "gateway"))
    scope.spans.add().CopyFrom(span)


CHANGES: tuple[Odd, ...] = (
    value, value, value, size, size, near, element, element, added, added, absent, twice, unordered, moment, moment,
    backwards, identity, name, status, inner, resource, resource_absent, resource_of_ours, repeated, lost, order, stranger,
)  # fmt: skip


COLUMNS = {
    semconv.ROW_REQUESTS: semconv.REQUEST_ID.key,
    semconv.ROW_NUMBERS: semconv.REQUEST_SEQUENCE.key,
    semconv.ROW_EPOCHS: semconv.EPOCH.key,
    semconv.ROW_COMPUTED: KEYS["computed"],
    semconv.ROW_SCHEDULED: KEYS["scheduled"],
    semconv.ROW_DRAFTED: KEYS["drafted"],
}


def in_columns(spans: Sequence[ProtoSpan]) -> list[ProtoSpan]:
    """The same spans as a recorder sends them: later steps of requests as rows of `kv.step`."""
    held: dict[tuple[Any, Any], list[ProtoSpan]] = {}
    others, begun = [], set()
    for span in spans:
        values = plain(span)
        of = (values.get(semconv.REQUEST_ID.key), values.get(semconv.EPOCH.key))
        if span.name == semconv.Kind.SCHEDULE and of in begun and KEYS["blocks_ids"] in values:
            held.setdefault((span.start_time_unix_nano, values[semconv.CONNECTOR_ID.key]), []).append(span)
        else:
            others.append(span)
        if span.name == semconv.Kind.SCHEDULE:
            begun.add(of)
    return [*others, *map(_step, held.values())]


def _step(rows: Sequence[ProtoSpan]) -> ProtoSpan:
    values = [plain(row) for row in rows]
    blocks = [row[KEYS["blocks_ids"]] for row in values]
    columns: dict[str, Any] = {column.key: [row[of] for row in values] for column, of in COLUMNS.items()}
    columns[semconv.ROW_COUNTS.key] = list(map(len, blocks))
    columns[semconv.ROW_BLOCKS.key] = list(chain.from_iterable(blocks))
    step = ProtoSpan()
    step.CopyFrom(rows[0])
    step.name = semconv.STEP_SPAN
    del step.attributes[:]
    own = set(COLUMNS.values()) | {KEYS["blocks_ids"], semconv.EXTERNAL_ID.key, KEYS["resumed"]}
    for key, value in {**{k: v for k, v in values[0].items() if k not in own}, **columns}.items():
        step.attributes.add(key=key).value.CopyFrom(any_value(value))
    return step


def plain(span: ProtoSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return {pair.key: _plain(pair.value) for pair in span.attributes}


def _plain(value: AnyValue) -> Any:
    of = value.WhichOneof("value") or ""
    return list(map(_plain, value.array_value.values)) if of == "array_value" else getattr(value, of)


def recordings() -> dict[str, ResourceSpans]:
    """The golden traces, by name, as recorders send them: histories of vLLM's real scheduler."""
    found: dict[str, ResourceSpans] = {}
    for path in sorted(GOLDEN.glob("*.jsonl")):
        if path.stem == "truncated":  # its last line ends in the middle
            continue
        parts = [
            part
            for line in path.read_text().splitlines()
            for part in Request.FromString(otlp_json.to_protobuf(json.loads(line))).resource_spans
        ]
        for part in parts[1:]:
            parts[0].scope_spans[0].spans.extend(part.scope_spans[0].spans)
        spans = parts[0].scope_spans[0].spans
        sent = in_columns(spans)
        del spans[:]
        spans.extend(sent)
        found[path.stem] = parts[0]
    return found


def renamed(recording: ResourceSpans, of: str, at_ns: int) -> ResourceSpans:
    """The recording as another engine's, which ended at `at_ns`."""
    copy = ResourceSpans()
    copy.CopyFrom(recording)
    for attribute in copy.resource.attributes:
        if attribute.key in (semconv.ENGINE_ID.key, semconv.RECORDER_ID.key):
            attribute.value.string_value = of
    spans = copy.scope_spans[0].spans
    shift_ns = at_ns - max(span.end_time_unix_nano for span in spans)
    for number, span in enumerate(spans):
        span.trace_id = hashlib.blake2b(of.encode() + span.trace_id, digest_size=16).digest()
        span.span_id = hashlib.blake2b(f"{of} {number}".encode(), digest_size=8).digest()
        span.start_time_unix_nano += shift_ns
        span.end_time_unix_nano += shift_ns
    return copy


def changed(dice: random.Random, spans: ResourceSpans) -> int:
    """Change some of the spans, by one or two things each; returns how many."""
    every = list(spans.scope_spans[0].spans)
    held = dice.sample(every, k=min(dice.choice((1, 5, 10, 20)), len(every)))
    for span in held:
        for change in dice.sample(CHANGES, k=dice.choice((1, 1, 2))):
            if span in spans.scope_spans[0].spans:
                change(dice, spans, span)
    return len(held)


def damaged(dice: random.Random, payload: bytes) -> bytes:
    """The request with a byte of a span's name or attribute that is no text."""
    names = [b"kv.lookup", b"kv.alloc", b"kv.schedule", b"kvtrail.tokens.total", b"scheduler", b"kvtrail.rank"]
    name = dice.choice(names)
    return payload.replace(name, name[:-1] + b"\xff", dice.choice((1, 1, -1)))


def damaged_json(dice: random.Random, line: Any) -> int:
    """Change spans of the request in JSON so that they are no OTLP; returns how many may be refused."""
    spans = line["resourceSpans"][0]["scopeSpans"][0]["spans"]
    held = dice.sample(spans, k=min(2, len(spans)))
    for span in held:
        change = dice.choice(
            [
                {"traceId": "abc"}, {"spanId": "xy"}, {"spanId": 7}, {"startTimeUnixNano": "-5"}, {"endTimeUnixNano": "1e9"},
                {"name": "\ud800"}, {"name": None}, {"attributes": {"a": 1}}, {"attributes": [7]}, {"status": "bad"},
                {"attributes": [{"key": "kvtrail.request.id", "value": {"stringValue": "\udfff"}}]},
                {"attributes": [{"key": "kvtrail.rank", "value": {"intValue": "99999999999999999999"}}]},
                {"attributes": [{"key": "kvtrail.rank", "value": {"boolValue": "yes"}}]}, {"events": [[]]}, {"kind": "odd"},
            ]
        )  # fmt: skip
        span.update(change)
    return len(held)


def _is_innocent(line: Any) -> bool:
    return INNOCENT_BYTES.decode() in json.dumps(line)


class Judged(NamedTuple):
    """What the sidecar says of a request."""

    request: str
    verdict: str
    status: str
    complete: bool
    lookups: int
    findings: int


@dataclass
class Sidecar:
    """A sidecar without its servers, which can be started again with the same store."""

    store: Path
    inputs: int = 0
    """Spans that were changed and sent."""
    starts: int = 0
    answers: int = 0
    """Of the api."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the sidecar caught in itself, by where; nothing is what we want."""
    malformed: int = 0
    refused: int = 0
    """Spans that could not be read at all."""

    def lives(self, dice: random.Random, batches: int) -> None:
        """One life: a start, some batches, every question, and the end."""
        innocents: list[str] = []
        with closing(self._started()) as pipeline, TestClient(self.app, raise_server_exceptions=False) as client:
            for number in range(batches):
                innocents.append(f"{INNOCENT_BYTES.decode()}{self.starts}-{number}")
                parts = [renamed(RECORDINGS[INNOCENT], innocents[-1], time.time_ns() - DAY_NS // 24)]
                for victim in range(dice.randint(1, HISTORIES_A_BATCH)):
                    recording = RECORDINGS[dice.choice(sorted(RECORDINGS))]
                    at_ns = time.time_ns() - dice.randrange(DAY_NS // 24)
                    parts.append(renamed(recording, f"victim-{self.starts}-{number}-{victim}", at_ns))
                    self.inputs += changed(dice, parts[-1])
                dice.shuffle(parts)
                self._send(dice, pipeline, client, parts)
                pipeline.tidy()
            judged = self._judged()
            for innocent in innocents:
                assert judged.get(innocent) == EXPECTED, f"{innocent}: {judged.get(innocent)}, alone {EXPECTED}"
            self._ask_everything(dice, client)
            pipeline.storage.prune(retain_ns=DAY_NS * 3)

    def _started(self) -> Pipeline:
        metrics = Metrics()
        pipeline = Pipeline(SqliteWriter(self.store), metrics, grace_ns=0)
        self.reader = SqliteReader(self.store)
        self.metrics, self.app = metrics, application(pipeline, self.reader, metrics)
        self.starts += 1
        return pipeline

    def _send(
        self, dice: random.Random, pipeline: Pipeline, client: TestClient, parts: Sequence[ResourceSpans]
    ) -> None:
        """Send the histories as one request, in one of the ways that there are."""
        way = dice.random()
        if way < 0.05:
            for part in parts:
                line = json.loads(to_json_line(Request(resource_spans=[part]).SerializeToString()))
                innocent = _is_innocent(line)
                self.refused += 0 if innocent else damaged_json(dice, line)
                answer = client.post(
                    "/v1/traces", content=json.dumps(line).encode(), headers={"content-type": "application/json"}
                )
                assert answer.status_code in ((200,) if innocent else (200, 400)), answer.text
            return
        payloads = [Request(resource_spans=[part]).SerializeToString() for part in parts]
        if way < 0.3:
            payloads = [each if INNOCENT_BYTES in each else damaged(dice, each) for each in payloads]
        body = b"".join(payloads)  # one after the other they are one request
        if way > 0.1:
            refused = pipeline.ingest(body, transport="grpc")
            self.refused += 0 if refused is None else refused.spans
            return
        headers = {"content-type": "application/x-protobuf"}
        answer = client.post("/v1/traces", content=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def _judged(self) -> dict[str, set[Judged]]:
        """What the store says of each engine's requests."""
        by_engine: dict[str, set[Judged]] = {}
        for row in self.reader.requests(limit=100_000):
            by_engine.setdefault(row["engine"], set()).add(Judged(*(row[name] for name in Judged._fields)))
        return by_engine

    def _ask_everything(self, dice: random.Random, client: TestClient) -> None:
        for question in questions(dice, client):
            answer = client.get(question)
            self.answers += 1
            assert answer.status_code < 500, f"{question}: {answer.status_code} {answer.text[:500]}"
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == "kvtrail_internal_errors_total" and sample.value:
                    self.errors[sample.labels["where"]] += int(sample.value)
                if sample.name == "kvtrail_spans_malformed_total":
                    self.malformed += int(sample.value)


def questions(dice: random.Random, client: TestClient) -> Iterator[str]:
    """Every endpoint's address, some with the ids of what is stored."""
    now_ns = time.time_ns()
    yield from (
        "/api/health", "/api/totals", "/api/fleet", "/api/rules", "/metrics",
        "/api/requests?limit=10000", "/api/requests?search=victim", "/api/requests?search=r", "/api/requests?status=running",
        "/api/requests?verdict=drift", "/api/findings?limit=10000", "/api/findings/trend", "/api/efficiency",
        f"/api/findings/trend?since_ns=0&until_ns={2**63 - 1}", f"/api/efficiency?since_ns=0&until_ns={2**63 - 1}",
        f"/api/lanes?from_ns={now_ns - DAY_NS}&to_ns={now_ns}", f"/api/lanes?from_ns=0&to_ns={300 * DAY_NS}",
        f"/api/lanes?from_ns={now_ns - DAY_NS}&to_ns={now_ns}&q=r-0&status=finished&limit=5",
    )  # fmt: skip
    after = 0
    while page := client.get(f"/api/spans?limit=10000&after={after}").json():
        after = page[-1]["number"]
    rows = client.get("/api/requests?limit=10000").json()
    for row in dice.sample(rows, k=min(10, len(rows))):
        asked = {"request": row["request"], "engine": row["engine"]}
        yield str(client.build_request("GET", "/api/otlp", params=asked).url)
        yield str(client.build_request("GET", "/api/findings", params=asked).url)
        path = "/api/requests/" + (row["request"] or "-")
        yield str(client.build_request("GET", path, params={"engine": row["engine"]}).url)


RECORDINGS = recordings()
EXPECTED: set[Judged] = set()
"""What is said of the innocent's requests if they come alone."""


def learn(folder: Path) -> None:
    """Fill `EXPECTED`."""
    alone = Sidecar(folder / "alone.db")
    with closing(alone._started()) as pipeline:
        part = renamed(RECORDINGS[INNOCENT], "alone", time.time_ns() - DAY_NS // 24)
        pipeline.ingest(Request(resource_spans=[part]).SerializeToString(), transport="grpc")
        pipeline.tidy()
        EXPECTED.update(alone._judged()["alone"])


def tried(folder: Path, seed: int, *, lives: int = LIVES, batches: int = BATCHES_A_LIFE) -> Sidecar:
    """A store, and the sidecars that wrote to it one after the other."""
    if not EXPECTED:
        learn(folder)
    dice = random.Random(seed)
    sidecar = Sidecar(folder / f"{seed}.db")
    for _ in range(lives):
        sidecar.lives(dice, batches)
    return sidecar
