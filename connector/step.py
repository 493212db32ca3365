"""What a scheduling step tells: preemptions, first steps, and in detail every step with its blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from time import time_ns
from typing import Any

from connector.context import RequestContext
from connector.recorder import Recorder
from tracer.semconv import Kind

Tell = Callable[[Kind, RequestContext | None, int, tuple[Any, ...]], None]


def tell(tell_one: Tell, recorder: Recorder, connector: Any, output: Any) -> None:
    """Tell what a `SchedulerOutput` of vLLM says about its requests."""
    running = output.scheduled_cached_reqs
    at_ns = time_ns()
    scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    if output.preempted_req_ids:
        _tell_preemptions(tell_one, recorder, connector, output, at_ns)
    for new in output.scheduled_new_reqs:
        context = known(recorder, new.req_id)
        table = first_group(new.block_ids) if context.detailed else None
        drafted = len(drafts.get(new.req_id, ())) if context.detailed else None
        values = (new.num_computed_tokens, scheduled[new.req_id], context.epoch > 0, drafted, table)
        tell_one(Kind.SCHEDULE, context, at_ns, values)
        _tell_statistics(tell_one, context, at_ns)
    resumed_ids, tells_steps = running.resumed_req_ids, recorder.level.tells_steps
    if not (resumed_ids or tells_steps):
        return
    for number, request_id in enumerate(running.req_ids):
        resumed = request_id in resumed_ids
        if not (resumed or tells_steps):
            continue
        context = known(recorder, request_id)
        if resumed or context.detailed:
            added = first_group(running.new_block_ids[number]) if context.detailed else None
            drafted = len(drafts.get(request_id, ())) if context.detailed else None
            values = (running.num_computed_tokens[number], scheduled[request_id], resumed, drafted, added)
            tell_one(Kind.SCHEDULE, context, at_ns, values)


def holders(
    recorder: Recorder, connector: Any, blocks: Collection[int]
) -> Iterator[tuple[RequestContext, tuple[int, ...]]]:
    """The requests whose tables hold some of these blocks, and those blocks. Rare: only after a failed load."""
    for context in recorder.open_contexts():
        if context.request is not None:
            table = first_group(connector._kv_cache_manager.get_block_ids(context.request_id)) or ()
            if held := tuple(block for block in table if block in blocks):
                context.epoch = context.request.num_preemptions
                yield context, held


def known(recorder: Recorder, request_id: str) -> RequestContext:
    """The context of a request, brought to its current epoch."""
    context = recorder.context_of_id(request_id)
    if context.request is not None:
        context.epoch = context.request.num_preemptions
    return context


def first_group(blocks: Sequence[Sequence[int]] | None) -> tuple[int, ...] | None:
    """Block ids of the first KV cache group; of no group if there are several, whose ids mean different pools."""
    if blocks is None:
        return ()
    return tuple(blocks[0]) if len(blocks) == 1 else None


def _tell_preemptions(tell_one: Tell, recorder: Recorder, connector: Any, output: Any, at_ns: int) -> None:
    """Preemptions; in detail with the blocks that they left free: those that are free after the step, and those it used."""
    free = None
    if recorder.level.detailed:
        used = [new.block_ids for new in output.scheduled_new_reqs]
        used += [blocks for blocks in output.scheduled_cached_reqs.new_block_ids if blocks is not None]
        free = connector._kv_cache_manager.block_pool.get_num_free_blocks() + sum(
            len(first_group(b) or ()) for b in used
        )
    for request_id in output.preempted_req_ids:
        tell_one(Kind.PREEMPT, known(recorder, request_id), at_ns, (free,))


def _tell_statistics(tell_one: Tell, context: RequestContext, at_ns: int) -> None:
    """What vLLM will report of the request's prefill, set when it is scheduled for the first time."""
    stats = getattr(context.request, "prefill_stats", None)
    if stats is not None and stats.num_prompt_tokens:
        values = (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_external_cached_tokens, None)
        tell_one(Kind.STATS, context, at_ns, values)
