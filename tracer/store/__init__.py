"""Where spans, accounts and findings are stored: one protocol, so that another database can serve the same API.

In: batches from the pipeline. Out: what the API asks for. `sqlite` is the store of one tracer: a log of received spans, and
beside it what is derived from them. `clickhouse` is that of a fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ledger.lanes import Lane, Lanes, Window
from kvtrail.tracer.liveness.engine import Launch
from kvtrail.tracer.model.conditions import Condition
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.grouping import By
from kvtrail.tracer.model.known import Place, Sighting
from kvtrail.tracer.model.markers import Marker
from kvtrail.tracer.savings.minute_sums import SavingsRow, SumKey
from kvtrail.tracer.savings.waste import WastedTokens, WasteFilter, WasteSum
from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.request_rows import RequestRow, StoredRequest

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


class Reader(Protocol):
    """The reading side of a store, usable from any thread while the writer writes."""

    def requests(
        self,
        *,
        search: str = "",
        status: str = "",
        verdict: str = "",
        engines: Sequence[str] | None = None,
        limit: int = 100,
        since_ns: int | None = None,
        before_ns: int | None = None,
        where: Sequence[Condition] = (),
        sort: Sort = Sort.LATEST,
    ) -> list[StoredRequest]:
        """Requests that started at or after `since_ns` and before `before_ns`; `search` is a part of either id, or a whole
        trace id, `engines` selects engines (None means any), and all conditions of `where` are met."""

    def durations(self, which: Selection, *, of: str, step_ns: int) -> list[tuple[int, int, int]]:
        """A measure of time over time: for each interval of `step_ns`, by its number since 1970, and each bin of
        `store.duration_bins`, the number of requests that started in it; none where it is zero."""

    def count(self, which: Selection) -> int:
        """How many requests these are."""

    def tokens(self, which: Selection) -> dict[str, int]:
        """The tokens of these requests' prompts by cause, over all admissions."""

    def groups(
        self, which: Selection, *, by: By, of: str, limit: int, names: Collection[str] | None = None
    ) -> list[Group]:
        """The largest groups of these requests, with this measure of time, the largest first; with `names`, of these."""

    def request(self, request: str, *, engine: str = "") -> StoredRequest | None:
        """One request by its engine's or external id; the latest one if an external id was used twice."""

    def outcomes(self, of: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str | None]]:
        """The `status` and `outcome` of the accounts of these requests, by engine and id, where they are known."""

    def endings(self, which: Selection) -> list[tuple[str, str, int]]:
        """How many of these requests each engine has with each ending, as `liveness.outcome.ending_of` gives it."""

    def spans_of(self, account: StoredRequest, *, limit: int = 20_000) -> list[Span]:
        """The spans of a request and the foreign spans of its trace, by time; the latest `limit` of them."""

    def spans_named(self, named: Collection[tuple[str, str]]) -> list[Span]:
        """The kvtrail spans with these trace and span ids."""

    def findings(
        self, which: FindingFilter = EVERY, *, limit: int = 100, oldest_first: bool = False
    ) -> list[dict[str, Any]]:
        """Findings, by when they were last seen: latest or oldest first."""

    def findings_in_brief(self, which: FindingFilter = EVERY, *, limit: int) -> list[dict[str, Any]]:
        """Of each finding, latest first: its `id`, `rule`, `severity`, `engine`, `connector` and `request`, how often it was
        seen (`count`) and how often it was `healed`: what is needed to count what many of them did."""

    def finding_counts(self, which: FindingFilter = EVERY, *, step_ns: int) -> list[tuple[Place, str, int, int]]:
        """The number of findings by place, severity and interval of `step_ns`: these three, the last by its beginning, and
        the number. A finding counts where it was last seen."""

    def sightings(self) -> list[Sighting]:
        """When the findings of each place were first and last seen, over all time."""

    def savings(self, *, since_ns: int, until_ns: int, stretch_s: int = 1) -> list[SavingsRow]:
        """The sums of a range of time by interval, engine, connector and epoch.

        An interval is a minute, or an hour in ranges longer than six hours, and the first one is always complete.
        `stretch_s` asks for longer ones, which are multiples of these.
        """

    def wasted(self, by: Sequence[By], which: WasteFilter, *, limit: int) -> list[WasteSum]:
        """What admissions computed again, summed up by one or more labels, the most tokens first."""

    def wasted_from(self, which: WasteFilter, *, limit: int) -> int:
        """When the first of the latest `limit` rows of `wasted` that the filter selects by time was admitted; its `since_ns`
        where there are no more."""

    def names(self) -> dict[str, str]:
        """The unique name for people of each engine that was ever received."""

    def engines(self) -> dict[str, dict[str, Any]]:
        """For each engine that was ever received: its `name` for people; the fields of `model.engines.DESCRIPTION`, as its
        recorders report them; and how many of its requests are `open`."""

    def launches(self, *, since_ns: int | None = None, until_ns: int | None = None) -> list[Launch]:
        """The launches of engines; with a range of time, those that ended in it, its end included."""

    def markers(self, *, since_ns: int, until_ns: int, limit: int) -> list[Marker]:
        """The markers that are stored of a range of time, its end included, by time; the latest `limit` of each kind. Those
        of launches follow from `launches`."""

    def heard(self) -> dict[str, int]:
        """By engine: the time of its last received data, noted at most once a minute."""

    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        """The lanes of a window, quickly, however much is stored. `live` are the engines that are running."""

    def marks(self, window: Window, lanes: Sequence[Lane], *, limit: int) -> list[dict[str, Any]]:
        """The findings of these lanes, and those of the window that concern no request."""

    def spans(self, *, since_ns: int, until_ns: int) -> Iterator[list[Span]]:
        """The kvtrail spans that ended in a range of time, in lists: in the order of their arrival or, where several tracers
        write, of time."""

    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        """Spans in the order of their arrival, with their numbers, from the one after number `after`. The rows of a step
        share a number, and are never split."""

    def totals(self) -> dict[str, int]:
        """Over all requests: `requests`, `running`, `lookups`, `matched`, `loaded`, `stored`, `preemptions`, `drifting`
        and `findings`."""
