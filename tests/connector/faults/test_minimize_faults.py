"""What each injected fault does to the real scheduler, cut down to what shows it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from history import loaded
from minimal import assert_minimal
from recorded_runs import faulty
from recording import recording
from test_faults import RUNS, SLOW, build, later, run_shared_prefix

from kvtrail.connector.faults import FAULTS
from kvtrail.tracer.events.events import Heartbeat
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.history.history import History, in_order, load
from kvtrail.tracer.history.minimize import minimize

MOST_EVENTS = 100
"""No fault needs more to be shown; the recordings have up to some thousands."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_recording_of_a_fault_is_cut_down_to_what_shows_it(tmp_path: Path, fault: str) -> None:
    recorded = retimed(fault) if fault in SLOW else recorded_of(fault, tmp_path)
    alive = loaded(later(recorded.events, fault))
    result = minimize(History(moments=tuple(in_order([*recorded.moments, *alive.moments]))), rule=fault)
    assert result.finding.rule == fault
    beats = sum(isinstance(event, Heartbeat) for event in result.history.events)
    assert result.events - beats <= MOST_EVENTS
    assert_minimal(result)


def retimed(fault: str) -> History:
    """A run whose steps take seconds of recorded time."""
    return loaded(faulty(fault, "OffloadingConnector", "abort", 1).events)


def recorded_of(fault: str, folder: Path) -> History:
    """A run that ends as soon as the fault has shown itself."""
    with recording(folder / "trace.jsonl"):
        bare = build(folder, fault, Level.DETAILED)
        with contextlib.suppress(AssertionError, KeyError, IndexError, ValueError):  # many kill the engine
            RUNS.get(fault, run_shared_prefix)(bare)
    return load([folder / "trace.jsonl"])
