"""The gauges of an engine: its recorders, its waiting loads and frees, and the blocks that it keeps for others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.retained_blocks import KeptFor, RetainedHandoff
from kvtrail.tracer.liveness.recorders import INFO, Contact, RecorderState
from kvtrail.tracer.model.findings import Finding

GAUGES = {
    "engine_last_received_timestamp_seconds": (
        ("When the engine's last span arrived. A recorder that sends to kvtrail sends a heartbeat every 5 s."),
        (),
    ),
    "engine_recorders": (
        (
            "Recorders of the engine, one for each process. Recorders that sent an end record, or count as "
            "terminated, are not included."
        ),
        (),
    ),
    "events_outstanding": ("Events with a known sequence number that have not arrived.", ()),
    "open_loads": ("Asynchronous loads that have not been received.", ()),
    "open_load_oldest_seconds": (
        ("Age of the oldest open load, by the engine's own clock (which stops with its events); 0 if there is none."),
        (),
    ),
    "overdue_loads": (
        (
            "Open loads that are late, by the deadline of the rule `stuck-load`, and whether that is a known "
            "finding now."
        ),
        ("known",),
    ),
    "kept_requests": ("Ended requests with blocks that the connector still holds.", ()),
    "kept_blocks": (
        ("Blocks that the connector still holds for ended requests, if the recorder names them (level `detailed`)."),
        (),
    ),
    "kept_oldest_seconds": (("Time since the oldest request with kept blocks ended; 0 if there is none."), ()),
    "overdue_frees": (
        (
            "Kept requests that are late, by the deadline of the rule `late-free`, and whether that is a "
            "known finding now."
        ),
        ("known",),
    ),
    "handoffs_kept": (
        (
            "Hand-offs for which the engine keeps blocks now. `state`: `unclaimed`, no request that takes it "
            "is known; `waiting`, a request will load it; `loaded`, it is loaded and the blocks will be "
            "freed; `abandoned`, the requests that should load it have ended, or their loads have failed."
        ),
        ("state",),
    ),
    "handoffs_kept_blocks": (
        (
            "KV blocks that the engine keeps for hand-offs; if the recorder does not name them, the number that "
            "the tokens fill."
        ),
        ("state",),
    ),
    "handoffs_kept_oldest_seconds": (
        ("Time since the request of the oldest kept hand-off ended, by the engine's own clock; 0 if there is none."),
        ("state",),
    ),
    "pool_blocks": ("KV blocks of the engine's pool, as its recorder reports.", ()),
}
"""By name: a gauge's help text, and its labels besides `engine`. Ages are by the engine's own clock, so they stop growing
when the engine stops reporting."""
KNOWN, NOT_KNOWN = "true", "false"
_LATE_LOAD, _LATE_FREE = "stuck-load", "late-free"
"""The rules with findings that gauges show as long as the condition lasts."""
Values = dict[tuple[str, ...], float]
"""The values of gauges by name and labels."""


_LABELS: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {
    (): ((),),
    ("known",): ((KNOWN,), (NOT_KNOWN,)),
    ("state",): tuple((each,) for each in KeptFor),
}


def _zeros(*kinds: tuple[str, ...]) -> Values:
    """Gauges with these labels, at 0; without the pool, since a recorder may not report its size."""
    names = {name: labels for name, (_, labels) in GAUGES.items() if labels in kinds and name != "pool_blocks"}
    return {(name, *each): 0.0 for name, labels in names.items() for each in _LABELS[labels]}


@dataclass(slots=True)
class EngineGauges:
    """The values of an engine's gauges.

    Attributes:
        engine: vLLM's engine id.
        info: values of the labels `INFO`.
        heard_ns: arrival of its latest span, by this machine's clock; Unix nanoseconds.
        values: the known values.
    """

    engine: str
    info: tuple[str, ...] = ("",) * len(INFO)
    heard_ns: int = 0
    values: Values = field(default_factory=lambda: _zeros((), ("known",)))

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Add to a gauge."""
        self.values[name, *labels] += amount

    def raise_to(self, name: str, value: float, *labels: str) -> None:
        """Raise a gauge to this value, if it is lower."""
        self.values[name, *labels] = max(self.values.get((name, *labels), 0.0), value)


def engine_gauges(
    recorders: Iterable[RecorderState],
    detector: Detector,
    kept: Sequence[RetainedHandoff],
    is_known: Callable[[Finding], bool],
) -> list[EngineGauges]:
    """The gauges of every engine that has a recorder; `kept` are the hand-offs with kept blocks, and `is_known` says
    whether a finding is known."""
    states: dict[str, EngineGauges] = {}
    for recorder in recorders:
        state = states.setdefault(recorder.engine, EngineGauges(recorder.engine))
        state.heard_ns = max(state.heard_ns, recorder.heard_ns)
        state.info = recorder.info  # the last recorder's, as in the store
        state.raise_to("engine_last_received_timestamp_seconds", state.heard_ns / 1e9)
        state.add("engine_recorders", recorder.contact in (Contact.RUNNING, Contact.LOST))
        state.add("events_outstanding", recorder.missing)
        if recorder.pool_blocks is not None:
            state.raise_to("pool_blocks", recorder.pool_blocks)
    for account, now_ns in detector.waiting():
        if (waiting := states.get(account.engine)) is None:
            continue
        evidence, found = account.evidence, detector.findings.get((account.engine, account.request), {}).values()
        late = {(each.rule, is_known(each)) for each in found if each.rule in (_LATE_LOAD, _LATE_FREE)}
        if evidence.loading is not None and account.ended_ns is None:
            waiting.add("open_loads", 1)
            waiting.raise_to("open_load_oldest_seconds", (now_ns - evidence.loading.end_ns) / 1e9)
            _add_overdue(waiting, "overdue_loads", _LATE_LOAD, late)
        if evidence.end is not None:
            held = evidence.end.blocks_ids or ()
            waiting.add("kept_requests", 1)
            waiting.add("kept_blocks", len(held) or (0 if evidence.blocks is None else evidence.blocks.held))
            waiting.raise_to("kept_oldest_seconds", (now_ns - evidence.end.end_ns) / 1e9)
            _add_overdue(waiting, "overdue_frees", _LATE_FREE, late)
    # A gauge that was shown may be 0 now, so all begin at 0.
    keepers = {giver for (giver, _), _ in list(detector.handoffs.flows.items())} | {each.engine for each in kept}
    for engine in keepers & states.keys():
        states[engine].values |= _zeros(("state",))
    for each in kept:
        if (keeper := states.get(each.engine)) is not None:
            keeper.add("handoffs_kept", 1, each.state)
            keeper.add("handoffs_kept_blocks", each.blocks, each.state)
            keeper.raise_to("handoffs_kept_oldest_seconds", each.age_ns / 1e9, each.state)
    return list(states.values())


def _add_overdue(of: EngineGauges, name: str, rule: str, late: Iterable[tuple[str, bool]]) -> None:
    """Count what a rule's findings report as overdue, by whether the finding is known."""
    for found, is_known in late:
        if found == rule:
            of.add(name, 1, KNOWN if is_known else NOT_KNOWN)
