"""From readings to events: lines that belong together become one, and each event gets its number.

Numbers are the importer's own. A process is a recorder, and its events are numbered from 1, as those of a request are: number
0 is what the log did not show. So the detector takes it for a recorder that was running before anybody listened, calls the
request incomplete, and the rules that need its history say `unknown`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, Event
from kvtrail.tracer.events.messages import kept
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.events.unsupported import Lack, declaration
from kvtrail.tracer.ingest.logs.failures import WORKER_CALLS
from kvtrail.tracer.ingest.logs.line_patterns import Reading, Role
from kvtrail.tracer.ingest.logs.lines import Record
from kvtrail.tracer.ingest.logs.timelines import Timelines

FIRST_NUMBER = 1
MAX_STORES = 64
"""The most open stores of one process; beyond it the oldest is taken for one that does not end."""
SAME_FAILURE_NS = 60 * 10**9
"""Within this time, the same exception is the same failure, printed by another process; and an engine died of what raised."""
MAX_REQUESTS = 50_000
"""The most requests remembered; beyond it the one that was named least recently is forgotten."""
MAX_FAILURES = 10_000
"""The most exceptions remembered."""
_SCHEDULERS = {
    Kind.LOOKUP, Kind.ALLOC, Kind.LOAD_PLAN, Kind.PREEMPT, Kind.SCHEDULE, Kind.SENT, Kind.RECEIVED, Kind.STATS,
    Kind.HEARTBEAT,
}  # fmt: skip
_ID = re.compile(r"(?:chat)?cmpl-\S+|\S*[0-9a-f]{8}\S*")
"""What a request's id looks like where no other line has named it."""
_KEY_ERROR = "KeyError"
"""Its key may be anything's: an engine's, a block's, a parameter's name."""
_LACKS = declaration([Lack.CATCHES])
_GOES_ON = {Kind.LOOKUP, Kind.RANK_LOOKUP, Kind.SCHEDULE}


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
    is_over: bool = False
    """Whether it has died: what it prints later is another process's that has the same name, or none."""


@dataclass(slots=True)
class _Request:
    """What is remembered of a request.

    Attributes:
        next_number: by recorder, the number of its next event.
        lookup: the numbers of its last lookup.
    """

    next_number: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    lookup: dict[str, Any] = field(default_factory=dict)


class Assembler:
    """Puts the readings of one log together; `repeated` counts the messages that were printed twice."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.timelines = Timelines()
        self.repeated = 0
        self._processes: dict[str, _Process] = {}
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        """The requests that lines name, the one that was named least recently first."""
        self._failed: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        """Assertions that were printed."""
        self._raised: OrderedDict[str, int] = OrderedDict()
        """When an exception was printed last."""
        self._last_raised: tuple[_Process, Record, str] | None = None
        self._death: tuple[_Process, Record, Reading] | None = None
        """The engine's death that was read, and waits for the exception that it died of: vLLM prints that later."""
        self._died_ns: int | None = None
        """When vLLM said last that its engine had died."""
        self._went_on = False
        """Whether an engine has gone on, or another has begun, since then."""

    def enter(self, record: Record, reading: Reading) -> Iterator[Event]:
        """Enter one reading; yields the events that are now complete."""
        if self._death is not None and record.at_ns - self._death[1].at_ns > SAME_FAILURE_NS:
            yield from self._dead(self._death)
        process = self._process(record.process)
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
            case Role.NOT_STORED:
                self._not_stored(process, record, reading)
            case Role.DEATH:
                self._read_death(process, record, reading)
            case Role.NOTE:
                if reading.error is not None:
                    self._keep_known(reading)
                elif reading.request is not None:
                    self._request(reading.request)
                self.timelines.add(record, reading)

    def close(self, end_ns: int = 0) -> Iterator[Event]:
        """The events that waited for a line which did not come until `end_ns`, the time of the log's last line."""
        for process in self._processes.values():
            yield from self._load_is_over(process)
            for record, reading in process.storing:
                if end_ns - record.at_ns > 10**9:
                    reading.words += f", the log goes on for {(end_ns - record.at_ns) // 10**9} seconds"
            yield from self._store_is_lost(process, lambda begun: True)
        if self._death is not None:
            yield from self._dead(self._death)

    def _process(self, key: str) -> _Process:
        process = self._processes.get(key)
        if process is None or process.is_over:
            name = f"{self.engine}#{key or 'main'}" if process is None else f"{process.name}~"
            process = self._processes[key] = _Process(name)
        return process

    def _request(self, name: str) -> _Request:
        """What is remembered of a request; from now on it is known."""
        request = self._requests.setdefault(name, _Request())
        self._requests.move_to_end(name)
        _shorten(self._requests, MAX_REQUESTS)
        return request

    def _not_stored(self, process: _Process, record: Record, reading: Reading) -> None:
        """A store that was given up has ended: the one that is named, or else the last that the process has begun."""
        begun = [each for each in process.storing if reading.request in (None, each[1].request)]
        if begun:
            process.storing.remove(begun[-1])
            store = begun[-1][1]
            reading.request = store.request
            reading.words = (
                f"begins to store {store.fields['count']} tokens from {store.fields['start']} on; {reading.words}"
            )
        self.timelines.add(record, reading)

    def _read_death(self, process: _Process, record: Record, reading: Reading) -> None:
        """vLLM says in several lines and processes that its engine has died; it dies once."""
        if self._death is not None:
            self.repeated += 1
            if reading.is_fatal and not self._death[2].is_fatal:
                self._death = process, record, reading
        elif self._died_ns is not None and not (self._went_on and record.at_ns - self._died_ns > SAME_FAILURE_NS):
            self.repeated += 1
            self._died_ns = record.at_ns
        else:
            self._death, self._went_on = (process, record, reading), False

    def _dead(self, death: tuple[_Process, Record, Reading]) -> Iterator[Event]:
        """The end record of an engine that died, from the process that raised the exception."""
        process, record, reading = death
        self._death, self._died_ns = None, record.at_ns
        raised = self._last_raised
        if raised is not None and not reading.is_fatal and abs(raised[1].at_ns - record.at_ns) <= SAME_FAILURE_NS:
            process, record, reading.error = raised[0], max(record, raised[1], key=lambda each: each.at_ns), raised[2]
        if process.is_over:
            return
        yield from self._load_is_over(process)
        yield from self._store_is_lost(process, lambda begun: True)
        reading.role, reading.kind, reading.request = Role.EVENT, Kind.HEARTBEAT, None
        reading.fields = {"recorder_closed": True, "recorder_ended_by": kept(reading.error or reading.words)}
        reading.words, reading.error = f"the engine died of {reading.fields['recorder_ended_by']}", None
        yield self._event(process, record, reading)
        process.is_over = True

    def _stored(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """`Stored` counts tokens, `Storing` before it names the request and the first token. Without it the place is
        unknown: a part of the timeline, and no event."""
        of = reading.fields.pop("of")
        begun = [each for each in process.storing if reading.request in (None, each[1].request)]
        place = next((each for each in begun if each[1].fields["count"] == of), begun[0] if begun else None)
        if place is None:
            reading.words += "; from which position on is not printed"
            self.timelines.add(record, reading)
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
        last_ns = self._raised.pop(error, None)
        self._raised[error] = record.at_ns
        _shorten(self._raised, MAX_FAILURES)
        if last_ns is not None and abs(record.at_ns - last_ns) < SAME_FAILURE_NS:
            self.repeated += 1
            return
        self._keep_known(reading)
        yield from self._raises(process, record, reading)

    def _keep_known(self, reading: Reading) -> None:
        """Keep the request that an exception names if another line has named it, too, or if the exception calls it a request
        and it looks like one."""
        named = reading.request or ""
        called = _ID.fullmatch(named) and not (reading.error or "").startswith(_KEY_ERROR)
        if named not in self._requests and not called:
            reading.request = None

    def _raises(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """An exception's own event."""
        self._last_raised = process, record, reading.error or ""
        yield self._event(process, record, reading)
        if reading.is_fatal:
            self._read_death(process, record, Reading(Role.DEATH, reading.words, error=reading.error, is_fatal=True))

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
        lookup = self._lookup(request)
        computed = lookup.get("computed")
        fits = computed is not None and lookup["matched"] - computed == reading.fields["expected"]
        reading.fields["start"] = computed if fits else 0  # 0: the vocabulary demands a place, and the log has none
        yield self._event(process, record, reading)

    def _mismatch(self, process: _Process, record: Record, reading: Reading) -> Iterator[Event]:
        """The assertion is printed by several handlers as the engine dies; it fails once. Older versions do not name the
        request: it is the only one with a last lookup of the same two numbers, if there is one."""
        numbers = {name: reading.fields[name] for name in ("matched", "computed")}
        if reading.request is None:
            fitting = [name for name, known in self._requests.items() if numbers.items() <= known.lookup.items()]
            reading.request = fitting[0] if len(fitting) == 1 else None
        key = (reading.request, reading.fields["allocated"], *numbers.values())
        if key in self._failed:
            self.repeated += 1
            return
        self._failed[key] = None
        _shorten(self._failed, MAX_FAILURES)
        if total := self._lookup(reading.request).get("total"):
            reading.fields["total"] = total
        yield from self._raises(process, record, reading)

    def _lookup(self, request: str | None) -> dict[str, Any]:
        """The numbers of a request's last lookup."""
        known = self._requests.get(request or "")
        return {} if known is None else known.lookup

    def _event(self, process: _Process, record: Record, reading: Reading) -> Event:
        assert reading.kind is not None
        request = reading.request
        number = epoch = 0
        if request is not None:
            known = self._request(request)
            number = known.next_number.get(process.name, FIRST_NUMBER)
            known.next_number[process.name] = number + 1
            if reading.kind is Kind.PREEMPT:
                known.epoch += 1
            elif reading.kind is Kind.LOOKUP:
                known.lookup = reading.fields
            epoch = known.epoch
        self._went_on |= reading.kind in _GOES_ON
        self.timelines.add(record, reading)
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


def _shorten(held: OrderedDict[Any, Any], most: int) -> None:
    """Forget what was entered first."""
    while len(held) > most:
        held.popitem(last=False)
