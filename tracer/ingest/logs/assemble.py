"""From readings to events: lines that belong together become one, and each event gets its number.

Numbers are the importer's own. A process is a recorder, and its events are numbered from 1, as those of a request are: number
0 is what the log did not show. So the detector takes it for a recorder that was running before anybody listened, calls the
request incomplete, and the rules that need its history say `unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, Event
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.failures import WORKER_CALLS
from kvtrail.tracer.ingest.logs.lines import Record
from kvtrail.tracer.ingest.logs.readings import Reading, Role
from kvtrail.tracer.ingest.logs.story import Stories

FIRST_NUMBER = 1
MAX_STORES = 64
"""The most open stores of one process; beyond it the oldest is taken for one that does not end."""
SAME_FAILURE_NS = 60 * 10**9
"""Within this time, the same exception is the same failure, printed by another process."""
_SCHEDULERS = {
    Kind.LOOKUP, Kind.ALLOC, Kind.LOAD_PLAN, Kind.PREEMPT, Kind.SCHEDULE, Kind.SENT, Kind.RECEIVED, Kind.STATS,
}  # fmt: skip
_ID = re.compile(r"(?:chat)?cmpl-\S+|\S*[0-9a-f]{8}\S*")
"""What a request's id looks like where no event has named it."""


@dataclass(slots=True)
class _Process:
    """One process that wrote lines: what it has announced and not yet reported."""

    name: str
    sequence: int = FIRST_NUMBER
    last: tuple[int, str] = (0, "")
    storing: list[tuple[Record, Reading]] = field(default_factory=list)
    """Stores that have begun and not ended, the oldest first."""
    retrieved: tuple[Record, Reading] | None = None
    short_of: str | None = None
    next_number: dict[str, int] = field(default_factory=dict)


class Assembler:
    """Puts the readings of one log together; `repeated` counts the messages that were printed twice."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.stories = Stories()
        self.repeated = 0
        self._processes: dict[str, _Process] = {}
        self._known: set[str] = set()
        """Requests that have events."""
        self._epochs: dict[str, int] = {}
        self._lookups: dict[str, dict[str, Any]] = {}
        """The numbers of each request's last lookup."""
        self._failed: set[tuple[Any, ...]] = set()
        self._raised: dict[str, int] = {}
        """When an exception was printed last."""

    def enter(self, record: Record, reading: Reading) -> Iterator[Event]:
        """Enter one reading; yields the events that are now complete."""
        process = self._processes.get(record.process)
        if process is None:
            process = self._processes[record.process] = _Process(f"{self.engine}#{record.process or 'main'}")
        if record.precise and process.last == (record.at_ns, record.text):
            self.repeated += 1  # two handlers of one logger, or ranks that do not say who they are
            return
        process.last = (record.at_ns, record.text)
        if reading.role is not Role.SHORT_OF and reading.role is not Role.SHORTFALL:
            yield from self._load_is_over(process)
        match reading.role:
            case Role.EVENT:
                if reading.kind is Kind.LOOKUP or reading.kind is Kind.RANK_LOOKUP:
                    yield from self._store_is_lost(process, lambda begun: begun.request == reading.request)
                yield self._event(process, record, reading)
            case Role.STORING:
                yield from self._store_is_lost(process, lambda begun: begun.request == reading.request)
                process.storing.append((record, reading))
                if len(process.storing) > MAX_STORES:
                    oldest = process.storing[0][1]
                    yield from self._store_is_lost(process, lambda begun: begun is oldest)
            case Role.STORED:
                yield from self._stored(process, record, reading)
            case Role.RETRIEVED:
                process.retrieved = (record, reading)
            case Role.SHORT_OF:
                process.short_of = reading.request
                if process.retrieved is not None and process.retrieved[1].request is None:
                    process.retrieved[1].request = reading.request
            case Role.SHORTFALL:
                yield from self._shortfall(process, record, reading)
            case Role.MISMATCH:
                yield from self._mismatch(process, record, reading)
            case Role.FAILURE:
                yield from self._failure(process, record, reading)
            case Role.NOTE:
                self.stories.add(record, reading)

    def close(self, end_ns: int = 0) -> Iterator[Event]:
        """The events that waited for a line which did not come until `end_ns`, the time of the log's last line."""
        for process in self._processes.values():
            yield from self._load_is_over(process)
            for record, reading in process.storing:
                if end_ns - record.at_ns > 10**9:
                    reading.words += f", the log goes on for {(end_ns - record.at_ns) // 10**9} seconds"
            yield from self._store_is_lost(process, lambda begun: True)

    def _stored(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """`Stored` counts tokens, `Storing` before it names the request and the first token. Without it the place is
        unknown: a part of the story, and no event."""
        of = reading.fields.pop("of")
        begun = [each for each in process.storing if reading.request in (None, each[1].request)]
        place = next((each for each in begun if each[1].fields["count"] == of), begun[0] if begun else None)
        if place is None:
            reading.words += "; from which position on is not printed"
            self.stories.add(record, reading)
            return
        process.storing.remove(place)
        start, count = place[1].fields["start"], reading.fields["count"]
        reading.request, reading.fields["start"] = place[1].request, start
        reading.words = f"stored {count} tokens, [{start}, {start + count})"
        yield self._event(process, record, reading)

    def _store_is_lost(self, process: _Process, which: Callable[[Reading], bool]) -> Iterator[Event]:
        """Stores that have begun and are not reported again: each is a transfer that does not end."""
        lost = [each for each in process.storing if which(each[1])]
        process.storing = [each for each in process.storing if each not in lost]
        for record, reading in lost:
            reading.kind, reading.remarkable = Kind.STORE_PLAN, True
            reading.words += ", and no line says that it has ended"
            reading.fields["transfer_id"] = record.number
            yield self._event(process, record, reading)

    def _failure(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """An exception is printed by several handlers and processes as the engine dies; it is raised once."""
        error = reading.error or ""
        last_ns, self._raised[error] = self._raised.get(error), record.at_ns
        if last_ns is not None and abs(record.at_ns - last_ns) < SAME_FAILURE_NS:
            self.repeated += 1
            return
        if reading.request not in self._known and not _ID.fullmatch(reading.request or ""):
            reading.request = None
        yield self._event(process, record, reading)

    def _load_is_over(self, process: _Process) -> Iterator[Event]:
        """A `Retrieved` line waits for the two lines with which LMCache complains of a load that fell short: they are
        about the same load, and the first of them names the request."""
        if process.retrieved is not None:
            (record, reading), process.retrieved = process.retrieved, None
            yield self._event(process, record, reading)

    def _shortfall(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        request, process.short_of = process.short_of, None
        if process.retrieved is not None and process.retrieved[1].fields["count"] == reading.fields["count"]:
            load = process.retrieved[1]
            load.words += f"; {reading.fields['expected']} of them were new to vLLM"
            load.fields["expected"], load.error = reading.fields["expected"], reading.error  # LMCache's own complaint
            yield from self._load_is_over(process)
            return
        yield from self._load_is_over(process)
        reading.request = request
        lookup = self._lookups.get(request or "", {})
        computed = lookup.get("computed")
        fits = computed is not None and lookup["matched"] - computed == reading.fields["expected"]
        reading.fields["start"] = computed if fits else 0  # 0: the vocabulary demands a place, and the log has none
        yield self._event(process, record, reading)

    def _mismatch(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """The assertion is printed by several handlers as the engine dies; it fails once. Older versions do not name the
        request: it is the only one with a last lookup of the same two numbers, if there is one."""
        numbers = {name: reading.fields[name] for name in ("matched", "computed")}
        if reading.request is None:
            fitting = [request for request, lookup in self._lookups.items() if numbers.items() <= lookup.items()]
            reading.request = fitting[0] if len(fitting) == 1 else None
        key = (reading.request, reading.fields["allocated"], *numbers.values())
        if key in self._failed:
            self.repeated += 1
            return
        self._failed.add(key)
        if total := self._lookups.get(reading.request or "", {}).get("total"):
            reading.fields["total"] = total
        yield self._event(process, record, reading)

    def _event(self, process: _Process, record: Record, reading: Reading) -> Event:
        assert reading.kind is not None
        request = reading.request
        number = 0
        if request is not None:
            self._known.add(request)
            number = process.next_number.get(request, FIRST_NUMBER)
            process.next_number[request] = number + 1
            if reading.kind is Kind.PREEMPT:
                self._epochs[request] = self._epochs.get(request, 0) + 1
            elif reading.kind is Kind.LOOKUP:
                self._lookups[request] = reading.fields
        self.stories.add(record, reading)
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
            epoch=self._epochs.get(request or "", 0),
            error=reading.error,
            **reading.fields,
        )
