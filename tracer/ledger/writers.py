"""Who wrote the chunks of a store: the adapter and salt of those who stored them, and the weights' version. Pure.

It follows chunks, which outlast the requests that stored them; what it needs of an open request, `Engine.met` has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvtrail.tracer.events.events import RequestStart, StorePlan

MAX_WRITERS = 100_000
"""Chunks, and versions of adapters, that are remembered."""


class Identity(NamedTuple):
    """What a request's KV depends on beside its tokens: its adapter and salt, and the version of the adapter; None where it
    has none, or does not report it."""

    identity: str | None
    version: str | None


@dataclass(slots=True)
class Writer:
    """The request that wrote a stored chunk.

    Attributes:
        identity: adapter and salt of the request that stored it first.
        store: that plan.
        version: of the adapter, when the chunk was copied last; None without an adapter, or where it is not known.
    """

    identity: str
    store: StorePlan
    version: str | None = None


@dataclass(slots=True)
class Writers:
    """The writers of one engine's chunks.

    Attributes:
        versions: by identity and version of its adapter, the number of the last start of a request with it: the adapter was
            not replaced before.
        of: by connector and key, who stored the chunk first.
    """

    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    of: dict[tuple[str, str], Writer] = field(default_factory=dict)

    def clear(self) -> None:
        """Events are missing: none of it is certain."""
        self.versions.clear()
        self.of.clear()

    def enter_start(self, event: RequestStart) -> None:
        """Note what a request's KV depends on."""
        if event.identity is not None and event.adapter_version is not None and len(self.versions) < MAX_WRITERS:
            self.versions[event.identity, event.adapter_version] = event.sequence

    def enter_store(self, event: StorePlan, of: Identity) -> None:
        """A request stores chunks. What is copied has its adapter's weights."""
        identity, version = of
        if identity is None or len(self.of) >= MAX_WRITERS:
            return
        for key in event.chunk_keys or ():
            writer = self.of.setdefault((event.connector_id, key), Writer(identity, event, version))
            if not event.chunk_present and writer.identity == identity and writer.version != version:
                writer.store, writer.version = event, version

    def enter_reset(self, connector_id: str) -> None:
        """A connector's store is empty."""
        self.of = {key: writer for key, writer in self.of.items() if key[0] != connector_id}
