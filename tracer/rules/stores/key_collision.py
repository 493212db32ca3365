from __future__ import annotations

from kvtrail.tracer.events.events import LoadPlan, Lookup, StorePlan
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Unknown
from kvtrail.tracer.rules.rule import EngineRule


class KeyCollision(EngineRule[Lookup | LoadPlan | StorePlan]):
    id = "key-collision"

    def judge(self, event: Lookup | LoadPlan | StorePlan, engine: Engine) -> Judgement:
        identity, version = engine.met.get(event.request or "", (None, None))
        if identity is None or not event.chunk_keys:
            return None
        is_known = False
        for key in event.chunk_keys:
            writer = engine.writers.of.get((event.connector_id, key))
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
                continue  # what it copies again is its own
            if writer.version != version:
                if engine.writers.versions.get((identity, writer.version), -1) < writer.store.sequence:
                    return Unknown.UNSEEN  # it may have run when the adapter had been replaced already
                numbers |= {"version": version, "other_version": writer.version}
                return Drift(numbers, [writer.store, event])
        return OK if is_known else None

    def template(self, finding: Finding) -> str:
        if "version" in finding.numbers:
            return self.page.explanations["version"]
        return self.page.explanations["identity"]
