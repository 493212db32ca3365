"""A fleet of made-up engines, as their recorders tell it at level `basic`: OTLP requests of 512 spans, as they happen.

Every request has an id, a trace and chunk keys of its own, so that nothing compresses better than in life; one in four begins
with a prefix that others have, too. What an engine does is lawful but for the drift that is planted in it, and the findings
of that come with each payload: nothing else may be found.

What a request does is drawn from a few hundred shapes, with attributes that are encoded once; ids, times and numbers are put
between them. So a span costs 3 us, where the recorder's own encoder takes 9 for spans that are all different.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kvtrail import __version__
from kvtrail.connector.recording import encoder
from kvtrail.connector.recording.contexts import root_ids
from kvtrail.connector.recording.encoder import Encoder, attribute
from kvtrail.connector.recording.ring import Identity
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, KEYS
from kvtrail.tracer.events.semconv import Kind

BATCH = 512
"""Events in a request, as a recorder sends them."""
CHUNK, BLOCK = 256, 16
RUNNING = 64
"""Requests of an engine at a time."""
SHAPES, PREFIXES = 300, 16
HEARTBEAT_NS = 5 * 10**9
_UNSAID = (None,) * (len(FIELDS[Kind.HEARTBEAT]) - 4)
"""What comes after the step in a sign of life."""
MODEL, CONNECTOR = "made-up-8b", "OffloadConnector"
DRIFTS = ("over-report", "stale-lookup", "store-gap")
"""The rules with drift that is planted, in turn. The guard has healed the lookups, so that the engine lives on."""
_ID_AND_TIMES = struct.Struct("<BBQBQBQ").pack
_TIMES = struct.Struct("<BQBQ").pack
_SAMPLED = b"\x85\x01" + struct.pack("<I", 1)
_KEY = attribute(KEYS["chunk_keys"], ("0" * 16,))[:-16]
"""The attribute that names a chunk, without the key's 16 characters."""
_LENGTHS = [b"\x12" + encoder.varint(length) for length in range(4096)]
"""Tag and length of a span, as a field of `ScopeSpans`."""
Finding = tuple[str, str]
"""The rule and the request."""


@dataclass(frozen=True, slots=True)
class Payload:
    """An encoded request.

    Attributes:
        spans: how many it has.
        requests: how many requests of the engine begin in it.
        findings: those with their last event in it.
    """

    body: bytes
    spans: int
    requests: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shaped:
    """An event of a shape: the encoded fields that are the same whenever it happens, and what else it has.

    Attributes:
        is_root: whether its span is the request's own.
        lasts_ns: the time from its begin to its end.
        chunk: the chunk of the request, if it names the key of one.
        has_step: whether it names the scheduler's step.
    """

    fields: bytes
    is_root: bool
    lasts_ns: int
    chunk: int | None
    has_step: bool


class Shape:
    """What a request does: its events, in the steps of the scheduler in which they happen.

    Attributes:
        steps: the events of each step.
        chunks: how many chunks it fills, those of its prefix included.
        prefix: the number of the prefix with which it begins; None for none.
        held: chunks of the prefix, which are in the store already.
        drift: the rule that is broken.
    """

    def __init__(
        self,
        dice: random.Random,
        *,
        prefix: int | None,
        held: int,
        drift: str | None = None,
        connector: str = CONNECTOR,
    ) -> None:
        self.prefix, self.drift = prefix, drift
        self.held = held
        self._source = _source(connector)
        self._dice = dice
        self._number = 0
        self._known = held
        """Chunks that are in the store."""
        prompt = CHUNK * dice.randrange(held + 2, held + 8) + dice.randrange(1, CHUNK)
        output = dice.randrange(16, 400)
        self.chunks = (prompt + output) // CHUNK
        is_preempted = drift == "stale-lookup" or (drift is None and dice.random() < 0.1)
        self.steps = list(self._life(prompt, output, is_preempted=is_preempted))

    def _life(self, prompt: int, output: int, *, is_preempted: bool) -> Iterator[list[_Shaped]]:
        yield [self._shaped(Kind.REQUEST_START, 0, total=prompt, limit=output)]
        yield self._admission(0, prompt, 0)
        at = prompt
        if is_preempted:
            at += self._dice.randrange(1, output)
            yield from self._stores(0, prompt, at)
            yield [self._shaped(Kind.PREEMPT, 1, blocks_free=self._dice.randrange(BLOCK))]
            yield self._admission(1, at, self._dice.randrange(1, 1 + prompt // BLOCK) * BLOCK)
        epoch, total = int(is_preempted), prompt + output
        yield from self._stores(epoch, at, total)
        end: dict[str, Any] = {
            "total": total,
            "output": output,
            "computed": total - 1,
            "outcome": "stopped",
            "free_delayed": False,
        }
        yield [self._shaped(Kind.REQUEST, epoch, **end, prompt=prompt, cache_read=0)]

    def _admission(self, epoch: int, total: int, computed: int) -> list[_Shaped]:
        """The lookup, the allocation, and the first step with what is loaded and stored in it."""
        held = min(self._known, (total - 1) // CHUNK)
        matched = held * CHUNK
        answer = max(0, matched - computed)
        said: dict[str, Any] = {"returned": answer, "cached": False}
        if self.drift == "over-report" and epoch == 0:
            answer, said = 0, {"returned": 0, "cached": False, "refused": matched + CHUNK}
        elif self.drift == "stale-lookup" and epoch == 1:
            answer, said = 0, {"returned": 0, "cached": True, "refused": answer + BLOCK}
        start, blocks = computed + answer, -(-total // BLOCK)
        step = {"computed": start, "scheduled": total - start}
        sources: dict[str, Any] = {"hit_sources": (f"host:{answer}",)} if answer else {}
        recorded = [
            self._shaped(Kind.LOOKUP, epoch, total=total, computed=computed, matched=matched, is_async=False, **said),
            self._shaped(Kind.ALLOC, epoch, total=total, allocated=answer, blocks_count=blocks, **sources),
            self._shaped(
                Kind.SCHEDULE, epoch, **step, resumed=bool(epoch), scheduler_tokens=total - start + RUNNING - 1
            ),
        ]
        if epoch == 0:
            recorded.append(self._shaped(Kind.STATS, epoch, total=total, reported=start, from_connector=answer))
        for chunk in range(computed // CHUNK, held if answer else 0):
            first = max(computed, chunk * CHUNK)
            count = (chunk + 1) * CHUNK - first
            recorded.append(self._shaped(Kind.LOAD_PLAN, epoch, chunk, start=first, count=count, **step, drafted=0))
        skipped = total // CHUNK - 2 if self.drift == "store-gap" and epoch == 0 else -1
        return recorded + [self._store(epoch, chunk, **step) for chunk in range(total // CHUNK) if chunk != skipped]

    def _stores(self, epoch: int, begin: int, end: int) -> Iterator[list[_Shaped]]:
        """The steps in which a chunk gets full while the tokens from `begin` to `end` are generated."""
        for chunk in range(begin // CHUNK, end // CHUNK):
            yield [self._store(epoch, chunk, computed=(chunk + 1) * CHUNK - 1, scheduled=1)]

    def _store(self, epoch: int, chunk: int, **step: int) -> _Shaped:
        present = {"chunk_present": True} if chunk < self._known else {}
        self._known = max(self._known, chunk + 1)
        return self._shaped(
            Kind.STORE_PLAN, epoch, chunk, start=chunk * CHUNK, count=CHUNK, **step, drafted=0, **present
        )

    def _shaped(self, kind: Kind, epoch: int, chunk: int | None = None, **values: Any) -> _Shaped:
        fields = encoder.field(5, semconv.span_name(kind).encode()) + b"\x30\x01"  # SPAN_KIND_INTERNAL
        fields += self._source + attribute(semconv.EPOCH.key, epoch)
        fields += attribute(semconv.REQUEST_SEQUENCE.key, self._number)
        fields += b"".join(attribute(KEYS[name], value) for name, value in values.items())
        self._number += 1
        has_step = any(each.field == "scheduler_step" for each in FIELDS[kind])
        return _Shaped(fields, kind in semconv.ROOTS, self._dice.randrange(2_000, 40_000), chunk, has_step)


class Shapes:
    """Those of an engine, in which nothing is stored at first.

    Attributes:
        first: those that store the prefixes, one after the other, from the last one on.
        lawful: what all others do.
        drifting: by rule, what breaks it.
    """

    def __init__(self, dice: random.Random, connector: str = CONNECTOR) -> None:
        self._dice, self._connector = dice, connector
        self._lengths = [dice.randrange(1, 5) for _ in range(PREFIXES)]
        self.first = [Shape(dice, prefix=number, held=0, connector=connector) for number in range(PREFIXES)]
        self.lawful = [self.another() for _ in range(SHAPES)]
        self.drifting = {drift: [self.another(drift) for _ in range(SHAPES // 10)] for drift in DRIFTS}

    def another(self, drift: str | None = None) -> Shape:
        """One more, which some requests may have when the prefixes are stored."""
        prefix = self._dice.randrange(PREFIXES) if self._dice.random() < 0.25 else None
        held = 0 if prefix is None else min(self._lengths[prefix], self.first[prefix].chunks)
        return Shape(self._dice, prefix=prefix, held=held, drift=drift, connector=self._connector)


@dataclass(slots=True)
class Request:
    """One that runs.

    Attributes:
        trace_id: of its own trace.
        span_id: of its own span.
        keys: the attributes that name its chunks.
        child, root, names: the fields of its spans that name it.
        step: how many of its steps are over.
    """

    id: str
    external: str
    trace_id: bytes
    span_id: bytes
    shape: Shape
    began_ns: int
    keys: Sequence[bytes]
    child: bytes
    root: bytes
    names: bytes
    step: int = 0


class Recorder:
    """Encodes what the requests of one engine do. Times are those of a clock that showed 0 at `base_ns` (Unix nanoseconds).

    Attributes:
        id: the recorder's.
        resource: what it says of itself.
        sequence: the number of its next event.
        step: that of the scheduler's last step.
    """

    def __init__(
        self, engine: str, dice: random.Random, *, base_ns: int = 0, model: str = MODEL, connector: str = CONNECTOR
    ) -> None:
        self.id = f"{dice.getrandbits(64):016x}"
        self.resource = _resource(engine, self.id, model, connector)
        self.sequence = self.step = 0
        self._engine, self._dice, self._base_ns = engine, dice, base_ns
        self._model = attribute(semconv.REQUEST_MODEL.key, model)
        self._span_id_base = dice.getrandbits(60)
        self._encoder = Encoder(self.resource, self._span_id_base, base_ns)
        """For what concerns no request."""
        pairs = (encoder.key_value(key, value) for key, value in self.resource.items())
        self._resource = encoder.field(1, b"".join(encoder.field(1, pair) for pair in pairs))
        self._scope = encoder.field(
            1, encoder.field(1, semconv.SCOPE.encode()) + encoder.field(2, __version__.encode())
        )
        self._nobody: Identity = (root_ids(engine, ""), b"", "", True)
        self._sequences = encoder.numbered(semconv.SEQUENCE.key)
        self._steps = encoder.numbered(KEYS["scheduler_step"])
        self._prefixes: dict[int, Sequence[bytes]] = {}

    def begin(self, shape: Shape, at_ns: int, external: str = "") -> Request:
        """A request that begins to do what a shape says; without an id of its caller's, it gets one."""
        dice = self._dice
        drawn = dice.randbytes(8 * shape.chunks).hex().encode()
        keys = [_KEY + drawn[at : at + 16] for at in range(0, len(drawn), 16)]
        if shape.prefix is not None:
            shared = self._prefixes.setdefault(shape.prefix, keys)
            keys[: shape.held] = shared[: shape.held]
        external = external or f"chatcmpl-{dice.getrandbits(128):032x}"
        name = f"{external}-{dice.getrandbits(32):08x}"
        ids = root_ids(self._engine, name)
        trace_id, span_id = ids[:16], ids[16:]
        trace = encoder.field(1, trace_id) + _SAMPLED
        names = _text(semconv.REQUEST_ID.key, name) + _text(semconv.EXTERNAL_ID.key, external)
        root = trace + encoder.of_span(span_id) + self._model + _text(semconv.CALLERS_ID.key, external)
        child = trace + encoder.inside(span_id)
        return Request(name, external, trace_id, span_id, shape, at_ns, keys, child, root, names)

    def advance(self, request: Request, spans: list[bytes], now_ns: int) -> bool:
        """Add the spans of its next step to the fields of a `ScopeSpans`; returns whether it was the last one."""
        self.step += 1
        step = self._steps(self.step)
        names, keys, child, number_of = request.names, request.keys, request.child, self._sequences
        sequence, now_ns = self.sequence, now_ns + self._base_ns
        span_id = self._span_id_base + sequence
        for recorded in request.shape.steps[request.step]:
            end_ns = now_ns + recorded.lasts_ns
            if recorded.is_root:
                ids, times = request.root, _TIMES(0x39, self._base_ns + request.began_ns, 0x41, end_ns)
            else:
                ids, times = child, _ID_AND_TIMES(0x12, 8, span_id, 0x39, now_ns, 0x41, end_ns)
            key = b"" if recorded.chunk is None else keys[recorded.chunk]
            body = b"".join(
                (ids, times, number_of(sequence), names, recorded.fields, key, step if recorded.has_step else b"")
            )
            spans += (_LENGTHS[len(body)], body)
            sequence += 1
            span_id += 1
        self.sequence = sequence
        request.step += 1
        return request.step == len(request.shape.steps)

    def span_id(self, sequence: int) -> bytes:
        """The id of the span that has this number."""
        return (self._span_id_base + sequence).to_bytes(8, "little")

    def request_of(self, spans: Sequence[bytes]) -> bytes:
        """An `ExportTraceServiceRequest` with these fields."""
        return encoder.field(1, self._resource + encoder.field(2, self._scope + b"".join(spans)))

    def heartbeat(self, now_ns: int, *, closing: bool) -> bytes:
        """An `ExportTraceServiceRequest` with a sign of life."""
        values = (self.sequence, 0, closing, self.step, *_UNSAID)
        event = (Kind.HEARTBEAT.value, b"", self._nobody, self.sequence, 0, 0, now_ns, now_ns, None, values)
        self.sequence += 1
        (body,) = self._encoder.requests([event], 1)
        return body


@dataclass
class Engine:
    """An engine with one recorder. `drift_every`: about one drift for this many spans; 0 for none. `batch`: spans of an OTLP
    request, at least."""

    name: str
    drift_every: int = 0
    batch: int = BATCH
    _running: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.name)
        self._base_ns = time.time_ns() - time.perf_counter_ns()
        self._recorder = Recorder(self.name, self._dice, base_ns=self._base_ns)
        self._shapes = Shapes(self._dice)
        self._first = list(self._shapes.first)
        """What is still to be stored before anybody finds it, one after the other."""
        self._spans = self._drifts = self._heartbeat_ns = 0
        self._minutes: set[int] = set()

    def last(self) -> Iterator[Payload]:
        """The requests that end what runs; the last one has the end record."""
        while self._running:
            yield self._batch(closing=True)
        yield self._heartbeat(time.perf_counter_ns(), closing=True)

    def payload(self) -> Payload:
        """The next request that its recorder sends."""
        now_ns = time.perf_counter_ns()
        is_due = now_ns - self._heartbeat_ns > HEARTBEAT_NS
        return self._heartbeat(now_ns) if is_due else self._batch()

    def _batch(self, *, closing: bool = False) -> Payload:
        spans: list[bytes] = []
        findings: list[Finding] = []
        recorder = self._recorder
        begun, first, now_ns = 0, recorder.sequence, time.perf_counter_ns()
        while recorder.sequence - first < self.batch and not (closing and not self._running):
            if not closing and len(self._running) < (1 if self._first else RUNNING):
                self._running.append(recorder.begin(self._next_shape(), now_ns))
                begun += 1
            ended = self._advance(spans, now_ns)
            if ended is not None and ended.shape.drift is not None:
                findings.append((ended.shape.drift, ended.id))
        count = recorder.sequence - first
        self._spans += count
        return Payload(recorder.request_of(spans), count, begun, tuple(findings))

    def _next_shape(self) -> Shape:
        dice, shapes = self._dice, self._shapes
        if self._first:
            return self._first[-1]
        if self.drift_every and self._spans // self.drift_every > self._drifts:
            self._drifts += 1
            return dice.choice(shapes.drifting[DRIFTS[self._drifts % len(DRIFTS)]])
        return dice.choice(shapes.lawful)

    def _advance(self, spans: list[bytes], now_ns: int) -> Request | None:
        """One step of the scheduler, in which one request gets on; returns it if it has ended."""
        number = self._dice.randrange(len(self._running))
        request = self._running[number]
        if not self._recorder.advance(request, spans, now_ns):
            return None
        self._running[number] = self._running[-1]
        self._running.pop()
        if self._first:
            self._first.pop()
        return request

    def _heartbeat(self, now_ns: int, *, closing: bool = False) -> Payload:
        """A sign of life. The first of a minute comes with the root of that minute."""
        self._heartbeat_ns = now_ns
        minute = (self._base_ns + now_ns) // semconv.ENGINE_NS
        is_first = minute not in self._minutes
        self._minutes.add(minute)
        return Payload(self._recorder.heartbeat(now_ns, closing=closing), 1 + is_first)


@cache
def _before_text(key: str, length: int) -> bytes:
    return attribute(key, "0" * length)[:-length]


def _text(key: str, text: str) -> bytes:
    """An attribute with a text in ASCII; there are few lengths."""
    return _before_text(key, len(text)) + text.encode()


def _source(connector: str) -> bytes:
    """The attributes that every event of the connector has."""
    said: dict[semconv.Attribute, int | str] = {
        semconv.CONNECTOR: connector, semconv.CONNECTOR_ID: "0", semconv.ROLE: "scheduler", semconv.RANK: 0,
        semconv.CHUNK_SIZE: CHUNK,
    }  # fmt: skip
    return b"".join(attribute(each.key, value) for each, value in said.items())


def _resource(engine: str, recorder: str, model: str, connector: str) -> dict[str, Any]:
    return {
        "service.name": "vllm", "host.name": f"host-of-{engine}", "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry", "service.instance.id": recorder * 2, "process.pid": 4711,
        semconv.RECORDER_ID.key: recorder, semconv.ENGINE_ID.key: engine, semconv.BLOCK_SIZE.key: BLOCK,
        semconv.MODEL.key: f"/models/{model}", semconv.SERVED_MODEL.key: model, semconv.ENGINE_VERSION.key: "0.32.0",
        semconv.MAX_BATCHED.key: 8192, semconv.VERSION.key: __version__,
        semconv.CAPABILITIES.key: f'{{"{connector}":["reports_all_stores"]}}',
    }  # fmt: skip
