"""stale-block: a block is copied for a request that has given it back, after another request has been given it."""

from __future__ import annotations

from kvtrail.tracer.events.events import Event, LoadPlan, StorePlan
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.block_table import blocks_by_group
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule, Groups


class StaleBlock(EngineRule[LoadPlan | StorePlan]):
    """The connector plans to copy a block that vLLM has given to another request since.

    Invariant: no block of a plan has been given out, free as it was, to another request after the request of the plan got it;
    and, where that request has ended, was preempted, or gave its blocks back after a load that failed, none in a step before
    that of the plan.
    Of a recurrent group this is judged of blocks that the request's table names: vLLM hands a state over by its exact block,
    which may be a copy that no table has, in a block that somebody had before.

    vLLM gives back what a sliding window or a recurrent state has left behind, step by step, and says so to nobody; who keeps
    a copy of the block table has to forget it. That the block was given back is legal to overlook while nobody has it. A
    request's last blocks may be stored in the step after its end: given out in that very step, they can be copied before it
    runs, and `block-reuse` says whether it waited.
    Source: vLLM, `SingleTypeKVCacheManager.remove_skipped_blocks`, and `OffloadingConnectorScheduler._build_store_jobs` for
    ended requests; the incident is vLLM #42959 (https://github.com/vllm-project/vllm/pull/42959). Needs block ids (level
    `detailed`), a probe that reads plans, and every event of the engine since the block was given out; of a window, the
    declared groups.
    """

    id = "stale-block"
    only_with = "blocks_ids"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    level = Level.DETAILED
    classes = ("C4", "C16")
    hint = (
        "The connector's copy of a block table still has blocks that vLLM has taken back: a window has left them behind, or"
        " the request has ended. Forget them then, or when they are given out again, before a late store is planned."
    )

    def judge(self, event: LoadPlan | StorePlan, engine: Engine) -> Judgement:
        if not event.blocks_ids:
            return None
        table = engine.tables.get(event.request or "")
        if table is None:
            return self._without_blocks(event, engine)
        if not event.blocks_by_group:
            return None
        stale = [
            (group, block, given)
            for group, blocks in enumerate(blocks_by_group(event))
            for block in blocks
            if (given := engine.given.get(block)) is not None
            and given.request != event.request
            and _is_later(given, table.named_by)
            and not (table.is_recurrent(group) and block not in table.groups[group])
        ]
        if not stale:
            return OK
        group, block, given = stale[0]
        numbers = {"block": block, "group": group, "other": given.request, "stale": len(stale)}
        return Drift(numbers, [given, event])

    def _without_blocks(self, event: LoadPlan | StorePlan, engine: Engine) -> Judgement:
        """The request of the plan holds no blocks."""
        left = engine.left.get(event.request or "")
        if left is None:
            return engine.missing if event.request in engine.met else None
        if isinstance(event, StorePlan) and event.chunk_present:
            return OK
        given_since = engine.given_since_left(event)
        stale = {block: given for block, given in given_since.items() if engine.has_run_since(given)}
        if not stale:
            return Unknown.ORDER if given_since and event.job is None else OK
        block, given = next(iter(stale.items()))
        copies = "store" if isinstance(event, StorePlan) else "load"
        numbers = {"block": block, "other": given.request, "stale": len(stale), "transfer": copies}
        return Drift(numbers, [left, given, event])

    def template(self, finding: Finding) -> str:
        if "group" in finding.numbers:
            return (
                "At {0} block {block} was given to request {other}. At {1:epoch} the connector plans to copy it as one of KV"
                " cache group {group} of this request, but its window has left it behind ({stale} such blocks in the plan):"
                " the other request's KV is copied."
            )
        text = (
            "At {0} the request gave its blocks back. At {1} block {block} was given to request {other}. At {2:epoch} the"
            " connector plans a {transfer} of this request over it ({stale} such blocks in the plan): the other request's KV"
        )
        return text + (" is stored as this one's." if finding.numbers["transfer"] == "store" else " is overwritten.")


def _is_later(given: Event, named: Event) -> bool:
    """Whether a block was given out in a later step. Within a step no order is known: requests share at once what one of them
    is given to compute. A log has no steps."""
    step, since = getattr(given, "scheduler_step", None), getattr(named, "scheduler_step", None)
    return given.sequence > named.sequence if step is None or since is None else bool(step > since)
