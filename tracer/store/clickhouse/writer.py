"""The writing side of the store in ClickHouse: what batches have becomes rows of each table.

Batches are written table by table, and have been written when the last table has them. Those that failed half-way are
written again as a whole, which changes nothing where they were written before (`schema`, `sums`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.lanes import Lane
from kvtrail.tracer.liveness.engine import Launch
from kvtrail.tracer.model.engines import DESCRIPTION
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.savings.minute_sums import by_step
from kvtrail.tracer.savings.waste import WastedTokens
from kvtrail.tracer.store import Activity, Amounts, Batch
from kvtrail.tracer.store.clickhouse import handoffs, lanes, launches, markers, measures, schema, spans
from kvtrail.tracer.store.clickhouse.connection import Address, Connection
from kvtrail.tracer.store.clickhouse.database import to_text
from kvtrail.tracer.store.clickhouse.sums import Sums
from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.request_rows import RequestRow, tier_of

Row = tuple[Any, ...]
T = TypeVar("T")

_OWNER = ("engine", *schema.DIMENSIONS)
_OF_ACCOUNT = (
    "request", "external", "trace_id", "status", "verdict", "findings", "started_ns", "last_ns", "ended_ns", "lookups",
    "longest_match", "loaded", "stored", "epoch",
)  # fmt: skip
_OF_FINDING = ("id", "request", "connector", "rule", "severity", "first_ns", "last_ns")
_REQUESTS = (*_OWNER, *_OF_ACCOUNT, "account", "written")
_FINDINGS = (*_OWNER, *_OF_FINDING, "body", "written")
_LANES = (*_OWNER, *lanes.FIELDS, "tier", "written")
_WASTE = (*schema.DIMENSIONS, *WastedTokens._fields, "written")

_MEASURES = (*_OWNER, *measures.FIELDS, "written")
_ENGINES = ("engine", *DESCRIPTION, "first_ns", "written")
_LAUNCHES = (*launches.FIELDS, "cause", "settings", "tracer", "written")


class ClickHouseWriter:
    """The writing side of one tracer; makes the tables. Not thread-safe."""

    def __init__(self, address: Address, *, tracer: str, retain_hours: float) -> None:
        """`tracer` tells this tracer's sums from those of others; it is the same at every start.

        Raises:
            StoreError: there is no such ClickHouse, or its tables are those of a newer kvtrail.
        """
        self._connection = Connection(address, create=True)
        self._tracer, self._latest = tracer, 0
        self._decoder = ProtobufDecoder()
        schema.prepare(self._connection, retain_hours=retain_hours, now_ns=self._next())
        described = self._connection.query(f"SELECT {', '.join(_ENGINES[:-1])} FROM kvtrail_engines FINAL")
        self._engines: dict[str, dict[str, Any]] = {
            engine: dict(zip(_ENGINES[1:], about, strict=False)) for engine, *about in described
        }
        self._savings = Sums(
            self._connection, "kvtrail_savings", keys=("step_s", "at_s", "engine", "connector", "epoch", "measure"),
            values=("value",), tracer=tracer, described=self._dimensions,
        )  # fmt: skip
        self._activity = Sums(
            self._connection, "kvtrail_activity", keys=Activity._fields,
            values=Amounts._fields, tracer=tracer, described=self._dimensions,
        )  # fmt: skip

    def write(self, batch: Batch) -> Sequence[Exception]:
        return self.ship([(self._next(), batch)])

    def ship(self, batches: Sequence[tuple[int, Batch]]) -> Sequence[Exception]:
        """Write batches together, given with their numbers, which grow. What was written under its number before is not
        there twice. Returns an error for each part that no database can hold.

        Raises:
            StoreError: not all of it was written; it is to be written again.
        """
        unfit: list[Exception] = []
        every = [batch for _, batch in batches]
        rows = [row for batch in every for row in batch.requests]
        latest = {(row.columns["engine"], row.columns["request"]): row for row in rows}.values()
        findings = {each.id: each for batch in every for each in batch.findings}
        launched = {(each.engine, each.launch): each for batch in every for each in batch.launches}
        self._insert("otel_traces", spans.COLUMNS, self._span_rows(every, unfit))
        self._insert("kvtrail_engines", _ENGINES, self._engine_rows(every))
        self._insert("kvtrail_requests", _REQUESTS, _fitting(self._request_row, latest, unfit))
        measured = [row.measures for row in latest if row.measures is not None]
        self._insert("kvtrail_request_measures", _MEASURES, _fitting(self._measures_row, measured, unfit))
        self._insert("kvtrail_findings", _FINDINGS, _fitting(self._finding_row, findings.values(), unfit))
        drawn = [row.lane for row in latest if row.lane is not None]
        self._insert("kvtrail_lanes", _LANES, _fitting(self._lane_row, drawn, unfit))
        self._insert("kvtrail_launches", _LAUNCHES, _fitting(self._launch_row, launched.values(), unfit))
        wasted = [row for batch in every for row in batch.wasted]
        self._insert("kvtrail_waste", _WASTE, _fitting(self._waste_row, wasted, unfit))
        self._insert("kvtrail_handoffs", handoffs.COLUMNS, self._handoff_rows(every, unfit))
        marked = (each for batch in every for each in batch.markers)
        self._insert(markers.TABLE, markers.COLUMNS, _fitting(markers.row_of, marked, unfit))
        self._add(self._savings, [(number, _savings(batch)) for number, batch in batches])
        self._add(self._activity, [(number, batch.activity) for number, batch in batches])
        return unfit

    def handoffs(self, keys: Collection[str]) -> list[HandoffRow]:
        """What other tracers have of the hand-offs that are called so. Raises StoreError."""
        return handoffs.read(self._connection, keys, but=self._tracer)

    def prune(self, *, before_ns: int, most_bytes: int | None = None) -> Iterator[int]:
        """Nothing is left to do: the tables drop by themselves what is older than `retain_hours`."""
        return iter(())

    def close(self) -> None:
        self._connection.close()

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        if rows:
            self._connection.insert(table, columns, rows)

    def _add(self, sums: Sums, batches: Sequence[tuple[int, Mapping[Any, tuple[int, ...]]]]) -> None:
        rows = sums.rows(batches)
        self._insert(sums.table, sums.columns, rows)
        sums.written(rows)

    def _next(self) -> int:
        """A number larger than all before: about the time, in Unix nanoseconds."""
        self._latest = max(self._latest + 1, time.time_ns())
        return self._latest

    def _dimensions(self, engine: str) -> tuple[str, ...]:
        about = self._engines.get(engine, {})
        return about.get("service", ""), about.get("pod") or about.get("host", ""), about.get("model", "")

    def _span_rows(self, batches: Iterable[Batch], unfit: list[Exception]) -> list[Row]:
        rows: list[Row] = []
        for batch in batches:
            if batch.chunk is not None:
                try:
                    rows += [spans.row_of(span, self._next()) for span in self._decoder.spans(batch.chunk.payload)]
                except ValueError as error:  # damaged where it waited: those after it must not wait for it
                    unfit.append(error)
        return rows

    def _handoff_rows(self, batches: Iterable[Batch], unfit: list[Exception]) -> list[Row]:
        """The rows of events with a known name of their hand-off; the others follow when it is known."""

        def named(row: HandoffRow) -> Row:
            return tuple(handoffs.rows_of(row, tracer=self._tracer, number=self._next))

        events = _fitting(named, (row for batch in batches for row in batch.handoffs if row.is_own), unfit)
        return [row for rows in events for row in rows]

    def _engine_rows(self, batches: Iterable[Batch]) -> list[Row]:
        """What is new of engines. A later description replaces an earlier one, but for what it leaves empty."""
        descriptions: dict[str, dict[str, Any]] = {}
        for engine, about in ((engine, about) for batch in batches for engine, about in batch.engines.items()):
            known = self._engines.get(engine) or {**dict.fromkeys(DESCRIPTION, ""), "first_ns": self._next()}
            descriptions[engine] = self._engines[engine] = {
                **known,
                **{name: text for name, text in about.items() if text},
            }
        return [
            (engine, *(about[name] for name in _ENGINES[1:-1]), self._next()) for engine, about in descriptions.items()
        ]

    def _request_row(self, row: RequestRow) -> Row:
        engine, values = row.columns["engine"], (row.columns[name] for name in _OF_ACCOUNT)
        return (engine, *self._dimensions(engine), *values, row.body, self._next())

    def _measures_row(self, row: Mapping[str, Any]) -> Row:
        engine, values = row["engine"], (row[name] for name in measures.FIELDS)
        return (engine, *self._dimensions(engine), *values, self._next())

    def _finding_row(self, finding: Finding) -> Row:
        values = (str(getattr(finding, name)) if name == "severity" else getattr(finding, name) for name in _OF_FINDING)
        return (finding.engine, *self._dimensions(finding.engine), *values, to_text(finding.as_dict()), self._next())

    def _lane_row(self, lane: Lane) -> Row:
        values = (getattr(lane, name) for name in lanes.FIELDS)
        return (lane.engine, *self._dimensions(lane.engine), *values, tier_of(lane), self._next())

    def _waste_row(self, row: WastedTokens) -> Row:
        return (*self._dimensions(row.engine), *row, self._next())

    def _launch_row(self, launch: Launch) -> Row:
        values = (getattr(launch, name) for name in launches.FIELDS)
        about = launches.cause_as_text(launch), launches.settings_as_text(launch)
        return (*values, *about, self._tracer, self._next())


def _fitting(row_of: Callable[[T], Row], parts: Iterable[T], unfit: list[Exception]) -> list[Row]:
    """The rows of those parts that ClickHouse can hold; of the others, errors are added."""
    rows = []
    for part in parts:
        try:
            row = row_of(part)
            for value in row:
                if isinstance(value, int):
                    value.to_bytes(8, "big", signed=True)
                elif isinstance(value, str):
                    value.encode()
            rows.append(row)
        except (OverflowError, TypeError, ValueError) as error:
            unfit.append(error)
    return rows


def _savings(batch: Batch) -> dict[Any, tuple[int, ...]]:
    return {key: (value,) for key, value in by_step(batch.savings.items()).items()}
