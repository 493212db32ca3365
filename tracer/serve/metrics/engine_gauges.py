"""What the gauges of an engine show: its recorders, its waiting loads and frees, and its host memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.retained_blocks import KeptFor, KeptHandOff
from kvtrail.tracer.liveness.recorders import INFO, Contact, RecorderState
from kvtrail.tracer.model.findings import Finding

_LATE_LOAD, _LATE_FREE = "stuck-load", "late-free"
"""The rules with findings that are shown as long as what they found lasts."""


@dataclass(slots=True)
class KeptSum:
    """How many hand-offs, for how many blocks, and the age of the oldest, by the engine's own clock."""

    handoffs: int = 0
    blocks: int = 0
    oldest_ns: int = 0

    def add(self, kept: KeptHandOff) -> None:
        self.handoffs += 1
        self.blocks += kept.blocks
        self.oldest_ns = max(self.oldest_ns, kept.age_ns)


@dataclass(slots=True, kw_only=True)
class EngineGauges:
    """The values of an engine's gauges.

    Attributes:
        engine: vLLM's engine id.
        info: values of the labels `INFO`.
        heard_ns: arrival of its latest span, by this machine's clock; Unix nanoseconds.
        recorders: how many of its recorders have neither closed nor terminated, as far as they send heartbeats or have
            reported a moment ago.
        outstanding: events with a known sequence number that have not arrived (yet).
        not_recorded: how often its recorders could not record something.
        probes_off: how many connectors' probes have switched themselves off, in all of its recorders.
        open_loads: asynchronous loads that have not been received.
        open_load_oldest_ns: age of the oldest open load by the engine's own clock. An engine that has stopped reporting does
            not age.
        overdue_loads: open loads that the rule `stuck-load` has found, by whether that is known.
        kept_requests: ended requests with blocks that the connector still holds.
        kept_blocks: how many blocks those are, where the recorder names them.
        kept_oldest_ns: time since the oldest of those requests ended, by the engine's own clock.
        overdue_frees: of those requests, the ones that the rule `late-free` has found, by whether that is known.
        kept: of the hand-offs with blocks that it keeps, by what for; empty for an engine that has never given any.
        pool_blocks: KV blocks of its pool; None where no recorder says.
        held_bytes, memory_limit: what its connector holds in host memory, and may hold, on the worker where it is most; None
            where no recorder knows.
    """

    engine: str
    info: tuple[str, ...] = ("",) * len(INFO)
    heard_ns: int = 0
    recorders: int = 0
    outstanding: int = 0
    not_recorded: int = 0
    probes_off: int = 0
    open_loads: int = 0
    open_load_oldest_ns: int = 0
    overdue_loads: Counter[bool] = field(default_factory=Counter)
    kept_requests: int = 0
    kept_blocks: int = 0
    kept_oldest_ns: int = 0
    overdue_frees: Counter[bool] = field(default_factory=Counter)
    kept: dict[KeptFor, KeptSum] = field(default_factory=dict)
    pool_blocks: int | None = None
    held_bytes: int | None = None
    memory_limit: int | None = None


def engine_gauges(
    recorders: Iterable[RecorderState],
    detector: Detector,
    kept: Iterable[KeptHandOff],
    is_known: Callable[[Finding], bool],
) -> list[EngineGauges]:
    """The gauges of every engine that has a recorder; `kept` are the hand-offs with kept blocks, and `is_known` says
    whether a finding is known."""
    states: dict[str, EngineGauges] = {}
    for recorder in recorders:
        state = states.setdefault(recorder.engine, EngineGauges(engine=recorder.engine))
        state.heard_ns = max(state.heard_ns, recorder.heard_ns)
        state.info = recorder.info  # of the one that was met last, as in the store
        state.recorders += recorder.contact in (Contact.RUNNING, Contact.LOST)
        state.outstanding += recorder.missing
        state.not_recorded += sum(recorder.untold.values())
        state.probes_off += len(recorder.probes_off)
        state.pool_blocks = _most(state.pool_blocks, recorder.pool_blocks)
        state.held_bytes = _most(state.held_bytes, recorder.held_bytes)
        state.memory_limit = _most(state.memory_limit, recorder.memory_limit)
    for account, now_ns in detector.waiting():
        waiting = states.get(account.engine)
        if waiting is None:
            continue
        evidence = account.evidence
        late = [
            finding
            for finding in detector.findings.get((account.engine, account.request), {}).values()
            if finding.rule in (_LATE_LOAD, _LATE_FREE)
        ]
        if evidence.loading is not None and account.ended_ns is None:
            waiting.open_loads += 1
            waiting.open_load_oldest_ns = max(waiting.open_load_oldest_ns, now_ns - evidence.loading.end_ns)
            waiting.overdue_loads.update({is_known(each) for each in late if each.rule == _LATE_LOAD})
        if evidence.end is not None:
            waiting.kept_requests += 1
            held = evidence.end.blocks_ids or ()
            waiting.kept_blocks += len(held) or (0 if evidence.blocks is None else evidence.blocks.held)
            waiting.kept_oldest_ns = max(waiting.kept_oldest_ns, now_ns - evidence.end.end_ns)
            waiting.overdue_frees.update({is_known(each) for each in late if each.rule == _LATE_FREE})
    for (giver, _), _ in detector.handoffs.flows.known():
        if giver in states:
            states[giver].kept = {kept_for: KeptSum() for kept_for in KeptFor}
    for each in kept:
        if each.engine in states:
            states[each.engine].kept.setdefault(each.state, KeptSum()).add(each)
    return list(states.values())


def _most(*sizes: int | None) -> int | None:
    """The largest of those that are known."""
    return max((size for size in sizes if size is not None), default=None)
