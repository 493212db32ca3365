"""Capabilities of connectors. Rules ask for a capability and never for a connector's name.

A recorder declares the capabilities of known connectors in the resource attribute `semconv.CAPABILITIES`. In traces without
this attribute, from older recorders and from logs, the connector's name decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache


class Capability(StrEnum):
    """A value of the attribute."""

    REPORTS_ALL_STORES = "reports_all_stores"
    """The stores of a request are reported in the order of its tokens, including chunks that the store already held."""
    EXCLUSIVE_TRANSFERS = "exclusive_transfers"
    """At any time, a request has either one load or stores in progress, never both."""
    HANDS_ON = "hands_on"
    """A request that will be handed to another engine keeps its blocks after its end, until they are sent."""
    RECEIVES_ONCE = "receives_once"
    """The KV that it offers asynchronously comes from another engine, which frees it once it was received."""
    REPORTS_LEASES = "reports_leases"
    """The blocks that it keeps for another engine have a lease, and each extension of the lease is recorded."""
    ANSWERS_FOR_CHILDREN = "answers_for_children"
    """It passes on the answers of its children, which may be traced too. Anything that both report is counted once."""
    TELLS_CHUNKS = "tells_chunks"
    """All changes of its store are reported, in order: by keys, which are the hash of each chunk's last block, or by the
    tokens of a store. No other engine writes to the store."""

    TELLS_GROUPS = "tells_groups"
    """With several KV cache groups, the blocks that each chunk of its store holds are reported by group: by the hash of the
    chunk's last block for full attention and recurrent groups, by the hash of each block for other groups. A lookup reads a
    prompt from its beginning. It returns the last chunk boundary before the last token at which every group holds all that
    the next token needs."""
    EVICTS_ANY = "evicts_any"
    """Its store may evict any chunk to make room, including one of the same prompt. A store that is smaller than a prompt
    therefore loses chunks of it because of its size."""


_WITHOUT_ATTRIBUTE = {
    "OffloadConnector": {Capability.REPORTS_ALL_STORES},
    "LMCache": {Capability.REPORTS_ALL_STORES},
    "OffloadingConnector": {Capability.EXCLUSIVE_TRANSFERS, Capability.EVICTS_ANY},
    "Nixl": {Capability.HANDS_ON, Capability.RECEIVES_ONCE},
    "MooncakeConnector": {Capability.HANDS_ON, Capability.RECEIVES_ONCE},
    "MoRIIOConnector": {Capability.RECEIVES_ONCE},
    "MultiConnector": {Capability.ANSWERS_FOR_CHILDREN},
}
"""A connector's capabilities in a trace that declares none, by the beginning of its name."""


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
