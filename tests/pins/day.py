"""A made day of a dozen engines, in one tracer's own file and in ClickHouse, under a clock that the test sets.

Its requests hit, miss, are preempted, cut off, handed over and healed; engines are deployed, die, hang and are reset; events
are lost, and findings made. Nothing of it depends on the time, the machine, or chance.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from evicted_story import ABOUT as TELLS_CHUNKS
from fastapi.testclient import TestClient
from history import goodbyes, groups_declared, heartbeats, history
from msgspec.structs import replace
from stores import FleetTracer, clickhouse
from traffic import Engine, served
from wire import as_payload

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.tenants import TenantNames
from kvtrail.tracer.store.reader import Reader

S = 10**9
MINUTE_NS, HOUR_NS = 60 * S, 3600 * S
BEGIN_NS = 1_764_720_000 * S  # 2025-12-03 00:00:00 UTC
NOW_NS = BEGIN_NS + 24 * HOUR_NS
TENANT, DIGEST = "Acme", "5a17c0ffee5a17c0"
HITS = "start 2500 of a b c d\nL 2500 c0 h1696 -> 1696\nA 1696\nS 1696+804\nend"
FEW_HITS = (
    "start 2500 of a b c d\nL 2500 c0 h64 -> 64\nA 64\nS 64+2436\nstore 64+2436 in 77\nend length_capped output 7"
)
TOO_MUCH = "L 2500 c0 h1696 -> 1728\nA 1728\nS 1728+772\nend"
STALE = (
    "L 750 c0 h0 -> 0\nA 0\nS 0+35\nP\nL 750 c384 h256 -> 0\nL 750 c384 h256 -> 256 cached\nA 256 !AssertionError: No"
)
HEALED = "L 750 c0 h256 -> 256\nA 256\nS 256+494\nP\nL 750 c384 h256 -> 0 cached healed 256\nA 0\nS 384+366\nend"
EVICTED = f"""
    cache
    a: start 224 as {DIGEST} of p q r s t u v
    a: L 224 c0 h0 -> 0
    a: A 0
    cache + p q r s t u v
    a: S 0+224
    a: plan store 0+224 keys =p,=q,=r,=s,=t,=u,=v
    a: end computed 224
    cache - r s t u v
    evict =r by other
    evict =s
    evict =t
    evict =u
    evict =v
    b: start 250 as {DIGEST} of p q r s t u v
    b: L 250 c64 h64 -> later
    wait 3
    b: L 250 c64 h64 -> 0
    b: A 0 [1-8]
    b: S 64+186
    b: stats 250 cached 64 external 0 queried 186
    b: end computed 250
"""
RESETS = """
    a: L 96 c0 h64 -> 64 async
    a: A 64 [1-3]
    a: R failed
    a: error [1 2]
    a: L 96 c0 h0 -> 0
    a: A 0
    a: S 0+96 drafts 3
    a: end aborted
    reset
    reset refused
    b: L 96 c0 h64 -> 64
    b: A 64
    b: load 0/64
    b: S 64+32
    b: end
    check loaded 4 wrong drift 12@256 holds zeros
"""
PREFILL = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    gives h1 600/600 of a
    end delayed length_capped handoff computed 600 lease 30
"""
HANDED_OVER = f"""{PREFILL}
    <decode> start 600
    <decode> takes h1 600/600 of a
    <decode> L 600 c0 -> 599 async
    <decode> A 599
    wait 2
    <decode> R
    read
    sent
    <decode> A 0
    <decode> S 599+1
    <decode> S 600+1
    <decode> end
"""
TWO_GROUPS = "L 96 c64 h0 -> 0\nA 0 [1-3 | 0 20-21]\nS 64+32\nend"
ALIVE, CLOSED, LEFT, SILENT = "alive", "closed", "left", "silent"
"""What comes last of an engine: a heartbeat at the end of the day, its goodbye, a heartbeat, or nothing."""


@dataclass(frozen=True)
class Part:
    """What a recorder sends at once: its events, what its resource says, and when it has arrived."""

    events: Sequence[Event]
    about: dict[str, Any]

    @property
    def arrives_ns(self) -> int:
        return max(event.end_ns for event in self.events) + 50_000_000


@dataclass
class Making:
    """The parts of the day, which are made engine by engine."""

    parts: list[Part] = field(default_factory=list)

    def engine(
        self,
        name: str,
        stories: dict[float, str],
        *,
        end: str = CLOSED,
        ended_by: str | None = None,
        lost: str = "",
        about: dict[str, Any] | None = None,
        **how: Any,
    ) -> None:
        """An engine that does each of these, that many hours after the day's beginning. Of what is `lost`, no event comes."""
        events: list[Event] = []
        own = {"kvtrail.model": "opt", "kvtrail.vllm.version": "0.32", "kvtrail.version": "0.1.0", **(about or {})}
        for number, (hours, text) in enumerate(sorted(stories.items())):
            made = history(text, request=f"{name}-{number}-0123abcd", engine=name, recorder=f"rec-{name}", **how)
            part = [e for e in _moved(made, hours, after=events) if e.kind != lost]
            events += part
            self._add(part, own, is_last=number == len(stories) - 1, end=end, ended_by=ended_by)

    def traffic(
        self, name: str, hours: float, seconds: int, *, end: str, ended_by: str | None = None, **about: Any
    ) -> None:
        """An engine with made-up traffic of so long, from then on."""
        from_ns = BEGIN_NS + round(hours * HOUR_NS)
        events = served(Engine(name), from_ns=from_ns, to_ns=from_ns + seconds * S, every_ms=4000, stale_every=6)
        self._add(events, {"kvtrail.model": "llama", **about}, is_last=True, end=end, ended_by=ended_by)

    def pair(self, giver: str, text: str, hours: float) -> None:
        """Two engines, one of which hands over to the other."""
        events = _moved(
            history(text, request=f"{giver}-0123abcd", engine=giver, recorder=giver, connector="NixlConnector"), hours
        )
        for _, each in itertools.groupby(events, key=lambda event: event.recorder):
            self.parts.append(Part(list(each), {semconv.POOL_BLOCKS.key: 50, semconv.MODEL.key: "pairs"}))

    def _add(
        self, events: list[Event], about: dict[str, Any], *, is_last: bool, end: str, ended_by: str | None
    ) -> None:
        last: Sequence[Event] = ()
        if is_last and end != SILENT:
            last = goodbyes(events) if end == CLOSED else heartbeats(events, later_s=1, steps=1)
        last = [replace(each, recorder_ended_by=ended_by) for each in last] if ended_by else last  # type: ignore[call-arg]
        self.parts.append(Part([*events, *last], about))
        if is_last and end == ALIVE:
            beat, at_ns = last[-1], NOW_NS - 5 * S
            self.parts.append(Part([replace(beat, sequence=beat.sequence + 1, start_ns=at_ns, end_ns=at_ns)], about))


def _moved(events: Sequence[Event], hours: float, *, after: Sequence[Event] = ()) -> list[Event]:
    """A history that begins so many hours after the day, and whose numbers go on after others'."""
    by_ns = BEGIN_NS + round(hours * HOUR_NS) - events[0].start_ns
    first = after[-1].sequence + 1 if after else 0
    return [
        replace(e, start_ns=e.start_ns + by_ns, end_ns=e.end_ns + by_ns, sequence=e.sequence + first) for e in events
    ]


def parts() -> list[Part]:
    """The day, in the order in which its parts arrive."""
    day = Making()
    every_6_minutes = [n / 10 for n in range(8)]
    day.engine("mistral-a", {22.1 + n: HITS for n in every_6_minutes}, about=_mistral("0.31"))
    day.engine(
        "mistral-b",
        {23.05 + n: TOO_MUCH if n == 0.4 else FEW_HITS for n in every_6_minutes},
        end=ALIVE,
        about=_mistral("0.32"),
    )
    died = {"service.name": "chat", "k8s.pod.name": "chat-0", "host.name": "node-1", "kvtrail.vllm.version": "0.32"}
    day.traffic("llama-a", 23.5, 40, end=CLOSED, ended_by="AssertionError: Mismatch in tokens to load", **died)
    day.traffic("llama-b", 23.99, 30, end=ALIVE, **died | {"k8s.pod.name": "chat-1"})
    tells = {**TELLS_CHUNKS, "kvtrail.model": "phi"}
    day.engine("phi-a", {6: EVICTED}, chunk=32, about=tells)
    day.engine("phi-b", {23.3: EVICTED}, chunk=32, about=tells, end=LEFT)
    day.engine("phi-lossy", {23.4: EVICTED}, chunk=32, about=tells, lost="kv.evict")
    day.engine("opt-lossy", {12: HITS, 23.6: HITS}, lost="kv.alloc")
    day.engine("opt-resets", {23.7: RESETS}, cache_identity="0123456789abcdef", end=ALIVE)
    day.engine("opt-stale", {3: STALE, 23.2: HEALED}, end=LEFT)
    day.engine("opt-hangs", {20: "L 749 c0 h256 -> 256 async\nA 256"}, end=SILENT)
    day.engine("opt-killed", {21: "L 64 c0 h0 -> 0\nA 0\nS 0+64"}, ended_by=semconv.NO_END_RECORD)
    day.engine(
        "gemma",
        {23.8: TWO_GROUPS},
        about={semconv.GROUPS.key: groups_declared("full 32, window 32 32"), "kvtrail.model": "gemma"},
    )
    day.pair("prefill", HANDED_OVER, 23.9)
    day.pair("kept", PREFILL, 23.9999 - 1 / 360)
    return sorted(day.parts, key=lambda part: (part.arrives_ns, part.events[0].recorder))


def _mistral(version: str) -> dict[str, Any]:
    return {"kvtrail.model": "mistral", "kvtrail.vllm.version": version, "service.name": "shop"}


class Day:
    """The day, stored."""

    def __init__(self, folder: Path) -> None:
        self.now_ns = BEGIN_NS
        with self.clock():
            (folder / "tenants.yaml").write_text(f"{DIGEST}: {TENANT}\n")
            self._tenants = TenantNames(folder / "tenants.yaml")
            self.tracer = FleetTracer(folder, clickhouse())
            for number, part in enumerate(parts()):
                self._receive(part, sends=number % 20 == 19)
            self.now_ns = NOW_NS
            self.tracer.pipeline.ingest(as_payload([self._foreign()]), transport="http")
            self.tracer.send()
        self.path = self.tracer.path

    def _receive(self, part: Part, *, sends: bool) -> None:
        self.now_ns = part.arrives_ns
        self.tracer.hear(part.events, **part.about)
        self.tracer.pipeline.tidy()
        if sends:
            self.tracer.send()

    def _foreign(self) -> Span:
        """vLLM's own span of a request that it has."""
        account = self.tracer.local.requests(limit=1)[0]
        return Span(
            trace_id=account["trace_id"], span_id="e" * 16, parent_id="", name="llm_request", scope="vllm",
            start_ns=account["started_ns"], end_ns=account["last_ns"], error="it failed",
            attributes={"gen_ai.request.id": account["external"], "n": 5, "share": 0.5, "is": True, "all": [1, "a"]},
            resource={"service.name": "vllm"},
        )  # fmt: skip

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Time stands still at `now_ns`."""
        with (
            patch("time.time_ns", lambda: self.now_ns),
            patch("time.monotonic_ns", lambda: self.now_ns),
            patch("time.time", lambda: self.now_ns / S),
        ):
            yield

    def served_from(self, reader: Reader) -> TestClient:
        """The API of the tracer, with the answers of this reader."""
        metrics = self.tracer.pipeline.metrics if reader is self.tracer.local else Metrics()
        return TestClient(application(self.tracer.pipeline, reader, metrics, tenants=self._tenants))

    @cached_property
    def local(self) -> TestClient:
        """The API with the answers of the tracer's own file."""
        return self.served_from(self.tracer.local)

    @cached_property
    def fleet(self) -> TestClient:
        """The API with ClickHouse's answers."""
        return self.served_from(self.tracer.fleet)


@contextmanager
def stored() -> Iterator[Day]:
    """The day in stores of its own."""
    with tempfile.TemporaryDirectory() as folder:
        day = Day(Path(folder))
        yield day
        day.tracer.pipeline.close()
