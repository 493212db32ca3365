"""Finds what a connector still holds when all requests have ended, in its own attributes.

Nothing else is known of the connector, so only a few things count. On the scheduler's side: ids of requests that have ended;
and numbers and containers whose names say that they are temporary (pins, leases, pending work) and whose sizes differ from
those at the start. On the worker's side: bytes of tensors and arrays.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from types import ModuleType
from typing import Any

MOST = 200_000
"""Maximum number of objects that are inspected."""
DEEPEST = 8
_TEMPORARY = frozenset({
    "pin", "pins", "pinned", "lock", "locks", "locked", "lease", "leases", "leased", "inflight", "flight", "pending",
    "outstanding", "borrowed", "loading", "storing", "sending", "receiving", "recving",
})  # fmt: skip
_LASTING = frozenset({
    "next", "total", "id", "ids", "counter", "seq", "peak", "max", "min", "limit", "last", "stats", "history", "ever",
    "time", "timeout", "ttl", "interval",
})  # fmt: skip
_NOT_ITS_OWN = (
    "vllm.config", "vllm.v1.core", "vllm.v1.request", "vllm.v1.kv_cache_interface", "vllm.logger", "torch", "numpy",
    "logging", "threading", "kvtrail.connector.recording", "kvtrail.connector.tracing", "kvtrail.connector.known",
    "kvtrail.connector.simulate", "unittest", "prometheus_client",
)  # fmt: skip
_OF_VLLM = frozenset({
    "_vllm_config", "_kv_transfer_config", "_kv_cache_config", "_kv_cache_manager", "_role", "_connector_metadata",
})  # fmt: skip


def held(connector: Any, ended: Set[str], ignored: Set[str]) -> dict[str, set[str]]:
    """The ids of ended requests that a connector still holds, by the place that holds them, such as `Store.tracked`.

    Args:
        ended: ids that no live request has.
        ignored: names of attributes that may remember ended requests.
    """
    found: dict[str, set[str]] = {}
    for place, _, thing in _walk(connector, ignored):
        if isinstance(thing, str) and thing in ended:
            found.setdefault(place, set()).add(thing)
    return found


def temporary(connector: Any, ignored: Set[str]) -> dict[str, int]:
    """The size of each attribute whose name says that it is temporary: the number of a container's entries, the sum of its
    numbers, or a number. A negative number counts as well: something was given back twice."""
    sizes: dict[str, int] = {}
    for place, name, thing in _walk(connector, ignored):
        words = set(re.split(r"[^a-z]+", name.lower()))
        if not words & _TEMPORARY or words & _LASTING:
            continue
        size = 0
        if isinstance(thing, int):
            size = abs(thing)
        elif isinstance(thing, Mapping):
            values = list(thing.values())
            counts = values and all(isinstance(value, int) for value in values)
            size = sum(map(abs, values)) if counts else len(values)
        elif isinstance(thing, Set | list | deque):
            size = len(thing)
        sizes[place] = sizes.get(place, 0) + size
    return sizes


def stored_bytes(connectors: Iterable[Any]) -> int:
    """Bytes of all tensors, arrays and byte strings that these connectors hold; shared memory is counted once."""
    import numpy as np
    import torch

    sizes: dict[int, int] = {}
    for connector in connectors:
        for _, _, thing in _walk(connector, frozenset()):
            if isinstance(thing, torch.Tensor):
                storage = thing.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            elif isinstance(thing, np.ndarray):
                while isinstance(thing.base, np.ndarray):
                    thing = thing.base
                address = thing.ctypes.data  # a tensor's, where the array is a view of one
                sizes[address] = max(thing.nbytes, sizes.get(address, 0))
            elif isinstance(thing, bytes | bytearray):
                sizes[id(thing)] = len(thing)
    return sum(sizes.values())


def _walk(connector: Any, ignored: Set[str]) -> Iterator[tuple[str, str, Any]]:
    """All objects that are reachable from a connector's own attributes: the place, the attribute's name, and the object. The
    place of a text is that of the object or the container that holds it."""
    waiting = deque([(type(connector).__name__.removeprefix("Traced"), "", connector, 0)])
    seen: set[int] = {id(connector)}
    while waiting and len(seen) < MOST:
        place, name, thing, depth = waiting.popleft()
        yield place, name, thing
        for below, called, each in _below(place, name, thing):
            if called in ignored or called.startswith("_kvtrail") or (depth == 0 and called in _OF_VLLM):
                continue
            if isinstance(each, str | bytes):
                yield place, name, each
            elif isinstance(each, int):  # every place counts its own
                if called != name:
                    yield below, called, each
            elif depth < DEEPEST and not isinstance(each, float | None) and id(each) not in seen:
                seen.add(id(each))
                waiting.append((below, called, each, depth + 1))


def _below(place: str, name: str, thing: Any) -> Iterator[tuple[str, str, Any]]:
    """The things that this one holds: the place, the attribute's name, and the object. In a mapping, a text counts only as a
    key, which may name a request, and bytes count only as a value, which may be KV."""
    if isinstance(thing, Mapping):
        for key, value in list(thing.items()):
            if not isinstance(value, str):
                yield place, name, value
            if not isinstance(key, bytes):
                yield place, name, key
    elif isinstance(thing, Set | list | tuple | deque):
        for value in list(thing):
            yield place, name, value
    elif type(thing).__module__ == "vllm.v1.request":
        yield place, name, getattr(thing, "request_id", None)
    elif not (isinstance(thing, type | ModuleType) or type(thing).__module__.startswith(_NOT_ITS_OWN)):
        for called in (*getattr(thing, "__dict__", ()), *_slots(type(thing))):
            if (value := getattr(thing, called, None)) is not None and not callable(value):
                yield f"{place}.{called}", called, value


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
