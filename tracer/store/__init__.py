"""The store of spans, accounts and findings, with one reading side (`reader`) for the API over either database.

In: batches from the pipeline. Out: answers for the API. `sqlite` is the store of one tracer: a log of received spans, and
tables of data derived from them. `clickhouse` is the store of a fleet.
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
from kvtrail.tracer.savings.minute_sums import StepKey
from kvtrail.tracer.savings.waste import WastedTokens
from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.request_rows import RequestRow

MAX_RECEIPTS = 65_536
"""Maximum number of remembered digests of received requests, to recognize duplicates. Senders give up after minutes."""


class StoreError(RuntimeError):
    """The store rejected an operation; the text names the file and the reason."""


class StoreInUse(StoreError):
    """Another process writes to the store."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Spans as they were received: a unit of a store's log.

    Attributes:
        payload: an `ExportTraceServiceRequest` in binary form; all its spans can be read.
        spans: the number of its spans; a step counts as one.
        last_ns: end of the span that ended last.
        requests: the requests of its events, by engine and id.
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
    """Data that is written atomically.

    Attributes:
        chunk: the received spans, if any.
        digest: digest of the request that carried them, to recognize duplicates.
        seen: by recorder: the numbers of its events stored with this batch, in the format of `SeenNumbers.as_text`.
        engines: the descriptions of engines, with the fields of `model.engines.DESCRIPTION`, if new or not written for a
            while.
        requests: new and changed rows of requests.
        findings: new and changed findings.
        savings: increments of the sums of the offload's savings.
        wasted: tokens that admissions recomputed; a row may be written again when more is known.
        launches: new and changed launches of engines.
        handoffs: events of hand-offs that have entered the ledger, in order.
        markers: new markers; a marker with a stored id changes nothing.
        settled: the number of the last span that the rows of requests now include, if it has changed. A restart rebuilds
            the other rows.
        judged: the number of the last judged span, if it is not the last stored one.
    """

    chunk: Chunk | None = None
    digest: bytes = b""
    seen: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    requests: list[RequestRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    savings: Mapping[StepKey, int] = field(default_factory=dict)
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
        request, rule, severity, connector: values of the finding's fields; an empty text means any.
        engines: any of these engines; None means any.
        since_ns, until_ns: last seen at or after `since_ns`, and before `until_ns`.
        only, but: included and excluded places; None means any.
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
    """The requests with the same `name`: their number; the tokens of their prompts (`asked`), and how many of them came from
    vLLM's own cache (`held`) and from the connector (`loaded`); and their durations by bin (`store.duration_bins`)."""

    name: str
    requests: int
    asked: int
    held: int
    loaded: int
    bins: dict[int, int] = field(default_factory=dict)


class Sort(StrEnum):
    """Sort keys of requests, in descending order."""

    LATEST = "latest"
    WAITING = "waiting"
    RECOMPUTED = "recomputed"
    LOADS = "loads"
    FINDINGS = "findings"
    DURATION = "duration"
