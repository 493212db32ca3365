"""The accesses to each connector's store in a recorded history, and the hits of the run itself.

It reads events in the order of the recording, not facts in that of each request: what an access finds depends on what
other requests have accessed before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtrail.tracer.capacity.accesses import Access, RequestPrefix, room_of
from kvtrail.tracer.events.events import Alloc, Event, Lookup, RequestEnd, RequestStart, Reset, Schedule, Store
from kvtrail.tracer.events.hash_chains import Chain, Chains
from kvtrail.tracer.ledger.facts import Offers
from kvtrail.tracer.savings.prefill import PrefillTimer

Owner = tuple[str, str]
"""An engine, and one of its connectors."""


@dataclass(slots=True)
class Stream:
    """The accesses to one connector's store.

    Attributes:
        engine, connector: that were asked.
        chunk_size: tokens in a chunk of its store; of a block, where the store's chunks are not known.
        accesses: in order; None stands for a reset of the store.
        admissions: lookups with an answer that was used.
        asked, local, taken: tokens of the requests at their admissions; those of them in vLLM's own cache, and those that
            the connector was to load.
        unhashed: admissions of requests without recorded block hashes: they are in no access.
        first_ns, last_ns: the times of the first and the last admission.
        chunk_bytes: bytes of a chunk on each worker, where copies report bytes.
        prefill_rate: the engine's, in tokens a second, measured from its own steps where those are recorded.
    """

    engine: str
    connector: str
    chunk_size: int
    accesses: list[Access | None] = field(default_factory=list)
    admissions: int = 0
    asked: int = 0
    local: int = 0
    taken: int = 0
    unhashed: int = 0
    first_ns: int = 0
    last_ns: int = 0
    chunk_bytes: float | None = None
    prefill_rate: float | None = None

    @property
    def hours(self) -> float:
        """From the first admission to the last one."""
        return (self.last_ns - self.first_ns) / 3.6e12


@dataclass(slots=True)
class _Request:
    """A request that has not ended.

    Attributes:
        chain: the hashes of its full blocks that are known by now.
        offers: of the connectors, for the admission that is coming.
        prefixes: what can be stored of it, by connector.
        total: its tokens at its latest lookup.
    """

    chain: Chain = field(default_factory=Chain)
    total: int = 0
    offers: Offers = field(default_factory=Offers)
    prefixes: dict[Owner, RequestPrefix] = field(default_factory=dict)


class Streams:
    """Sorts the events of a history, in order, into streams."""

    def __init__(self) -> None:
        self._streams: dict[Owner, Stream] = {}
        self._requests: dict[tuple[str, str], _Request] = {}
        self._chains: defaultdict[str, Chains] = defaultdict(Chains)
        """By engine."""
        self._copied: dict[Owner, tuple[int, int]] = {}
        """Bytes in the store, and tokens, of what the first worker has stored, by engine and name of the connector."""
        self._prefill_timer = PrefillTimer()
        self._prefill: dict[str, tuple[int, int]] = {}
        """Tokens and nanoseconds of measured prefill, by engine."""

    def enter(self, event: Event) -> None:
        """Enter one event."""
        match event:
            case RequestStart():
                self._chains[event.engine].add(self._of(event).chain, event)
            case Lookup():
                self._looked_up(event)
            case Schedule():
                self._ran(event)
            case Alloc():
                self._admitted(event)
            case RequestEnd():
                self._ended(event)
            case Reset() if event.succeeded is not False and (stream := self._streams.get(_owner(event))):
                stream.accesses.append(None)
            case Store(rank=0) if (stored := room_of(event)) is not None:
                held, tokens = self._copied.get((event.engine, event.connector), (0, 0))
                self._copied[event.engine, event.connector] = (held + stored, tokens + event.count)

    def streams(self) -> list[Stream]:
        """The streams of connectors with any access, in the order of their first admission."""
        for stream in self._streams.values():
            held, tokens = self._copied.get((stream.engine, stream.connector), (0, 0))
            stream.chunk_bytes = held / tokens * stream.chunk_size if tokens else None
            prefilled, took_ns = self._prefill.get(stream.engine, (0, 0))
            stream.prefill_rate = prefilled / took_ns * 1e9 if took_ns else None
        return list(self._streams.values())

    def _of(self, event: Event) -> _Request:
        return self._requests.setdefault((event.engine, event.request or ""), _Request())

    def _looked_up(self, event: Lookup) -> None:
        request = self._of(event)
        self._chains[event.engine].add(request.chain, event)
        request.offers.enter(event)
        if event.error is None and event.returned is not None:
            request.total = event.total

    def _admitted(self, event: Alloc) -> None:
        request, owner = self._of(event), _owner(event)
        admitted = request.offers.allocate(event)
        if admitted is None or admitted.lookup.epoch != event.epoch:
            return
        lookup = admitted.lookup
        size = lookup.chunk_size or lookup.block_size
        if not size:
            return
        stream = self._streams.get(owner)
        if stream is None:
            stream = self._streams[owner] = Stream(event.engine, event.connector, size, first_ns=event.end_ns)
        stream.last_ns = max(stream.last_ns, event.end_ns)
        stream.admissions += 1
        stream.asked += lookup.total
        stream.local += min(lookup.computed, lookup.total)
        stream.taken += event.allocated
        if not request.chain.is_whole and lookup.total >= size:
            stream.unhashed += 1
        prefix = request.prefixes[owner] = RequestPrefix(request.chain, size, event.block_size or 0)
        stream.accesses.append(prefix.admit(lookup, event))

    def _ran(self, event: Schedule) -> None:
        request = self._of(event)
        request.offers.use()
        self._computed(request, event.computed + event.scheduled)
        if (measured := self._prefill_timer.enter(event, request.total)) is not None:
            tokens, took_ns = self._prefill.get(event.engine, (0, 0))
            self._prefill[event.engine] = (tokens + measured.tokens, took_ns + measured.took_ns)

    def _ended(self, event: RequestEnd) -> None:
        """A request has ended; the hashes of its generated tokens are reported by now."""
        request = self._requests.pop((event.engine, event.request or ""), None)
        if request is None:
            return
        self._chains[event.engine].add(request.chain, event)
        self._computed(request, event.computed or 0)

    def _computed(self, request: _Request, computed: int) -> None:
        """What a request has computed can be stored."""
        for owner, prefix in request.prefixes.items():
            if (access := prefix.compute(computed)) is not None:
                self._streams[owner].accesses.append(access)


def streams_of(events: Iterable[Event]) -> list[Stream]:
    """The streams of a history."""
    streams = Streams()
    for event in events:
        streams.enter(event)
    return streams.streams()


def _owner(event: Event) -> Owner:
    return event.engine, event.connector_id
