from __future__ import annotations

from kvtrail.tracer.events.events import Alloc, Job, Plan, Received, StorePlan, TransferEnd
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule, Groups


class BlockReuse(EngineRule[TransferEnd | Received]):
    """A block was given to another request while a transfer over it was still open.

    Invariant: no block enters a request's table between the beginning and the end of an asynchronous load or store of
    another request over it, unless that request holds the block too (a shared prefix), or the workers are instructed in the
    same step to wait for the transfer before they run. The same holds of a block that was given out earlier in the step in
    which the transfer was planned, for a request that had given it back.

    Source: vLLM, `request_finished` -> True keeps blocks until `finished_sending`; the OffloadingConnector flushes a
    store before its blocks are given away; blocks without either are overwritten. The incidents are vLLM #52360
    (https://github.com/vllm-project/vllm/issues/52360), #29870 (https://github.com/vllm-project/vllm/pull/29870), #48596
    (https://github.com/vllm-project/vllm/pull/48596) and SGLang #32564 (https://github.com/sgl-project/sglang/pull/32564).
    Needs block ids (level `detailed`), plans with numbers or asynchronous loads, and every event of the engine while the
    transfer is open; it is judged at its end.
    """

    id = "block-reuse"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C16",)
    hint = "The blocks were freed at the preemption or the end although a copy was under way: fence them, or delay the free."
    explanation = (
        "At {0} a {transfer} of this request began over block {block}. At {1} the block, which the request no longer held,"
        " was given to request {other}, and nothing waited for the {transfer}, which ended at {2}: one of the two has"
        " read what the other wrote."
    )

    def judge(self, event: TransferEnd | Received, engine: Engine) -> Judgement:
        if type(event) is TransferEnd:
            key: Job | str = event.job
            transfer: Alloc | Plan | None = engine.jobs.get(event.job)
        else:
            key = event.request or ""
            transfer = engine.loads.get(key)
        if transfer is None:
            return engine.missing if type(event) is TransferEnd or event.request not in engine.met else None
        if key in engine.undecided:
            return engine.missing
        if key not in engine.contested:
            return OK if transfer.blocks_ids is not None else Unknown.LEVEL
        block, given = engine.contested[key]
        what = "store" if type(transfer) is StorePlan else "load"
        numbers = {"block": block, "other": given.request, "transfer": what}
        return Drift(numbers, [transfer, given, event], connector=transfer.connector)
