from __future__ import annotations

from kvtrail.tracer.events.events import Schedule
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule, Groups


class FailedLoadResume(EngineRule[Schedule]):
    """A request computes on top of blocks that failed to load.

    Invariant: after a load error over block b, every step of a request that has b at position i of a KV cache group's table
    begins at or before i x the group's block size, until a step has computed b again, or this request's own step has begun
    to. A block before the window of the step is not needed.

    A shared block is recomputed by one of its owners, and may be so in the step that reads it: a layer writes first.
    With `kv_load_failure_policy=fail` the request ends instead. An asynchronous load that is reported as failed without its
    blocks (`failed_recving`) leaves all of them so. Source: vLLM,
    `Scheduler._update_requests_with_invalid_blocks`; the incident is vLLM #49250
    (https://github.com/vllm-project/vllm/issues/49250). Needs block ids (level `detailed`), the block size, and every
    event of the engine since the error.
    """

    id = "failed-load-resume"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C8",)
    hint = "The error reached one of the requests that share the block, or a wrong position was taken for the first bad one."
    explanation = (
        "At {0} the load of block {block} was reported as failed; it holds this request's tokens from {first_invalid} on. At"
        " {1} the request runs from token {begins}, and no step has computed the block since."
    )

    def judge(self, event: Schedule, engine: Engine) -> Judgement:
        if not engine.invalid:
            return None
        table = engine.tables.get(event.request or "")
        if table is None or not event.block_size:
            return engine.missing or Unknown.LEVEL
        for number, (size, ids) in enumerate(table.sized()):
            needed = table.needed_from(number, event.computed)
            for position, block in enumerate(ids[needed : -(-event.computed // size)], needed):
                if block not in engine.invalid or event.request in engine.recomputing.get(block, ()):
                    continue
                if not _may_be_computed_beside(event, block, engine):
                    numbers = {"block": block, "first_invalid": position * size, "begins": event.computed}
                    return Drift(numbers, [engine.invalid[block], event])
        return OK


def _may_be_computed_beside(event: Schedule, block: int, engine: Engine) -> bool:
    """Whether another request may compute the block to its end in this very step: the one that failed to load it, if it has
    not run since, or one that has begun the block. Of a step's requests, new ones are recorded before running ones. The next
    step of this request shows whether it did."""
    step, owner = event.scheduler_step, engine.invalid[block].request or ""
    if step is None:
        return False
    waits = owner != event.request and owner in engine.tables and owner not in engine.ran_since
    begun = engine.recomputing.get(block, ())
    return waits or any(each in engine.tables and engine.ran_since.get(each) != step for each in begun)
