"""What SQLite's store knows of engines: what their recorders said, and how many of their requests are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtrail.tracer.model import semconv
from kvtrail.tracer.store.sqlite.texts import from_text

_SAID = {
    "model": semconv.MODEL.key,
    "version": semconv.ENGINE_VERSION.key,
    "service": "service.name",
    "host": "host.name",
}


def engines(query: Callable[..., list[Any]]) -> dict[str, dict[str, Any]]:
    """See `Reader.engines`. What a later recorder says counts, where it says something."""
    known: dict[str, dict[str, Any]] = {}
    for (body,) in query("SELECT body FROM resources ORDER BY id", [], []):
        resource = from_text(body)
        if (name := resource.get(semconv.ENGINE_ID.key)) is not None:
            of_engine = known.setdefault(name, _nothing_said())
            of_engine.update({key: str(resource[said]) for key, said in _SAID.items() if resource.get(said)})
    open_requests = query(
        "SELECT engine, count(*) FROM requests INDEXED BY requests_open", ["ended_ns IS NULL"], [], "GROUP BY engine"
    )
    for name, count in open_requests:
        known.setdefault(name, _nothing_said())["open"] = count
    return known


def _nothing_said() -> dict[str, Any]:
    return {**dict.fromkeys(_SAID, ""), "open": 0}
