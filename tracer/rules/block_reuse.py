from __future__ import annotations

from tracer.engine import Engine
from tracer.events import Alloc, Event, Schedule, StorePlan
from tracer.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from tracer.rules import EngineRule
from tracer.semconv import Kind


class BlockReuse(EngineRule):
    """A block is given to a request while a transfer of another one is still open over it.

    Invariant: no block enters a request's table while an asynchronous load or store of another request is open over it,
    unless that request holds the block too (a shared prefix).

    Source: vLLM, `request_finished` -> True keeps blocks until `finished_sending`; what is freed is overwritten. The
    incidents are vLLM #52360 (https://github.com/vllm-project/vllm/issues/52360), #29870
    (https://github.com/vllm-project/vllm/pull/29870) and SGLang #32564 (https://github.com/sgl-project/sglang/pull/32564).
    Needs block ids (level `detailed`), plans with numbers or asynchronous loads, and every event of the engine.
    """

    id = "block-reuse"
    severity = Severity.WRONG_OUTPUT
    classes = ("C16",)
    kinds = frozenset({Kind.ALLOC, Kind.SCHEDULE})
    hint = "The blocks were freed at the preemption or the end although a copy was under way: fence them, or delay the free."

    def judge(self, event: Event, engine: Engine) -> Judgement:
        assert isinstance(event, Alloc | Schedule)
        if not event.blocks_ids:
            return None
        if not engine.transfers:
            return Verdict.OK if engine.complete else Verdict.UNKNOWN
        if not engine.complete:
            return Verdict.UNKNOWN
        for block in event.blocks_ids:
            for owner, transfer in engine.transfers.get(block, {}).items():
                if owner != event.request and block not in engine.tables.get(owner, ()):
                    what = "store" if isinstance(transfer, StorePlan) else "load"
                    return Drift({"block": block, "other": owner, "transfer": what}, [transfer, event])
        return Verdict.OK

    def explain(self, finding: Finding) -> str:
        transfer, given = finding.witness
        n = finding.numbers
        return (
            f"At {transfer.label} ({clock(transfer.at_ns)}) a {n['transfer']} of request {n['other']} began over block"
            f" {n['block']}, and it has not ended. At {given.label} ({clock(given.at_ns)}) the block, which that request does"
            " not hold any more, was given to this one: one of the two will read what the other wrote."
        )
