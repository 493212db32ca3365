"""How the engines stand at a moment: what they say of themselves, and what waits in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.detector import Detector

INFO = ("model_name", "service_name", "vllm_version")


@dataclass(slots=True, kw_only=True)
class EngineState:
    """How an engine stands.

    Attributes:
        engine: vLLM's engine id.
        info: what it says of itself, by the names of `INFO`.
        heard_ns: when the last of its spans came, by this machine's clock; Unix nanoseconds.
        recorders: its recorders that have not said goodbye.
        outstanding: events whose number is known and that have not come (yet).
        open_loads: asynchronous loads that were not received.
        open_load_oldest_ns: the age of the oldest of them, by the engine's clock as far as it was heard: one that has
            fallen silent does not age.
        kept_requests: requests that have ended and whose blocks the connector keeps.
        kept_blocks: those blocks, where the recorder names them.
        kept_oldest_ns: the time since the oldest of those requests ended, by the engine's clock.
    """

    engine: str
    info: tuple[str, ...] = ("", "", "")
    heard_ns: int = 0
    recorders: int = 0
    outstanding: int = 0
    open_loads: int = 0
    open_load_oldest_ns: int = 0
    kept_requests: int = 0
    kept_blocks: int = 0
    kept_oldest_ns: int = 0


@dataclass(slots=True, kw_only=True)
class Sender:
    """What is known of one recorder, for the state of its engine; see `EngineState`."""

    engine: str
    info: tuple[str, ...]
    heard_ns: int
    closed: bool
    outstanding: int


def standings(senders: Iterable[Sender], detector: Detector) -> Mapping[str, EngineState]:
    """The engines' states by engine id. An engine of which no recorder is known has none."""
    states: dict[str, EngineState] = {}
    for sender in senders:
        state = states.setdefault(sender.engine, EngineState(engine=sender.engine))
        if sender.heard_ns >= state.heard_ns:
            state.info, state.heard_ns = sender.info, sender.heard_ns
        state.recorders += not sender.closed
        state.outstanding += sender.outstanding
    for account, now_ns in detector.waiting():
        if (held := states.get(account.engine)) is not None:
            _wait(held, account, now_ns)
    return states


def _wait(state: EngineState, account: Account, now_ns: int) -> None:
    books = account.books
    if books.loading is not None and account.ended_ns is None:
        state.open_loads += 1
        state.open_load_oldest_ns = max(state.open_load_oldest_ns, now_ns - books.loading.end_ns)
    if books.end is not None:
        state.kept_requests += 1
        state.kept_blocks += len(books.end.blocks_ids or books.blocks or ())
        state.kept_oldest_ns = max(state.kept_oldest_ns, now_ns - books.end.end_ns)
