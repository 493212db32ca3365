"""What no event reports otherwise is resynced from time to time: block tables of running requests, and the chunks held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_scheduler import scheduler, storm
from memory import MemoryTransport, a_recorder
from msgspec.structs import replace
from processes import SLOW_S

from kvtrail.connector.known.probe import Probe
from kvtrail.connector.tracing import holdings, steps
from kvtrail.connector.tracing.holdings import Holdings
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events import events as e
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.model.findings import Verdict

S = 10**9
EXTRA = {"chunk_size": 64, "cpu_bytes_to_use": 2_000_000, "kvtrail": {"level": "detailed"}}


class Store(Probe):
    """A store with known keys; some have left when they are to be reported."""

    def __init__(self, keys: Sequence[int], left: Sequence[int] = ()) -> None:
        self.keys_held, self.left, self.asked = list(keys), set(left), 0

    def held_keys(self, connector: Any) -> Sequence[Any]:
        self.asked += 1
        return list(self.keys_held)

    def still_held(self, connector: Any, keys: Sequence[Any]) -> tuple[str, ...]:
        return tuple(f"k{key}" for key in keys if key not in self.left)


def test_a_list_comes_in_pages_and_keeps_its_budget() -> None:
    """In an hour of a step each 50 ms: a page a second at most, and a list in five minutes at most."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    held, probe = Holdings(recorder, b""), Store(range(1200), left=[3, 600])
    pages = []
    for at_ns in range(0, 3600 * S, S // 20):
        if at_ns >= held.due_ns:
            held.record_page(probe, None, at_ns)
            pages.append(at_ns)
    recorder.close(SLOW_S)
    reported = [event for event in transport.events() if isinstance(event, e.Holdings)]
    assert len(reported) == len(pages) == 12 * 3
    assert [n - m for m, n in pairwise(pages)][:5] == [S, S, 298 * S, S, S]
    assert [(event.holdings_first, event.holdings_last) for event in reported[:3]] == [
        (True, False), (False, False), (False, True)
    ]  # fmt: skip
    assert [key for event in reported[:3] for key in event.chunk_keys] == [
        f"k{n}" for n in range(1200) if n not in (3, 600)
    ]
    assert all(len(event.chunk_keys) <= 512 for event in reported)


def test_an_empty_store_is_a_list_too() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    Holdings(recorder, b"").record_page(Store([]), None, 0)
    recorder.close(SLOW_S)
    (reported,) = [event for event in transport.events() if isinstance(event, e.Holdings)]
    assert (reported.chunk_keys, reported.holdings_first, reported.holdings_last) == ((), True, True)


class Torn(Store):
    """It cannot report its second page."""

    def still_held(self, connector: Any, keys: Sequence[Any]) -> tuple[str, ...]:
        if keys[0]:
            raise RuntimeError
        return super().still_held(connector, keys)


def test_a_list_that_a_probe_cannot_finish_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "PAGE_EVERY_NS", 0)
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    recorder.level.detailed = recorder.level.any_detailed = True
    instrumentation = SchedulerInstrumentation(recorder, name="Some", probe=Torn(range(1200)))
    nothing = SimpleNamespace(
        scheduled_new_reqs=[],
        preempted_req_ids=None,
        finished_req_ids=set(),
        num_scheduled_tokens={},
        total_num_scheduled_tokens=0,
        scheduled_spec_decode_tokens={},
        scheduled_cached_reqs=SimpleNamespace(
            resumed_req_ids=set(), req_ids=[], new_block_ids=[], num_computed_tokens=[]
        ),
    )
    for _ in range(4):
        instrumentation.on_step(None, nothing, None)
    recorder.close(SLOW_S)
    reported = [event for event in transport.events() if isinstance(event, e.Holdings)]
    assert [(event.holdings_first, event.holdings_last) for event in reported] == [(True, False)] * 2
    heartbeat = [event for event in transport.events() if isinstance(event, e.Heartbeat)][-1]
    assert heartbeat.recorder_unrecorded == ("probe.held_keys:2",)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is resynced at the highest possible rate, in small pages."""
    for module, name in (
        (steps, "TABLE_RESYNC_NS"),
        (steps, "RESYNC_SCAN_NS"),
        (holdings, "PAGE_EVERY_NS"),
        (holdings, "PASS_EVERY_NS"),
    ):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(holdings, "PAGE", 2)


def recorded_by_a_storm(folder: Path, recorded: Callable[[], list[Event]]) -> list[Event]:
    pytest.importorskip("vllm", reason="the real scheduler")
    storm(scheduler(folder, "OffloadConnector", EXTRA, seed=3), seed=3, requests=100)
    return recorded()


def test_resynced_tables_equal_the_recorded_ones(
    tmp_path: Path, recorded: Callable[[], list[Event]], often: None
) -> None:
    """One a step at most, and the same as the table that the recorded steps have made."""
    tables: dict[str, tuple[int, ...]] = {}
    admitted: set[str] = set()
    resyncs = Counter[int]()
    for event in recorded_by_a_storm(tmp_path, recorded):
        request = event.request or ""
        if isinstance(event, e.Alloc) and event.error is None:
            admitted.add(request)
        if isinstance(event, e.Schedule) and event.blocks_ids is not None:
            if event.blocks_whole and request not in admitted:
                assert event.blocks_ids == tables[request]
                assert not event.resumed
                resyncs[event.scheduler_step or 0] += 1
            elif event.blocks_whole:
                tables[request] = event.blocks_ids
            else:
                tables[request] += event.blocks_ids
            admitted.discard(request)
    assert len(resyncs) > 500
    assert set(resyncs.values()) == {1}


def test_lists_name_what_is_held_and_cause_no_findings(
    tmp_path: Path, recorded: Callable[[], list[Event]], often: None
) -> None:
    events = recorded_by_a_storm(tmp_path, recorded)
    held: set[str] = set()
    listed: set[str] = set()
    ends = 0
    for event in events:
        match event:
            case e.StorePlan(chunk_keys=tuple(keys)):
                held.update(keys)
                listed.update(keys)
            case e.Evict(chunk_key=str(key)):
                held.discard(key)
                listed.discard(key)
            case e.Reset():
                held.clear()
                listed.clear()
            case e.Holdings():
                assert set(event.chunk_keys) <= held
                listed = set(event.chunk_keys) | (set() if event.holdings_first else listed)
                if event.holdings_last:
                    assert listed == held
                    ends += 1
    assert ends > 50
    detector = Detector()
    detector.feed(events)
    detector.settle()
    assert detector.findings == {}
    assert detector.verdicts["phantom-hit", Verdict.OK] > 20


def test_who_listens_late_knows_the_store_after_a_list(
    tmp_path: Path, recorded: Callable[[], list[Event]], often: None
) -> None:
    """Of the second half of a history: without the lists, far more judgements are unknown."""
    events = recorded_by_a_storm(tmp_path, recorded)
    late = events[len(events) // 2 :]
    without_lists = [event for event in late if not isinstance(event, e.Holdings)]
    without_lists = [replace(each, sequence=late[0].sequence + n) for n, each in enumerate(without_lists)]
    unknown = []
    for history in (late, without_lists):
        detector = Detector()
        detector.feed(history)
        detector.settle()
        assert detector.findings == {}
        unknown.append(detector.verdicts["phantom-hit", Verdict.UNKNOWN])
    assert 10 * unknown[0] < unknown[1], unknown


def test_a_table_is_resynced_once_a_minute(
    tmp_path: Path, recorded: Callable[[], list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most; and not within the first, in which most requests end."""
    clock = count(start=10**15, step=4 * S)
    monkeypatch.setattr("kvtrail.connector.tracing.scheduler_side.monotonic_ns", lambda: next(clock))
    last_ns: dict[str, int] = {}
    resyncs = 0
    for event in recorded_by_a_storm(tmp_path, recorded):
        if isinstance(event, e.Schedule) and event.blocks_whole:
            request = event.request or ""
            if event.epoch == 0 and request in last_ns and not event.resumed:
                assert event.start_ns - last_ns[request] >= 60 * S
                resyncs += 1
            last_ns[request] = event.start_ns
    assert resyncs > 20
