"""State of the API's own process, besides stored data: a sidecar, or a process that serves a fleet of sidecars."""

from __future__ import annotations

import time
from collections.abc import Collection

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.retained_blocks import RetainedHandoff
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.liveness.engine import CONTACT_NS, EngineState, last_launches
from kvtrail.tracer.liveness.recorders import Recorders
from kvtrail.tracer.serve.known_findings import KnownFindingsFile
from kvtrail.tracer.serve.receive.engines import NOTE_ENGINE_NS
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.handoffs import heard_of

_REPORTS = (EngineState.RUNNING, EngineState.NOT_OBSERVED)
"""States that sidecars record for an engine that still reports."""


class FleetProcess:
    """The state of a process that receives no spans itself, and shows the data that the sidecars of a fleet stored."""

    def __init__(self, reader: ClickHouseReader, known_findings: KnownFindingsFile | None = None) -> None:
        self.started_ns = time.time_ns()
        self.last_received_ns: int | None = None
        self.spans_stored = self.events_missing = self.spans_behind = 0
        self.recorders = Recorders()
        self.handoffs = HandOffs()
        self.kept: list[RetainedHandoff] = []
        self.known_findings = known_findings or KnownFindingsFile()
        self._reader = reader

    @property
    def trouble(self) -> str | None:
        try:
            self._reader.ping()
        except StoreError as error:
            return str(error)
        return None

    def handoffs_called(self, keys: Collection[str]) -> HandOffs:
        known = Detector(rules=())
        known.ingest_remote(heard_of(self._reader.handoffs(keys)))
        return known.handoffs

    def running(self) -> set[str]:
        heard, since_ns = self._reader.heard(), time.time_ns() - CONTACT_NS - NOTE_ENGINE_NS
        last = last_launches(self._reader.launches()).values()
        return {each.engine for each in last if each.state in _REPORTS and heard.get(each.engine, 0) >= since_ns}


Live = Pipeline | FleetProcess
"""The process of which the API shows the state."""
