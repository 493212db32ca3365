from __future__ import annotations

from kvtrail.tracer.detect.engine_state import Engine
from kvtrail.tracer.detect.rules import EngineRule
from kvtrail.tracer.model.events import Event, Received, StorePlan, TransferEnd
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


class BlockReuse(EngineRule[Event]):
    """A block was given to a request while a transfer of another one was open over it.

    Invariant: no block enters a request's table between the beginning and the end of an asynchronous load or store of another
    request over it, unless that request holds the block too (a shared prefix), or the workers are told in the same step to
    wait for the transfer before they run.

    Source: vLLM, `request_finished` -> True keeps blocks until `finished_sending`; the OffloadingConnector flushes a store
    whose blocks are given away; what is done neither for is overwritten. The incidents are vLLM #52360
    (https://github.com/vllm-project/vllm/issues/52360), #29870 (https://github.com/vllm-project/vllm/pull/29870) and SGLang
    #32564 (https://github.com/sgl-project/sglang/pull/32564). Needs block ids (level `detailed`), plans with numbers or
    asynchronous loads, and every event of the engine. It is judged when the transfer ends.
    """

    id = "block-reuse"
    severity = Severity.WRONG_OUTPUT
    classes = ("C16",)
    kinds = frozenset({Kind.TRANSFER_END, Kind.RECEIVED})
    hint = "The blocks were freed at the preemption or the end although a copy was under way: fence them, or delay the free."

    def judge(self, event: Event, engine: Engine) -> Judgement:
        if isinstance(event, TransferEnd):
            key: int | str = event.transfer_id
            transfer: Event | None = engine.jobs.get(event.transfer_id)
        else:
            assert isinstance(event, Received)
            key = event.request or ""
            transfer = engine.loads.get(key)
        if transfer is None:
            return None
        if not engine.complete:
            return Verdict.UNKNOWN
        if key not in engine.contested:
            return Verdict.OK
        block, given = engine.contested[key]
        what = "store" if isinstance(transfer, StorePlan) else "load"
        return Drift({"block": block, "other": given.request, "transfer": what}, [transfer, given, event])

    def explain(self, finding: Finding) -> str:
        begins, given, ends = finding.witness
        n = finding.numbers
        return (
            f"At {begins.label} ({clock(begins.at_ns)}) a {n['transfer']} of this request began over block {n['block']}. At"
            f" {given.label} ({clock(given.at_ns)}) the block, which the request did not hold any more, was given to request"
            f" {n['other']}, and nobody waited for the {n['transfer']}, which ended at {ends.label} ({clock(ends.at_ns)}):"
            " one of the two has read what the other wrote."
        )
