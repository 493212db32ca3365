"""A request with 64 tokens held by vLLM, 32 evicted from the connector's store, and 24 in no full block."""

from __future__ import annotations

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.capabilities import Capability, declaration

STORY = """
    cache
    a: start 96 of x y z
    a: L 96 c0 h0 -> 0
    a: A 0
    cache + x y z
    a: S 0+96
    a: plan store 0+96 keys =x,=y,=z
    a: end computed 96
    cache - z
    evict =z
    b: start 120 of x y z
    b: L 120 c64 h64 -> 0
    b: A 0
    b: S 64+56
    b: end computed 120
"""
CHUNK = 32
ABOUT = {semconv.CAPABILITIES.key: declaration({"Connector": [Capability.TELLS_CHUNKS]})}
"""What the recorder's resource says: the connector reports every chunk that its store gains or loses."""
