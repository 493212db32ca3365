from __future__ import annotations

from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Evict, LoadPlan, Lookup, RequestStart, Reset, StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule

MAX_WRITERS = 100_000
"""Maximum number of remembered chunks, and of versions of adapters."""


@dataclass(slots=True)
class Writer:
    """The request that wrote a stored chunk.

    Attributes:
        identity: adapter and salt of the request that stored it first.
        store: the plan of this store.
        version: the version of the adapter when the chunk was last copied; None without an adapter, or if unknown.
    """

    identity: str
    store: StorePlan
    version: str | None = None


@dataclass(slots=True)
class Writers:
    """The writers of the chunks in an engine's stores. Chunks outlast the requests that stored them.

    Attributes:
        of: the first writer of each chunk, by connector and key.
        versions: by identity and version of its adapter, the number of the last start of a request with it. The adapter was
            not replaced before this start.
    """

    of: dict[tuple[str, str], Writer] = field(default_factory=dict)
    versions: dict[tuple[str, str], int] = field(default_factory=dict)

    def _enter_request_start(self, event: RequestStart, engine: Engine) -> None:
        if event.identity is not None and event.adapter_version is not None and len(self.versions) < MAX_WRITERS:
            self.versions[event.identity, event.adapter_version] = event.sequence

    def _enter_store_plan(self, event: StorePlan, engine: Engine) -> None:
        """Enter a store. The copied KV was computed with the weights of the request's adapter."""
        identity, version = engine.met.get(event.request or "", (None, None))
        if identity is None or len(self.of) >= MAX_WRITERS:
            return
        for key in event.chunk_keys or ():
            writer = self.of.setdefault((event.connector_id, key), Writer(identity, event, version))
            if not event.chunk_present and writer.identity == identity and writer.version != version:
                writer.store, writer.version = event, version

    def _enter_evict(self, event: Evict, engine: Engine) -> None:
        if event.chunk_key is not None:
            self.of.pop((event.connector_id, event.chunk_key), None)

    def _enter_reset(self, event: Reset, engine: Engine) -> None:
        if event.succeeded is not False:
            self.of = {key: writer for key, writer in self.of.items() if key[0] != event.connector_id}


class KeyCollision(EngineRule[Lookup | LoadPlan | StorePlan]):
    State = Writers

    def judge(self, event: Lookup | LoadPlan | StorePlan, engine: Engine) -> Judgement:
        identity, version = engine.met.get(event.request or "", (None, None))
        if identity is None or not event.chunk_keys:
            return None
        writers, is_known = engine.states[Writers], False
        for key in event.chunk_keys:
            writer = writers.of.get((event.connector_id, key))
            if writer is None:
                continue
            is_known = True
            numbers = {
                "key": key,
                "identity": identity,
                "other_identity": writer.identity,
                "other": writer.store.request,
            }
            if writer.identity != identity:
                return Drift(numbers, [writer.store, event])
            if version is None or writer.version is None or type(event) is StorePlan:
                continue  # the request copies its own chunk again
            if writer.version != version:
                if writers.versions.get((identity, writer.version), -1) < writer.store.sequence:
                    return Unknown.UNSEEN  # it may have run when the adapter had been replaced already
                numbers |= {"version": version, "other_version": writer.version}
                return Drift(numbers, [writer.store, event])
        return OK if is_known else None
