"""From readings to events: joins lines that belong together, and numbers the events.

The importer assigns the numbers. Each process counts as a recorder. Its events, and those of each request, are numbered from
1: number 0 stands for the events that the log does not show. So the detector treats the process as a recorder that it joined
late and the request as incomplete, and rules that need the whole history answer `unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import CLASSES, Event
from kvtrail.tracer.events.messages import kept
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.unsupported import Lack, declaration
from kvtrail.tracer.ingest.logs.failures import WORKER_CALLS
from kvtrail.tracer.ingest.logs.line_patterns import Reading, Role
from kvtrail.tracer.ingest.logs.lines import Record

FIRST_NUMBER = 1
MAX_STORES = 64
"""Maximum number of open stores of one process; beyond that, the oldest is considered never to end."""
SAME_FAILURE_NS = 60 * 10**9
"""Equal exceptions within this time are one failure, printed by several processes. An exception within this time before an
engine's death is its cause."""
MAX_REQUESTS = 50_000
"""Maximum number of remembered requests; beyond that, the one that was named least recently is forgotten."""
MAX_FAILURES = 10_000
"""Maximum number of remembered exceptions."""
_SCHEDULERS = {
    Kind.LOOKUP, Kind.ALLOC, Kind.LOAD_PLAN, Kind.PREEMPT, Kind.SENT, Kind.RECEIVED, Kind.STATS, Kind.HEARTBEAT,
}  # fmt: skip
_ID = re.compile(r"(?:chat)?cmpl-\S+|\S*[0-9a-f]{8}\S*")
"""The form of a request's id that no other line has named."""
_KEY_ERROR = "KeyError"
"""Its key may be of an engine, a block or a parameter, not only of a request."""
_LACKS = declaration([Lack.CATCHES])


@dataclass(slots=True)
class _Process:
    """A process that wrote lines, with the transfers that it has announced but not yet reported."""

    name: str
    sequence: int = FIRST_NUMBER
    last: tuple[int, str] = (0, "")
    storing: list[Reading] = field(default_factory=list)
    """Stores that have begun but not ended, the oldest first; at most one per request."""
    retrieved: tuple[Record, Reading] | None = None
    short_of: str | None = None
    is_over: bool = False
    """Whether it has died. Later lines with its name, or without a name, are from another process."""


@dataclass(slots=True)
class _Request:
    """The remembered state of a request.

    Attributes:
        next_number: by recorder, the number of its next event.
        lookup: the numbers of its last lookup.
    """

    next_number: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    lookup: dict[str, Any] = field(default_factory=dict)


class Assembler:
    """Puts the readings of one log together."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._processes: dict[str, _Process] = {}
        self._requests = BoundedDict[str, _Request](MAX_REQUESTS)
        """The requests that lines name, the least recently named first."""
        self._raised = BoundedDict[str, int](MAX_FAILURES)
        """The time at which each exception was last printed."""
        self._last_raised: tuple[_Process, Record, str] | None = None
        self._death: tuple[_Process, Record, Reading] | None = None
        """A read death of the engine that waits for its exception, which vLLM prints later."""
        self._died_ns: int | None = None
        """The time at which vLLM last reported the death of its engine."""
        self._went_on = False
        """Whether an engine has continued, or another one has begun, since then."""

    def enter(self, record: Record, reading: Reading) -> Iterator[Event]:
        """Enter one reading; yields the events that are now complete."""
        if self._death is not None and record.at_ns - self._death[1].at_ns > SAME_FAILURE_NS:
            yield from self._dead(self._death)
        process = self._process(record.process)
        if record.precise and process.last == (record.at_ns, record.text):
            return  # from two handlers of one logger, or from ranks that do not name themselves
        process.last = (record.at_ns, record.text)
        if reading.role not in (Role.SHORT_OF, Role.SHORTFALL):
            yield from self._load_is_over(process)
        match reading.role:
            case Role.EVENT:
                yield self._event(process, record, reading)
            case Role.STORING:
                others = [each for each in process.storing if each.request != reading.request]
                process.storing = [*others[1 - MAX_STORES :], reading]
            case Role.STORED:
                yield from self._stored(process, record, reading)
            case Role.NOT_STORED:
                not_stored = [each for each in process.storing if reading.request in (None, each.request)][-1:]
                process.storing = [each for each in process.storing if each not in not_stored]
            case Role.RETRIEVED:
                process.retrieved = (record, reading)
            case Role.SHORT_OF:
                process.short_of = reading.request
                if process.retrieved is not None and process.retrieved[1].request is None:
                    process.retrieved[1].request = reading.request
            case Role.SHORTFALL:
                yield from self._shortfall(process, record, reading)
            case Role.FAILURE:
                yield from self._failure(process, record, reading)
            case Role.DEATH:
                self._read_death(process, record, reading)

    def close(self) -> Iterator[Event]:
        """The events that waited for a further line when the log ended."""
        for process in self._processes.values():
            yield from self._load_is_over(process)
        if self._death is not None:
            yield from self._dead(self._death)

    def _process(self, key: str) -> _Process:
        process = self._processes.get(key)
        if process is None or process.is_over:
            name = f"{self.engine}#{key or 'main'}" if process is None else f"{process.name}~"
            process = self._processes[key] = _Process(name)
        return process

    def _stored(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """Enter a `Stored` line. It counts tokens; the `Storing` line before it names the request and the first token.
        Without that line the position is unknown, and there is no event."""
        of = reading.fields.pop("of")
        begun = [each for each in process.storing if reading.request in (None, each.request)]
        if not begun:
            return
        store = next((each for each in begun if each.fields["count"] == of), begun[0])
        process.storing.remove(store)
        reading.request, reading.fields["start"] = store.request, store.fields["start"]
        yield self._event(process, record, reading)

    def _load_is_over(self, process: _Process) -> Iterator[Event]:
        """Yield the load of a waiting `Retrieved` line. It waits for the two lines with which LMCache reports that the load
        was too short; the first of them names the request."""
        if process.retrieved is not None:
            (record, reading), process.retrieved = process.retrieved, None
            yield self._event(process, record, reading)

    def _shortfall(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        request, process.short_of = process.short_of, None
        if process.retrieved is not None and process.retrieved[1].fields["count"] == reading.fields["count"]:
            load = process.retrieved[1]
            load.fields["expected"], load.error = reading.fields["expected"], reading.error  # as LMCache reports it
            yield from self._load_is_over(process)
            return
        yield from self._load_is_over(process)
        reading.request = request
        lookup = self._lookup(request)
        computed = lookup.get("computed")
        fits = computed is not None and lookup["matched"] - computed == reading.fields["expected"]
        reading.fields["start"] = computed if fits else 0  # 0: an event needs a position, and the log has none
        yield self._event(process, record, reading)

    def _failure(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """Enter an exception once, although several handlers and processes print it as the engine dies. The request that it
        names counts if another line names it too, or if the exception calls it a request and it has the form of an id."""
        error = reading.error or ""
        last_ns = self._raised.pop(error, None)
        self._raised[error] = record.at_ns
        if last_ns is not None and abs(record.at_ns - last_ns) < SAME_FAILURE_NS:
            return
        named = reading.request or ""
        if reading.kind is Kind.ALLOC:
            self._add_lookup(reading)
        elif named not in self._requests and (error.startswith(_KEY_ERROR) or not _ID.fullmatch(named)):
            reading.request = None
        self._last_raised = process, record, error
        yield self._event(process, record, reading)
        if reading.is_fatal:
            self._read_death(process, record, reading)

    def _add_lookup(self, reading: Reading) -> None:
        """Add the total of the preceding lookup to LMCache's assertion. Older versions do not name the request: it is the
        only request, if any, whose last lookup had the same two numbers."""
        numbers = {name: reading.fields[name] for name in ("matched", "computed")}
        if reading.request is None:
            fitting = [name for name, known in self._requests.items() if numbers.items() <= known.lookup.items()]
            reading.request = fitting[0] if len(fitting) == 1 else None
        if total := self._lookup(reading.request).get("total"):
            reading.fields["total"] = total

    def _lookup(self, request: str | None) -> dict[str, Any]:
        """The numbers of a request's last lookup."""
        known = self._requests.get(request or "")
        return {} if known is None else known.lookup

    def _read_death(self, process: _Process, record: Record, reading: Reading) -> None:
        """Enter a death once, although vLLM reports it in several lines and processes."""
        if self._death is not None:
            if reading.is_fatal and not self._death[2].is_fatal:
                self._death = process, record, reading
        elif self._died_ns is None or (self._went_on and record.at_ns - self._died_ns > SAME_FAILURE_NS):
            self._death, self._went_on = (process, record, reading), False
        else:
            self._died_ns = record.at_ns

    def _dead(self, death: tuple[_Process, Record, Reading]) -> Iterator[Event]:
        """The end record of an engine that died, from the process that raised the exception."""
        process, record, reading = death
        self._death, self._died_ns = None, record.at_ns
        error, raised = reading.error or "", self._last_raised
        if raised is not None and not reading.is_fatal and abs(raised[1].at_ns - record.at_ns) <= SAME_FAILURE_NS:
            process, record, error = raised[0], max(record, raised[1], key=lambda each: each.at_ns), raised[2]
        if process.is_over:
            return
        yield from self._load_is_over(process)
        fields = {"recorder_closed": True, "recorder_ended_by": kept(error)}
        yield self._event(process, record, Reading(Role.EVENT, None, Kind.HEARTBEAT, fields))
        process.is_over = True

    def _event(self, process: _Process, record: Record, reading: Reading) -> Event:
        assert reading.kind is not None
        request = reading.request
        number = epoch = 0
        if request is not None:
            known = self._requests.pop(request, None) or _Request()
            self._requests[request] = known
            number = known.next_number.get(process.name, FIRST_NUMBER)
            known.next_number[process.name] = number + 1
            if reading.kind is Kind.PREEMPT:
                known.epoch += 1
            elif reading.kind is Kind.LOOKUP:
                known.lookup = reading.fields
            epoch = known.epoch
        self._went_on |= reading.kind in (Kind.LOOKUP, Kind.RANK_LOOKUP)
        sequence, process.sequence = process.sequence, process.sequence + 1
        scheduler = reading.kind in _SCHEDULERS or (reading.kind is Kind.RANK_LOOKUP and "total" in reading.fields)
        if reading.kind is Kind.FAILURE:
            scheduler = reading.fields["call"] not in WORKER_CALLS
        return CLASSES[reading.kind](
            engine=self.engine,
            recorder=process.name,
            sequence=sequence,
            connector=reading.connector,
            connector_id=reading.connector_id,
            role="scheduler" if scheduler else "worker",
            rank=record.rank,
            start_ns=record.at_ns,
            end_ns=record.at_ns,
            request=request,
            external=None if request is None else semconv.external_id(request),
            request_sequence=number,
            epoch=epoch,
            error=reading.error,
            lacks=_LACKS,
            **reading.fields,
        )
