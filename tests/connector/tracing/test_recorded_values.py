"""A recorder's tuples hold what the classes of events declare, in that order: nothing checks them where they are made."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap
from typing import Any

import pytest
import recorded_runs

from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.events.events import CLASSES, FIELDS
from kvtrail.tracer.events.semconv import Kind

RUNS = [("OffloadConnector", "preemption-storm"), ("OffloadConnector", "reset"), ("OffloadingConnector", "async")]
RECORDED = {
    Kind.REQUEST_START, Kind.REQUEST, Kind.LOOKUP, Kind.ALLOC, Kind.SCHEDULE, Kind.PREEMPT, Kind.LOAD, Kind.STORE,
    Kind.RECEIVED, Kind.LOAD_PLAN, Kind.STORE_PLAN, Kind.TRANSFER_END, Kind.STATS, Kind.RESET, Kind.PREFIX_CACHE,
    Kind.HEARTBEAT,
}  # fmt: skip


def test_each_value_has_the_type_of_the_field_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[str, Sequence[Any]]] = []
    record = Recorder.record

    def noted(self: Recorder, kind: str, *arguments: Any) -> Any:
        reported.append((kind, arguments[4]))
        return record(self, kind, *arguments)

    monkeypatch.setattr(Recorder, "record", noted)
    for connector, profile in RUNS:
        unwrap(recorded_runs.healthy)(connector, profile, seed=1)
    for kind, values in reported:
        fields = FIELDS[CLASSES[kind].kind]
        misfits = [
            f"{field.field} is {value!r}"
            for field, value in zip(fields, values, strict=True)
            if value is not None and type(value) is not field.type
        ]
        assert not misfits, kind
    assert {kind for kind, _ in reported} >= RECORDED
