"""Where spans, accounts and findings are stored: one reading side (`reader`) for the API, whichever database it is.

In: batches from the pipeline. Out: what the API asks for. `sqlite` is the store of one tracer: a log of received spans, and
beside it what is derived from them. `clickhouse` is that of a fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvtrail.tracer.liveness.engine import Launch
from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.known import Place
from kvtrail.tracer.model.markers import Marker
from kvtrail.tracer.savings.minute_sums import SumKey
from kvtrail.tracer.savings.waste import WastedTokens
from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.request_rows import RequestRow

MAX_RECEIPTS = 65_536
"""Digests of received requests that are remembered, to recognize one that is sent again. Senders give up after minutes."""


class StoreError(RuntimeError):
    """The store refused; the text names the file and the reason."""


class StoreInUse(StoreError):
    """Another process writes to the store."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Spans as they were received: what the log of a store is made of.

    Attributes:
        payload: an `ExportTraceServiceRequest` in binary form; every span of it can be read.
        spans: the number of its spans; a step is one.
        last_ns: when the last of them ended.
        requests: the requests that its events are about, by engine and id.
        traces: the traces of its spans.
        named: the external ids that foreign spans name.
    """

    payload: bytes
    spans: int
    last_ns: int
    requests: Collection[tuple[str, str]] = ()
    traces: Collection[str] = ()
    named: Collection[str] = ()


@dataclass(slots=True)
class Batch:
    """What is written together, or not at all.

    Attributes:
        chunk: the received spans, if any.
        digest: of the request that carried them, so that it is recognized when it is sent again.
        seen: by recorder: the numbers of its events that are stored with this batch, as `SeenNumbers.as_text` gives them.
        engines: the descriptions of engines, in the fields of `model.engines.DESCRIPTION`, where new or not written for a
            while.
        requests: the rows of requests that are new or have changed.
        findings: findings that are new or have changed.
        savings: what to add to the sums of the offload's savings.
        wasted: what admissions computed again, new or again as it is known now.
        launches: launches of engines that are new or have changed.
        handoffs: events of hand-offs that have entered the ledger, in order.
        markers: new ones; one with a stored id changes nothing.
        settled: the number of the last span that the rows of requests now include, if it has changed. A restart rebuilds
            those that do not.
        judged: the number of the last span that was judged, where that is not the last one stored.
    """

    chunk: Chunk | None = None
    digest: bytes = b""
    seen: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    requests: list[RequestRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    savings: Mapping[SumKey, int] = field(default_factory=dict)
    wasted: list[WastedTokens] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    handoffs: list[HandoffRow] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    settled: int | None = None
    judged: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFilter:
    """Selects the findings that meet all of its conditions.

    Attributes:
        request, rule, severity, connector: as findings name them; an empty text means any.
        engines: any of these engines; None means any.
        since_ns, until_ns: last seen at or after `since_ns`, and before `until_ns`.
        only, but: of these places, and of none of these; None means any.
    """

    request: str = ""
    rule: str = ""
    severity: str = ""
    connector: str = ""
    engines: Sequence[str] | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    only: Collection[Place] | None = None
    but: Collection[Place] | None = None


EVERY = FindingFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The requests that started at or after `since_ns` and before `before_ns`, of these engines (None means any), and that
    meet all conditions of `where`. One with unknown measures meets none."""

    since_ns: int
    before_ns: int
    engines: Sequence[str] | None = None
    where: Sequence[Condition] = ()


@dataclass(slots=True)
class Group:
    """The requests with the same `name`: how many; the tokens of their prompts (`asked`), those of them from vLLM's own cache
    (`held`) and from the connector (`loaded`), and those that were computed; and their durations by bin
    (`store.duration_bins`)."""

    name: str
    requests: int
    asked: int
    held: int
    loaded: int
    bins: dict[int, int] = field(default_factory=dict)


class Sort(StrEnum):
    """What requests are sorted by, the most first."""

    LATEST = "latest"
    WAITING = "waiting"
    RECOMPUTED = "recomputed"
    LOADS = "loads"
    FINDINGS = "findings"
    DURATION = "duration"
