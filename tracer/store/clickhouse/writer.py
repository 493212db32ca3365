"""The writing side of the store in ClickHouse: converts batches to rows of each table.

Batches are written table by table, and are complete when the last table has them. A batch that failed half-way is
written again as a whole, which makes no duplicates (`schema`, `sums`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.liveness.engine import Launch
from kvtrail.tracer.model.engines import DESCRIPTION
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.markers import Marker
from kvtrail.tracer.savings.waste import WastedTokens
from kvtrail.tracer.store import Batch, engines, findings, measures
from kvtrail.tracer.store.clickhouse import handoffs, schema, spans, sums
from kvtrail.tracer.store.clickhouse.connection import Address, Database
from kvtrail.tracer.store.handoffs import HandoffRow
from kvtrail.tracer.store.request_rows import COLUMNS, RequestRow, tier_of

Row = tuple[Any, ...]

_WRITTEN = (*schema.DIMENSIONS, "written")
_REQUESTS = (*COLUMNS, "tier", "changes", "transfers", "account", *_WRITTEN)
_OF_MEASURES = ("request", "last_ns", *measures.COLUMNS)
_ENGINES = ("engine", *DESCRIPTION, "first_ns", "written")
_LATEST = 2**63
_NO_LANE = (None, (), ())


class ClickHouseWriter:
    """The writing side of one tracer; creates the tables. Not thread-safe."""

    def __init__(self, address: Address, *, tracer: str, retain_hours: float) -> None:
        """`tracer` distinguishes this tracer's sums from other tracers'; it is the same at every start.

        Raises:
            StoreError: there is no such ClickHouse, or its tables belong to a newer kvtrail.
        """
        self._database = Database(address, create=True)
        self._tracer, self._latest = tracer, 0
        self._decoder = ProtobufDecoder()
        schema.prepare(self._database, retain_hours=retain_hours, now_ns=self._next())
        described = self._database.ask(f"SELECT {', '.join(_ENGINES[:-1])} FROM kvtrail_engines FINAL")
        self._engines: dict[str, dict[str, Any]] = {
            engine: dict(zip(_ENGINES[1:], about, strict=False)) for engine, *about in described
        }
        self._savings = sums.Sums(self._database, tracer, self._dimensions)

    def ship(self, batches: Sequence[tuple[int, Batch]]) -> Sequence[Exception]:
        """Write batches together, given with their increasing numbers. A batch that was written before makes no duplicates.
        Returns an error for each part that no database can hold.

        Raises:
            StoreError: not everything was written; write it again.
        """
        unfit: list[Exception] = []
        every = [batch for _, batch in batches]
        rows = [row for batch in every for row in batch.requests]
        latest = {(row.columns["engine"], row.columns["request"]): row for row in rows}.values()
        found = {each.id: each for batch in every for each in batch.findings}
        launched = {(each.engine, each.launch): each for batch in every for each in batch.launches}
        measured = [row.measures for row in latest if row.measures is not None]
        wasted = [row for batch in every for row in batch.wasted]
        marked = [each for batch in every for each in batch.markers]
        # A row for each name of a hand-off; an event is written again when its hand-off has a name.
        handed = [(key, each) for batch in every for each in batch.handoffs if each.is_own for key in each.keys]
        self._insert("otel_traces", spans.COLUMNS, self._span_rows(every, unfit))
        self._insert("kvtrail_engines", _ENGINES, self._engine_rows(every))
        for table, columns, row_of, parts in (
            ("requests", _REQUESTS, self._request_row, latest),
            ("request_measures", (*_OF_MEASURES, *_WRITTEN), self._measures_row, measured),
            ("findings", (*findings.COLUMNS, *_WRITTEN), self._finding_row, found.values()),
            ("launches", (*engines.LAUNCH_COLUMNS, "tracer", "written"), self._launch_row, launched.values()),
            ("waste", (*WastedTokens._fields, *_WRITTEN), self._waste_row, wasted),
            ("markers", (*engines.MARKER_COLUMNS, "earliest"), _marker_row, marked),
            ("handoffs", handoffs.COLUMNS, self._handoff_row, handed),
        ):
            self._insert(f"kvtrail_{table}", columns, _fitting(row_of, parts, unfit))
        summed = self._savings.rows(batches)
        self._insert(sums.TABLE, sums.COLUMNS, summed)
        self._savings.written(summed)
        return unfit

    def handoffs(self, keys: Collection[str]) -> list[HandoffRow]:
        """Events of other tracers for hand-offs with these names. Raises StoreError."""
        return handoffs.read(self._database, keys, but=self._tracer)

    def close(self) -> None:
        self._database.close()

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        if rows:
            self._database.insert(table, columns, rows)

    def _next(self) -> int:
        """A number larger than all earlier ones: about the time, in Unix nanoseconds."""
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
                except ValueError as error:  # damaged in the spool: later batches must not wait for it
                    unfit.append(error)
        return rows

    def _engine_rows(self, batches: Iterable[Batch]) -> list[Row]:
        """New descriptions of engines. A later description replaces an earlier one, except for its empty fields."""
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
        values, lane = [row.columns[name] for name in COLUMNS], row.lane
        drawn = _NO_LANE if lane is None else (tier_of(lane), lane.changes, lane.transfers)
        return (*values, *drawn, row.body, *self._written(row.columns["engine"]))

    def _measures_row(self, row: Mapping[str, Any]) -> Row:
        return (*(row[name] for name in _OF_MEASURES), *self._written(row["engine"]))

    def _finding_row(self, finding: Finding) -> Row:
        return (*findings.row_of(finding), *self._written(finding.engine))

    def _waste_row(self, row: WastedTokens) -> Row:
        return (*row, *self._written(row.engine))

    def _launch_row(self, launch: Launch) -> Row:
        return (*engines.launch_row(launch), self._tracer, self._next())

    def _handoff_row(self, named: tuple[str, HandoffRow]) -> Row:
        key, row = named
        return (key, *(getattr(row, name) for name in handoffs.FIELDS), self._tracer, self._next())

    def _written(self, engine: str) -> Row:
        """The values of `_WRITTEN` for a row of this engine."""
        return (*self._dimensions(engine), self._next())


def _marker_row(marker: Marker) -> Row:
    """The earlier one of two rows with the same id is kept."""
    return (*engines.marker_row(marker), _LATEST - marker.at_ns)


def _fitting(row_of: Callable[[Any], Row], parts: Iterable[Any], unfit: list[Exception]) -> list[Row]:
    """The rows of the parts that ClickHouse can hold; for the others, errors are added."""
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
