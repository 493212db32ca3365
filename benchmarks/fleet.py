"""A fleet of made-up engines, as their recorders tell it at level `basic`: OTLP requests of 512 spans, as they happen.

Every request has an id, a trace and chunk keys of its own, so that nothing compresses better than in life; one in four begins
with a prefix that others have, too. What an engine does is lawful but for the drift that is planted in it, and the findings
of that are told with each payload: nothing else may be found.

What a request does is drawn from a few hundred shapes, whose attributes are encoded once; ids, times and numbers are put
between them. So a span costs 3 us, where the recorder's own encoder takes 9 for spans of which none is like another.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail import __version__
from kvtrail.connector.recording import encoder
from kvtrail.connector.recording.contexts import root_ids
from kvtrail.connector.recording.encoder import Encoder, attribute
from kvtrail.connector.recording.ring import Identity
from kvtrail.tracer.model import semconv
from kvtrail.tracer.model.semconv import Kind

BATCH = 512
"""Events in a request, as a recorder sends them."""
CHUNK, BLOCK = 256, 16
RUNNING = 64
"""Requests of an engine at a time."""
SHAPES, PREFIXES = 300, 16
HEARTBEAT_NS = 5 * 10**9
MODEL = "made-up-8b"
DRIFTS = ("over-report", "stale-lookup", "store-gap")
"""The rules whose drift is planted, in turn. The guard has healed the lookups, so that the engine lives on."""
_SPAN_ID = struct.Struct(">BBQ").pack
_TIMES = struct.Struct("<BQBQ").pack
_SAMPLED = b"\x85\x01" + struct.pack("<I", 1)
_KEY = attribute(semconv.KEYS.key, ("0" * 16,))[:-16]
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
        findings: those whose last event is in it.
    """

    body: bytes
    spans: int
    requests: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Told:
    """An event of a shape: the encoded fields that are the same whenever it happens, and what else it has.

    Attributes:
        is_root: whether its span is the request's own.
        lasts_ns: the time from its begin to its end.
        chunk: the chunk of the request whose key it names.
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

    def __init__(self, dice: random.Random, *, prefix: int | None, held: int, drift: str | None = None) -> None:
        self.prefix, self.drift = prefix, drift
        self.held = held
        self._dice = dice
        self._number = 0
        self._known = held
        """Chunks that are in the store."""
        prompt = CHUNK * dice.randrange(held + 2, held + 8) + dice.randrange(1, CHUNK)
        output = dice.randrange(16, 400)
        self.chunks = (prompt + output) // CHUNK
        is_preempted = drift == "stale-lookup" or (drift is None and dice.random() < 0.1)
        self.steps = list(self._life(prompt, output, is_preempted=is_preempted))

    def _life(self, prompt: int, output: int, *, is_preempted: bool) -> Iterator[list[_Told]]:
        yield [self._told(Kind.REQUEST_START, 0, total=prompt, limit=output)]
        yield self._admission(0, prompt, 0)
        at = prompt
        if is_preempted:
            at += self._dice.randrange(1, output)
            yield from self._stores(0, prompt, at)
            yield [self._told(Kind.PREEMPT, 1, blocks_free=self._dice.randrange(BLOCK))]
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
        yield [self._told(Kind.REQUEST, epoch, **end, prompt=prompt, cache_read=0)]

    def _admission(self, epoch: int, total: int, computed: int) -> list[_Told]:
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
        told = [
            self._told(Kind.LOOKUP, epoch, total=total, computed=computed, matched=matched, is_async=False, **said),
            self._told(Kind.ALLOC, epoch, total=total, allocated=answer, blocks_count=blocks, **sources),
            self._told(Kind.SCHEDULE, epoch, **step, resumed=bool(epoch), scheduler_tokens=total - start + RUNNING - 1),
        ]
        if epoch == 0:
            told.append(self._told(Kind.STATS, epoch, total=total, reported=start, from_connector=answer))
        for chunk in range(computed // CHUNK, held if answer else 0):
            first = max(computed, chunk * CHUNK)
            count = (chunk + 1) * CHUNK - first
            told.append(self._told(Kind.LOAD_PLAN, epoch, chunk, start=first, count=count, **step, drafted=0))
        skipped = total // CHUNK - 2 if self.drift == "store-gap" and epoch == 0 else -1
        return told + [self._store(epoch, chunk, **step) for chunk in range(total // CHUNK) if chunk != skipped]

    def _stores(self, epoch: int, begin: int, end: int) -> Iterator[list[_Told]]:
        """The steps in which a chunk gets full while the tokens from `begin` to `end` are generated."""
        for chunk in range(begin // CHUNK, end // CHUNK):
            yield [self._store(epoch, chunk, computed=(chunk + 1) * CHUNK - 1, scheduled=1)]

    def _store(self, epoch: int, chunk: int, **step: int) -> _Told:
        present = {"chunk_present": True} if chunk < self._known else {}
        self._known = max(self._known, chunk + 1)
        return self._told(Kind.STORE_PLAN, epoch, chunk, start=chunk * CHUNK, count=CHUNK, **step, drafted=0, **present)

    def _told(self, kind: Kind, epoch: int, chunk: int | None = None, **values: Any) -> _Told:
        keys = {each.field: each.key for each in semconv.FIELDS[kind]}
        fields = encoder.field(5, semconv.span_name(kind).encode()) + b"\x30\x01"  # SPAN_KIND_INTERNAL
        fields += (
            _source() + attribute(semconv.EPOCH.key, epoch) + attribute(semconv.REQUEST_SEQUENCE.key, self._number)
        )
        fields += b"".join(attribute(keys[name], value) for name, value in values.items())
        self._number += 1
        has_step = semconv.STEP.field in keys
        return _Told(fields, kind in semconv.ROOTS, self._dice.randrange(2_000, 40_000), chunk, has_step)


class _Shapes:
    """Those of an engine, in which nothing is stored at first."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._lengths = [dice.randrange(1, 5) for _ in range(PREFIXES)]
        self.first = [Shape(dice, prefix=number, held=0) for number in range(PREFIXES)]
        """Those that store the prefixes."""
        self.lawful = [self._shape() for _ in range(SHAPES)]
        self.drifting = {drift: [self._shape(drift) for _ in range(SHAPES // 10)] for drift in DRIFTS}

    def _shape(self, drift: str | None = None) -> Shape:
        prefix = self._dice.randrange(PREFIXES) if self._dice.random() < 0.25 else None
        held = 0 if prefix is None else min(self._lengths[prefix], self.first[prefix].chunks)
        return Shape(self._dice, prefix=prefix, held=held, drift=drift)


@dataclass(slots=True)
class _Request:
    """One that runs: its id, its shape, how far it is, and the fields of its spans that name it."""

    id: str
    shape: Shape
    began_ns: int
    keys: Sequence[bytes]
    child: bytes
    root: bytes
    names: bytes
    step: int = 0


@dataclass
class Engine:
    """An engine with one recorder. `drift_every`: about one drift for so many spans; 0 for none."""

    name: str
    drift_every: int = 0
    _running: list[_Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.name)
        recorder = f"{self._dice.getrandbits(64):016x}"
        resource = _resource(self.name, recorder)
        self._base_ns = time.time_ns() - time.perf_counter_ns()
        self._span_id_base = self._dice.getrandbits(60)
        self._encoder = Encoder(resource, self._span_id_base, self._base_ns)
        """For what concerns no request."""
        pairs = (encoder.key_value(key, value) for key, value in resource.items())
        self._resource = encoder.field(1, b"".join(encoder.field(1, pair) for pair in pairs))
        self._scope = encoder.field(
            1, encoder.field(1, semconv.SCOPE.encode()) + encoder.field(2, __version__.encode())
        )
        self._nobody: Identity = (root_ids(self.name, ""), b"", "", True)
        self._sequences = encoder.SequenceNumbers(semconv.SEQUENCE.key)
        self._steps = encoder.SequenceNumbers(semconv.STEP.key)
        self._shapes = _Shapes(self._dice)
        self._prefixes: dict[int, Sequence[bytes]] = {}
        self._first = list(self._shapes.first)
        """What is still to be stored before anybody finds it, one after the other."""
        self._sequence = self._spans = self._drifts = self._step = self._heartbeat_ns = 0
        self._minutes: set[int] = set()

    def last(self) -> Iterator[Payload]:
        """The requests that end what runs; the last one says goodbye."""
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
        begun, first, now_ns = 0, self._sequence, time.perf_counter_ns()
        while self._sequence - first < BATCH and not (closing and not self._running):
            if not closing and len(self._running) < (1 if self._first else RUNNING):
                self._running.append(self._begin(now_ns))
                begun += 1
            ended = self._advance(spans, now_ns)
            if ended is not None and ended.shape.drift is not None:
                findings.append((ended.shape.drift, ended.id))
        count = self._sequence - first
        self._spans += count
        body = encoder.field(1, self._resource + encoder.field(2, self._scope + b"".join(spans)))
        return Payload(body, count, begun, tuple(findings))

    def _begin(self, now_ns: int) -> _Request:
        dice, shapes = self._dice, self._shapes
        if self._first:
            shape = self._first[-1]
        elif self.drift_every and self._spans // self.drift_every > self._drifts:
            self._drifts += 1
            shape = dice.choice(shapes.drifting[DRIFTS[self._drifts % len(DRIFTS)]])
        else:
            shape = dice.choice(shapes.lawful)
        keys = [_KEY + b"%016x" % dice.getrandbits(64) for _ in range(shape.chunks)]
        if shape.prefix is not None:
            shared = self._prefixes.setdefault(shape.prefix, keys)
            keys[: shape.held] = shared[: shape.held]
        external = f"chatcmpl-{dice.getrandbits(128):032x}"
        name = f"{external}-{dice.getrandbits(32):08x}"
        ids = root_ids(self.name, name)
        trace = encoder.field(1, ids[:16]) + _SAMPLED
        names = attribute(semconv.REQUEST_ID.key, name) + attribute(semconv.EXTERNAL_ID.key, external)
        root = trace + encoder.of_span(ids[16:]) + attribute(semconv.REQUEST_MODEL.key, MODEL)
        root += attribute(semconv.CALLERS_ID.key, external)
        return _Request(name, shape, now_ns, keys, trace + encoder.inside(ids[16:]), root, names)

    def _advance(self, spans: list[bytes], now_ns: int) -> _Request | None:
        """One step of the scheduler, in which one request gets on; returns it if it has ended."""
        number = self._dice.randrange(len(self._running))
        request = self._running[number]
        self._step += 1
        step = self._steps.of(self._step)
        for told in request.shape.steps[request.step]:
            sequence = self._sequence
            self._sequence = sequence + 1
            if told.is_root:
                ids, begin_ns = request.root, request.began_ns
            else:
                ids, begin_ns = request.child + _SPAN_ID(0x12, 8, self._span_id_base + sequence), now_ns
            times = _TIMES(0x39, self._base_ns + begin_ns, 0x41, self._base_ns + now_ns + told.lasts_ns)
            key = b"" if told.chunk is None else request.keys[told.chunk]
            rest = (request.names, told.fields, key, step if told.has_step else b"")
            body = b"".join((ids, times, self._sequences.of(sequence), *rest))
            spans += (_LENGTHS[len(body)], body)
        request.step += 1
        if request.step < len(request.shape.steps):
            return None
        self._running[number] = self._running[-1]
        self._running.pop()
        if self._first:
            self._first.pop()
        return request

    def _heartbeat(self, now_ns: int, *, closing: bool = False) -> Payload:
        """A sign of life. The first of a minute comes with the root of that minute."""
        self._heartbeat_ns, number = now_ns, self._sequence
        self._sequence = number + 1
        values = (number, 0, closing, None, self._step, None, None, None, None)
        event = (Kind.HEARTBEAT.value, b"", self._nobody, number, 0, 0, now_ns, now_ns, None, values)
        (body,) = self._encoder.requests([event], 1)
        minute = (self._base_ns + now_ns) // semconv.ENGINE_NS
        is_first = minute not in self._minutes
        self._minutes.add(minute)
        return Payload(body, 1 + is_first)


def _source() -> bytes:
    """The attributes that every event of the connector has."""
    said: dict[semconv.Attribute, int | str] = {
        semconv.CONNECTOR: "OffloadConnector", semconv.CONNECTOR_ID: "0", semconv.ROLE: "scheduler", semconv.RANK: 0,
        semconv.CHUNK_SIZE: CHUNK,
    }  # fmt: skip
    return b"".join(attribute(each.key, value) for each, value in said.items())


def _resource(engine: str, recorder: str) -> dict[str, Any]:
    return {
        "service.name": "vllm", "host.name": f"host-of-{engine}", "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry", "service.instance.id": recorder * 2, "process.pid": 4711,
        semconv.RECORDER_ID.key: recorder, semconv.ENGINE_ID.key: engine, semconv.BLOCK_SIZE.key: BLOCK,
        semconv.MODEL.key: f"/models/{MODEL}", semconv.SERVED_MODEL.key: MODEL, semconv.ENGINE_VERSION.key: "0.32.0",
        semconv.MAX_BATCHED.key: 8192, semconv.VERSION.key: __version__,
        semconv.CAPABILITIES.key: '{"OffloadConnector":["reports_all_stores"]}',
    }  # fmt: skip
