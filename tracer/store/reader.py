"""The reading side of a store: the API's queries to either database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator

from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ledger.lanes import Lanes, Window
from kvtrail.tracer.store import Selection
from kvtrail.tracer.store.engines import EngineReader
from kvtrail.tracer.store.findings import FindingReader
from kvtrail.tracer.store.measures import MeasureReader
from kvtrail.tracer.store.request_rows import StoredRequest
from kvtrail.tracer.store.requests import RequestReader
from kvtrail.tracer.store.sums import SumReader


class Reader(FindingReader, MeasureReader, SumReader, EngineReader, RequestReader):
    """The reading side of a store, usable from any thread while the writer writes. The methods below differ between the
    databases."""

    @abstractmethod
    def tokens(self, which: Selection) -> dict[str, int]:
        """The tokens of the requests' prompts by cause, over all admissions."""

    @abstractmethod
    def spans_of(self, account: StoredRequest, *, limit: int = 20_000) -> list[Span]:
        """The spans of a request and the foreign spans of its trace, by time; the latest `limit` of them."""

    @abstractmethod
    def spans_named(self, named: Collection[tuple[str, str]]) -> list[Span]:
        """The kvtrail spans with these trace and span ids."""

    @abstractmethod
    def lanes(self, window: Window, *, live: Iterable[str]) -> Lanes:
        """The lanes of a window. The time hardly depends on the store's size. `live` are the running engines."""

    @abstractmethod
    def spans(self, *, since_ns: int, until_ns: int) -> Iterator[list[Span]]:
        """The kvtrail spans that ended in a time range, in lists: in the order of their arrival or, if several tracers write,
        of time."""

    @abstractmethod
    def tail(self, *, after: int, limit: int = 500) -> list[tuple[int, Span]]:
        """Spans in the order of their arrival, with their numbers, after number `after`. The rows of a step share a number,
        and are never split."""
