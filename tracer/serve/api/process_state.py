"""What the api shows of the process that it runs in, besides what is stored: the state of a sidecar, or that of
a process over a fleet of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.retained_blocks import KeptHandOff
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.liveness.engine import CONTACT_NS, EngineState, last_launches
from kvtrail.tracer.liveness.recorders import Recorders
from kvtrail.tracer.serve.errors import InternalErrors
from kvtrail.tracer.serve.known_findings import KnownFindingsFile
from kvtrail.tracer.serve.receive.engines import NOTE_ENGINE_NS
from kvtrail.tracer.store import StoreError
from kvtrail.tracer.store.clickhouse.reader import ClickHouseReader
from kvtrail.tracer.store.handoffs import heard_of

_REPORTS = (EngineState.RUNNING, EngineState.NOT_OBSERVED)
"""The states in which sidecars note an engine that still reports."""


class Live(Protocol):
    """The state of a process. Times are Unix nanoseconds."""

    started_ns: int
    last_received_ns: int | None
    errors: InternalErrors
    known_findings: KnownFindingsFile

    @property
    def trouble(self) -> str | None:
        """Why it cannot do its work; None while all is well."""

    @property
    def recorders(self) -> Recorders: ...

    @property
    def spans_stored(self) -> int:
        """Since it was started."""

    @property
    def events_missing(self) -> int: ...

    @property
    def spans_behind(self) -> int:
        """Spans that are stored and not judged."""

    @property
    def handoffs(self) -> HandOffs:
        """What engines hand over to each other, as far as it is in memory. Read by other threads than that which enters."""

    @property
    def kept(self) -> Sequence[KeptHandOff]:
        """The hand-offs with blocks that engines keep, as of the last second."""

    def handoffs_called(self, keys: Collection[str]) -> HandOffs:
        """The same, with what is stored of the hand-offs that are called so."""

    def running(self) -> set[str]:
        """The engines that report; their open requests go on."""


class FleetProcess:
    """The state of a process that receives nothing itself, and shows what the sidecars of a fleet have stored."""

    def __init__(
        self, reader: ClickHouseReader, errors: InternalErrors, known_findings: KnownFindingsFile | None = None
    ) -> None:
        self.started_ns = time.time_ns()
        self.last_received_ns: int | None = None
        self.spans_stored = self.events_missing = self.spans_behind = 0
        self.recorders = Recorders()
        self.handoffs = HandOffs()
        self.kept: list[KeptHandOff] = []
        self.errors = errors
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
        known.hear(heard_of(self._reader.handoffs(keys)))
        return known.handoffs

    def running(self) -> set[str]:
        heard, since_ns = self._reader.heard(), time.time_ns() - CONTACT_NS - NOTE_ENGINE_NS
        last = last_launches(self._reader.launches()).values()
        return {each.engine for each in last if each.state in _REPORTS and heard.get(each.engine, 0) >= since_ns}
