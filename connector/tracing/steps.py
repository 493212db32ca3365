"""What a scheduling step tells: preemptions, first steps, and in detail every step with its blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from time import time_ns
from typing import Any

from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.model.semconv import Kind

_PREEMPT, _SCHEDULE, _STATS = Kind.PREEMPT.value, Kind.SCHEDULE.value, Kind.STATS.value


def tell(recorder: Recorder, source: bytes, connector: Any, output: Any) -> None:
    """Tell what a `SchedulerOutput` of vLLM says about its requests; `source` are the encoded attributes that say who
    recorded."""
    at_ns = time_ns()
    if output.preempted_req_ids:
        free = _left_free(connector, output) if recorder.level.detailed else None
        for request_id in output.preempted_req_ids:
            recorder.record(_PREEMPT, source, recorder.contexts.of_id(request_id), at_ns, at_ns, (free,))
    running, scheduled, drafts = (
        output.scheduled_cached_reqs,
        output.num_scheduled_tokens,
        output.scheduled_spec_decode_tokens,
    )
    for new in output.scheduled_new_reqs:
        request_id = new.req_id
        context = recorder.contexts.of_id(request_id)
        table = drafted = None
        if context.detailed:
            table, drafted = first_group(new.block_ids), len(drafts.get(request_id, ()))
        values = (new.num_computed_tokens, scheduled[request_id], context.epoch > 0, drafted, table)
        recorder.record(_SCHEDULE, source, context, at_ns, at_ns, values)
        if told := _statistics(context.request):
            recorder.record(_STATS, source, context, at_ns, at_ns, told)
    resumed_ids, any_detailed = running.resumed_req_ids, recorder.level.any_detailed
    if not (resumed_ids or any_detailed):
        return
    for number, request_id in enumerate(running.req_ids):
        resumed = request_id in resumed_ids
        if not (resumed or any_detailed):
            continue
        context = recorder.contexts.of_id(request_id)
        if resumed or context.detailed:
            added = first_group(running.new_block_ids[number]) if context.detailed else None
            drafted = len(drafts.get(request_id, ())) if context.detailed else None
            values = (running.num_computed_tokens[number], scheduled[request_id], resumed, drafted, added)
            recorder.record(_SCHEDULE, source, context, at_ns, at_ns, values)


def holders(
    recorder: Recorder, connector: Any, blocks: Collection[int]
) -> Iterator[tuple[RequestContext, tuple[int, ...]]]:
    """The requests whose tables hold some of these blocks, and those blocks. Rare: only after a failed load."""
    for context in list(recorder.contexts.open.values()):
        if context.request is not None:
            table = first_group(connector._kv_cache_manager.get_block_ids(context.request_id)) or ()
            if held := tuple(block for block in table if block in blocks):
                context.epoch = context.request.num_preemptions
                yield context, held


def first_group(blocks: Sequence[Sequence[int]] | None) -> tuple[int, ...] | None:
    """Block ids of the first KV cache group; of no group if there are several, whose ids mean different pools."""
    if blocks is None:
        return ()
    return tuple(blocks[0]) if len(blocks) == 1 else None


def _left_free(connector: Any, output: Any) -> int:
    """The blocks that preemptions left free: those that are free after the step, and those that it used."""
    used = [new.block_ids for new in output.scheduled_new_reqs]
    used += [blocks for blocks in output.scheduled_cached_reqs.new_block_ids if blocks is not None]
    free: int = connector._kv_cache_manager.block_pool.get_num_free_blocks()
    return free + sum(len(first_group(blocks) or ()) for blocks in used)


def _statistics(request: Any) -> tuple[int, int, int, None] | None:
    """What vLLM will report of the request's prefill, set when it is scheduled for the first time."""
    stats = getattr(request, "prefill_stats", None)
    if stats is None or not stats.num_prompt_tokens:
        return None
    return stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_external_cached_tokens, None
