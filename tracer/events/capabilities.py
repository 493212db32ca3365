"""What the spans of a connector show, and what holds for it: rules ask for a capability and never for a connector's name.

A recorder declares the capabilities of the connectors that it knows in the resource attribute `semconv.CAPABILITIES`. Traces
without that attribute, from older recorders and from logs, get them by the connector's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache


class Capability(StrEnum):
    """A value of the attribute."""

    REPORTS_ALL_STORES = "reports_all_stores"
    """The stores of a request are reported in the order of its tokens, with the chunks that the store held already."""
    EXCLUSIVE_TRANSFERS = "exclusive_transfers"
    """A request has either one load or stores under way at any time, never both."""
    HANDS_ON = "hands_on"
    """A request that is to be handed on to another engine keeps its blocks after its end, until they are sent."""
    RECEIVES_ONCE = "receives_once"
    """What it offers asynchronously was handed on by another engine, which gives it up once it was received."""
    REPORTS_LEASES = "reports_leases"
    """What it keeps for another engine has a lease, and each extension of it is recorded, if there is any."""
    ANSWERS_FOR_CHILDREN = "answers_for_children"
    """Its answers are its children's, which may be traced as well: what both report is counted once."""
    TELLS_CHUNKS = "tells_chunks"
    """All that its store gains and loses is reported, in order: by keys, which are the hash of each chunk's last block, or by
    the tokens of a store. No other engine writes to it."""

    TELLS_GROUPS = "tells_groups"
    """With several KV cache groups, what each chunk of its store has of each is reported: of full attention and recurrent
    ones by the hash of the chunk's last block, of other groups by that of each block. Its lookups look at a prompt from its
    beginning, and go back to the last chunk before its last token behind which all groups have what the next token sees."""
    EVICTS_ANY = "evicts_any"
    """Its store evicts any chunk to make room, one of the same prompt included: what a store loses that is smaller than a
    prompt is a matter of its size."""


_WITHOUT_ATTRIBUTE = {
    "OffloadConnector": {Capability.REPORTS_ALL_STORES},
    "LMCache": {Capability.REPORTS_ALL_STORES},
    "OffloadingConnector": {Capability.EXCLUSIVE_TRANSFERS, Capability.EVICTS_ANY},
    "Nixl": {Capability.HANDS_ON, Capability.RECEIVES_ONCE},
    "MooncakeConnector": {Capability.HANDS_ON, Capability.RECEIVES_ONCE},
    "MoRIIOConnector": {Capability.RECEIVES_ONCE},
    "MultiConnector": {Capability.ANSWERS_FOR_CHILDREN},
}
"""By the beginning of a connector's name: its capabilities in a trace that declares none."""


def declaration(capabilities: Mapping[str, Iterable[Capability]]) -> str:
    """The attribute's value: JSON, the capabilities by connector name."""
    return json.dumps({name: sorted(each) for name, each in sorted(capabilities.items())}, separators=(",", ":"))


@lru_cache(maxsize=256)
def of_connector(name: str, declared: str | None) -> frozenset[str]:
    """The capabilities of a connector; `declared` is the attribute's value, if its recorder wrote any."""
    if declared is None:
        return frozenset().union(*(each for prefix, each in _WITHOUT_ATTRIBUTE.items() if name.startswith(prefix)))
    try:
        capabilities = json.loads(declared)[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return frozenset()
    return frozenset(str(each) for each in capabilities) if isinstance(capabilities, list) else frozenset()
