"""The api of a tracer in this process, and the spans of two engines: one hands over to the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from history import history
from msgspec import structs
from sidecar import Sidecar

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import POOL_BLOCKS

REQUEST = "cmpl-1-0-0123abcd"
"""The id of the request on both engines."""
PREFILL = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    gives h1 600/600 of a
    end delayed length_capped handoff computed 600 lease 30
"""
DECODE = """
    <d> start 600
    <d> takes h1 600/600 of a
    <d> L 600 c0 -> 599 async
    <d> A 599
    wait 2
"""


class Served(Sidecar):
    """A sidecar of engines with pools of 50 blocks."""

    def hear(self, events: Sequence[Event], about: Mapping[str, str | int] | None = None) -> None:
        super().hear(events, {POOL_BLOCKS.key: 50, **(about or {})})


def nixl(text: str) -> list[Event]:
    """A history of engines with NIXL's connector."""
    return history(text, connector="NixlConnector")


def skewed(events: Sequence[Event], skew_s: float) -> list[Event]:
    """The events, with the clock of the engine that decodes ahead by so much."""
    ahead_ns = round(skew_s * 1e9)
    return [
        each
        if each.engine != "d"
        else structs.replace(each, start_ns=each.start_ns + ahead_ns, end_ns=each.end_ns + ahead_ns)
        for each in events
    ]
