"""Where spans, accounts and findings are kept: one protocol, so that another database can serve the same api."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvtrail.tracer.detect.efficiency import Cell
from kvtrail.tracer.detect.lanes import Lane, Lanes, Window
from kvtrail.tracer.detect.savings import Row
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.spans import Span


@dataclass(slots=True)
class Batch:
    """What is written together, or not at all.

    Attributes:
        spans: new spans, with the event that each carries, if it is ours.
        accounts: accounts as `Account.as_dict` gives them, with `verdict` and `findings` added.
        findings: findings that are new or have changed.
        efficiency: what is to be added to the sums of the offload's efficiency.
        lanes: the accounts' requests as lanes of the live view.
    """

    spans: list[tuple[Span, Event | None]] = field(default_factory=list)
    accounts: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    efficiency: Mapping[Cell, int] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which findings are meant: those to which all that is said here applies.

    Attributes:
        request, engine, rule, severity, connector: as findings name them; an empty text means any.
        engines: any of these engines; None means any.
        since_ns, until_ns: last seen from then on, and before then.
    """

    request: str = ""
    engine: str = ""
    rule: str = ""
    severity: str = ""
    connector: str = ""
    engines: Sequence[str] | None = None
    since_ns: int | None = None
    until_ns: int | None = None


EVERY = Which()


class Writer(Protocol):
    """The one that writes. Not thread-safe."""

    def known(self, spans: Sequence[Span]) -> set[tuple[str, str]]:
        """(trace id, span id) of those that are stored already: an exporter may send a batch twice."""

    def write(self, batch: Batch) -> None:
        """Store a batch. When this returns, a kill -9 loses nothing of it.

        Raises:
            StoreError: nothing of the batch was stored; the text says why.
        """

    def open_spans(self) -> Iterable[Span]:
        """The spans of requests that have not finished, oldest first: what a restarted tracer must read again."""

    def spans_of_request(self, engine: str, request: str) -> Iterable[Span]:
        """The kvtrail spans of one request, oldest first."""

    def prune(self, *, before_ns: int) -> int:
        """Drop spans, requests and sums of before; returns the number of spans. Findings stay."""

    def close(self) -> None: ...


class Reader(Protocol):
    """Those that read, from any thread, while the writer writes."""

    def requests(
        self, *, search: str = "", status: str = "", verdict: str = "", limit: int = 100, before_ns: int | None = None
    ) -> list[dict[str, Any]]:
        """Requests, latest first; `search` is a part of either id."""

    def request(self, request: str, *, engine: str = "") -> dict[str, Any] | None:
        """One request by its engine's or external id; the latest where an external id was used twice."""

    def spans_of(self, account: dict[str, Any], *, limit: int = 20_000) -> list[Span]:
        """The spans of a request, and the foreign ones of its trace, by time; the latest `limit` of them."""

    def findings(self, which: Which = EVERY, *, limit: int = 100) -> list[dict[str, Any]]:
        """Findings, latest first."""

    def findings_trend(self, which: Which = EVERY, *, step_ns: int) -> list[dict[str, Any]]:
        """How many findings there are by rule, severity and stretch of `step_ns`, with the stretch's begin as `at_ns`; placed
        by when they were last seen."""

    def findings_places(self) -> dict[str, list[str]]:
        """The `rules`, `connectors` and `engines` that have findings, in alphabetical order."""

    def efficiency(
        self, *, since_ns: int, until_ns: int, engine: str = "", connector: str = "", stretch_s: int = 1
    ) -> list[Row]:
        """The sums of a window by stretch of time, engine, connector and epoch: by the minute, and by the hour in windows of
        more than six, the first of them whole; by longer stretches, multiples of these, where `stretch_s` wants them."""

    def engines(self) -> dict[str, dict[str, Any]]:
        """Of each engine ever heard: its `model`, `version` of vLLM, `service` and `host`, as its recorders say, and how many
        of its requests are `open`."""

    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        """The lanes of a window; `live` are the engines whose open requests go on. However much is stored, this is fast."""

    def marks(self, window: Window, lanes: Sequence[Lane], *, limit: int) -> list[dict[str, Any]]:
        """The findings of these lanes, and those of the window that concern no request."""

    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        """Spans in the order of their arrival, with the number to go on after."""

    def last_number(self) -> int:
        """The number of the span that arrived last; 0 when there is none."""

    def activity(self, *, since_ns: int) -> dict[str, dict[str, int]]:
        """For each kind of event since then: `count`, and sums of `returned`, `count_tokens` and `bytes`."""

    def totals(self) -> dict[str, int]:
        """Over all requests: `requests`, `running`, `lookups`, `matched`, `loaded`, `stored`, `preemptions`, `findings`."""


class StoreError(RuntimeError):
    """The store refused; the text names the file and the reason."""
