"""Where spans, accounts and findings are stored: one protocol, so that another database can serve the same API.

In: batches from the pipeline. Out: what the API asks for. `sqlite` is the default engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvtrail.tracer.detect.lanes import Lane, Lanes, Window
from kvtrail.tracer.detect.savings import Cell, SavingsRow
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.spans import Span


class StoreError(RuntimeError):
    """The store refused; the text names the file and the reason."""


@dataclass(slots=True)
class Batch:
    """What is written together, or not at all.

    Attributes:
        spans: new spans, each with its event if it is one of kvtrail's.
        accounts: accounts as `Account.as_dict` gives them, with `verdict`, `findings` and `unknown` (the reason, where the
            verdict is unknown) added.
        findings: findings that are new or have changed.
        savings: what to add to the sums of the offload's savings.
        lanes: the requests of `accounts` as lanes of the live view.
    """

    spans: list[tuple[Span, Event | None]] = field(default_factory=list)
    accounts: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    savings: Mapping[Cell, int] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFilter:
    """Selects the findings that meet all of its conditions.

    Attributes:
        request, engine, rule, severity, connector: as findings name them; an empty text means any.
        engines: any of these engines; None means any.
        since_ns, until_ns: last seen at or after `since_ns`, and before `until_ns`.
    """

    request: str = ""
    engine: str = ""
    rule: str = ""
    severity: str = ""
    connector: str = ""
    engines: Sequence[str] | None = None
    since_ns: int | None = None
    until_ns: int | None = None


EVERY = FindingFilter()


class Writer(Protocol):
    """The writing side of a store. Not thread-safe."""

    def known(self, spans: Sequence[Span]) -> set[tuple[str, str]]:
        """(trace id, span id) of the spans that are stored already: an exporter may send a batch twice."""

    def write(self, batch: Batch) -> Sequence[Exception]:
        """Store a batch. After this returns, a kill -9 loses nothing of it. What no database can hold (a number too large, a
        text that is none) is left out: returns an error for each such part. An empty batch shows whether the store can be
        written.

        Raises:
            StoreError: nothing of the batch was stored; the text says why.
        """

    def open_spans(self) -> Iterable[Span]:
        """The spans of requests that have not finished, oldest first: what a restarted tracer must read again."""

    def spans_of_request(self, engine: str, request: str) -> Iterable[Span]:
        """The kvtrail spans of one request, oldest first."""

    def prune(self, *, before_ns: int) -> int:
        """Drop spans, requests and sums older than `before_ns`; returns the number of spans. Findings stay."""

    def drop_spans(self, requests: Iterable[tuple[str, str]]) -> None:
        """Drop the spans of requests, by engine and id; their accounts, lanes, sums and findings stay."""

    def close(self) -> None: ...


class Reader(Protocol):
    """The reading side of a store, usable from any thread while the writer writes."""

    def requests(
        self, *, search: str = "", status: str = "", verdict: str = "", limit: int = 100, before_ns: int | None = None
    ) -> list[dict[str, Any]]:
        """Requests, latest first; `search` is a part of either id, or a whole trace id."""

    def request(self, request: str, *, engine: str = "") -> dict[str, Any] | None:
        """One request by its engine's or external id; the latest one if an external id was used twice."""

    def spans_of(self, account: dict[str, Any], *, limit: int = 20_000) -> list[Span]:
        """The spans of a request and the foreign spans of its trace, by time; the latest `limit` of them."""

    def findings(self, which: FindingFilter = EVERY, *, limit: int = 100) -> list[dict[str, Any]]:
        """Findings, latest first."""

    def findings_trend(self, which: FindingFilter = EVERY, *, step_ns: int) -> list[dict[str, Any]]:
        """The number of findings by rule, severity and stretch of `step_ns`, which begins at `at_ns`. A finding counts
        where it was last seen."""

    def findings_places(self) -> dict[str, list[str]]:
        """The `rules`, `connectors` and `engines` that have findings, in alphabetical order."""

    def savings(self, *, since_ns: int, until_ns: int, stretch_s: int = 1) -> list[SavingsRow]:
        """The sums of a range of time by stretch, engine, connector and epoch.

        A stretch is a minute, or an hour in ranges longer than six hours, and the first one is always whole. `stretch_s`
        asks for longer stretches, which are multiples of these.
        """

    def names(self) -> dict[str, str]:
        """For each engine ever heard from: its name for people, which no other has."""

    def engines(self) -> dict[str, dict[str, Any]]:
        """For each engine ever heard from: its `name` for people; the fields of `model.engines.DESCRIPTION`, as its
        recorders report them; and how many of its requests are `open`."""

    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        """The lanes of a window, quickly, however much is stored. `live` are the engines whose open requests go on."""

    def marks(self, window: Window, lanes: Sequence[Lane], *, limit: int) -> list[dict[str, Any]]:
        """The findings of these lanes, and those of the window that concern no request."""

    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        """Spans in the order of their arrival, with their numbers, from the one after number `after`."""

    def last_number(self) -> int:
        """The number of the span that arrived last; 0 if there is none."""

    def activity(self, *, since_ns: int) -> dict[str, dict[str, int]]:
        """For each kind of event since then: `count`, and the sums of `returned`, `count_tokens` and `bytes`."""

    def totals(self) -> dict[str, int]:
        """Over all requests: `requests`, `running`, `lookups`, `matched`, `loaded`, `stored`, `preemptions`, `drifting`
        and `findings`."""
