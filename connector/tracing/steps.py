"""Records a scheduling step's effects on requests: preemptions, first and later steps, and the tokens of each.

A step of an engine with hundreds of requests has almost no new information: most of them decode one token into a block that
they already hold. So a later step of a request is recorded only if it has new information, and all of these together as one
event (`benchmarks/throughput.py running` measures the cost).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import Any

from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.semconv import Kind

_DETAILED = attrgetter("detailed")
Run = tuple[int | None, int | None, int | None]
"""A request's tokens in a step: computed at the beginning, scheduled, and drafted among these."""
NOT_RUN: Run = (None, None, None)
TABLE_RESYNC_NS = 60 * 10**9
"""Interval after which a request's whole block table is recorded again."""
RESYNC_SCAN_NS = 10 * 10**9
"""Interval between searches for due tables, after all due ones have been recorded."""


class Steps:
    """Records the steps of one connector object.

    Attributes:
        previous: vLLM's output of the previous step, None before the first one.
    """

    def __init__(self, recorder: Recorder, source: bytes) -> None:
        """`source` is the encoded attributes that say who recorded."""
        self._recorder = recorder
        self._source = source
        self._level = recorder.level
        self.previous: Any = None
        self._fresh: set[str] = set()
        """The requests that ran more than one token in the last step, or ran for the first time. Their position in the
        current step shows the result and the duration of the last one."""
        self._watched: set[str] = set()
        """The requests with a record of every step."""
        self._last: Mapping[str, int] = {}
        """The number of tokens of each request in the last step."""
        self._tables: deque[str] = deque()
        """The requests with a block table to record again. One is recorded per step, so that no lost table stays unknown."""
        self._next_scan_ns = 0
        self._preempted: dict[str, int] = {}
        """The epoch that began with the last recorded preemption of a request."""

    def watch(self, request_id: str) -> None:
        """Record every step of this request from now on, until it ends."""
        self._watched.add(request_id)

    def ended(self, request_id: str) -> None:
        """Note that the request has ended."""
        self._watched.discard(request_id)
        self._preempted.pop(request_id, None)

    def preempted(
        self, context: RequestContext, request_id: str, number: int, at_ns: int, free: int | None = None
    ) -> None:
        """Record the preemption by which a request's epoch began, once: when the step of this number reports it, or before
        that, since a reset of vLLM's cache preempts requests that the same step looks up and loads again."""
        if self._preempted.get(context.request_id) != context.epoch:
            self._preempted[context.request_id] = context.epoch
            context.blocks = None
            self._record(Kind.PREEMPT, context, at_ns, (free, number, self._reached(request_id)))

    def record(self, connector: Any, output: Any, pool: Any, number: int, at_ns: int) -> None:
        """Record a `SchedulerOutput`, the step with this number. `pool` is vLLM's block pool, if known."""
        of_id, running = self._recorder.contexts.of_id, output.scheduled_cached_reqs
        if output.preempted_req_ids:
            free = _left_free(pool, output)
            for request_id in output.preempted_req_ids:
                self.preempted(of_id(request_id), request_id, number, at_ns, free)
        for new in output.scheduled_new_reqs:
            context = of_id(new.req_id)
            run = (new.num_computed_tokens, output.num_scheduled_tokens[new.req_id], context.epoch > 0)
            self._record_first(context, output, run, new.block_ids, number, at_ns)
            stats = getattr(context.request, "prefill_stats", None)  # set when it is scheduled for the first time
            if stats is not None and stats.num_prompt_tokens:
                reported = (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_external_cached_tokens, None)
                context.cached = stats.num_cached_tokens
                self._record(Kind.STATS, context, at_ns, reported)
            elif context.cached is None:
                context.cached = getattr(context.request, "num_cached_tokens", None)  # an older vLLM's
        if running.resumed_req_ids:
            for n, request_id in enumerate(running.req_ids):
                if request_id in running.resumed_req_ids:
                    run = (running.num_computed_tokens[n], output.num_scheduled_tokens[request_id], True)
                    self._record_first(of_id(request_id), output, run, running.new_block_ids[n], number, at_ns)
        if self._level.any_detailed:
            recorded = self._record_later(output, number, at_ns)
            if self._tables or at_ns >= self._next_scan_ns:
                self._resync_table(connector, output, recorded, number, at_ns)

    def _reached(self, request_id: str) -> int | None:
        """The request's computed tokens at the end of the previous step; None if uncertain: the step did not run it, drafts
        may have been rejected, or loads may have failed."""
        before = self.previous
        scheduled = None if before is None else before.num_scheduled_tokens.get(request_id)
        if scheduled is None or request_id in self._watched or request_id in before.scheduled_spec_decode_tokens:
            return None
        computed = {new.req_id: new.num_computed_tokens for new in before.scheduled_new_reqs}
        running = before.scheduled_cached_reqs
        computed.update(zip(running.req_ids, running.num_computed_tokens, strict=True))
        return int(computed[request_id] + scheduled)

    def _record_first(
        self, context: RequestContext, output: Any, run: tuple[int, int, bool], blocks: Any, number: int, at_ns: int
    ) -> None:
        """Record the first step of a request's epoch, with its whole block table."""
        table = by_group = drafted = None
        if context.detailed:
            drafted = len(output.scheduled_spec_decode_tokens.get(context.request_id, ()))
            table, by_group = in_groups(blocks)
            context.table_ns = at_ns
        whole = None if table is None else True
        values = (*run, drafted, table, by_group, whole, number, output.total_num_scheduled_tokens)
        self._record(Kind.SCHEDULE, context, at_ns, values)

    def _record_later(self, output: Any, number: int, at_ns: int) -> Collection[RequestContext]:
        """Record later steps with new information, as rows of one event. Returns the requests of the rows.

        A step may have hundreds of rows: `map` goes through them without the interpreter."""
        running, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
        ids, resumed = running.req_ids, running.resumed_req_ids
        rows = self._rows_to_record(output)
        if resumed:
            rows = [n for n in rows if ids[n] not in resumed]
        self._fresh, self._last = {each.req_id for each in output.scheduled_new_reqs} | resumed, scheduled
        if not rows:
            return ()
        recorded = list(map(ids.__getitem__, rows))
        # No epoch has changed since the request's last admission. None: there were too many contexts, and it was dropped.
        contexts: list[Any] = list(map(self._recorder.contexts.open.get, recorded))
        if not (all(contexts) and all(map(_DETAILED, contexts))):
            chosen = [context is not None and context.detailed for context in contexts]
            rows, recorded, contexts = (list(compress(each, chosen)) for each in (rows, recorded, contexts))
            if not rows:
                return ()
        tokens = tuple(map(scheduled.__getitem__, recorded))
        if tokens.count(1) != len(tokens):
            self._fresh.update(compress(recorded, map((1).__lt__, tokens)))
        drafts = output.scheduled_spec_decode_tokens
        self._recorder.record_step(
            self._source,
            contexts,
            at_ns,
            tuple(map(running.num_computed_tokens.__getitem__, rows)),
            tokens,
            tuple([len(drafts.get(request_id, ())) for request_id in recorded]) if drafts else (),
            _added(list(map(running.new_block_ids.__getitem__, rows))),
            number,
            output.total_num_scheduled_tokens,
        )
        return contexts

    def _resync_table(
        self, connector: Any, output: Any, recorded: Collection[RequestContext], number: int, at_ns: int
    ) -> None:
        """Record the whole table of one request, if its step has no new information and its table was last recorded long
        ago."""
        running, requests = output.scheduled_cached_reqs, self._recorder.contexts.open
        manager = getattr(connector, "_kv_cache_manager", None)
        if manager is None:
            return
        if not self._tables:
            self._next_scan_ns, before_ns = at_ns + RESYNC_SCAN_NS, at_ns - TABLE_RESYNC_NS
            held = [requests.get(request_id) for request_id in running.req_ids]
            self._tables += [each.request_id for each in held if each and each.detailed and each.table_ns < before_ns]
            if not self._tables:
                return
        context = requests.get(self._tables.popleft())
        if (
            context is None
            or context in recorded
            or context.request_id in running.resumed_req_ids
            or not context.detailed
        ):
            return
        run = run_of(context, output)
        if run[1]:
            context.table_ns = at_ns
            table = in_groups(manager.get_block_ids(context.request_id))
            values = (run[0], run[1], False, run[2], *table, True, number, output.total_num_scheduled_tokens)
            self._record(Kind.SCHEDULE, context, at_ns, values)

    def _rows_to_record(self, output: Any) -> list[int]:
        """The indexes in `req_ids` of the requests with new information in their step, in order."""
        running, scheduled, new = output.scheduled_cached_reqs, output.num_scheduled_tokens, output.scheduled_new_reqs
        ids, count = running.req_ids, len(running.req_ids)
        rows = list(compress(range(count), running.new_block_ids))
        if (self._fresh or self._watched) and (wanted := (self._fresh | self._watched) & scheduled.keys()):
            n, missing = count, len(wanted)
            while missing and n:  # the latest requests are at the end
                n -= 1
                if ids[n] in wanted:
                    missing -= 1
                    rows.append(n)
            rows = sorted(set(rows))
        beyond = output.total_num_scheduled_tokens - count
        if new:
            beyond -= sum([scheduled[each.req_id] for each in new])
        if beyond != sum(map(scheduled.__getitem__, map(ids.__getitem__, rows))) - len(rows):
            rows = sorted({*rows, *[n for n, request_id in enumerate(ids) if scheduled[request_id] > 1]})
        left = len(output.finished_req_ids) + len(output.preempted_req_ids or ())
        if count - len(running.resumed_req_ids) != len(self._last) - left:  # a request was not in the last step
            rows = sorted({*rows, *[n for n, request_id in enumerate(ids) if request_id not in self._last]})
        return rows

    def _record(self, kind: Kind, context: RequestContext, at_ns: int, values: tuple[Any, ...]) -> None:
        self._recorder.record(kind, self._source, context, at_ns, at_ns, values)


def run_of(context: RequestContext, output: Any) -> Run:
    """A request's tokens in a step; zeros if it does not run."""
    if context.request is None:
        return NOT_RUN
    computed, scheduled = context.request.num_computed_tokens, output.num_scheduled_tokens.get(context.request_id, 0)
    if not (computed or scheduled):  # preempted: the number of computed tokens before is unknown
        return NOT_RUN
    return computed, scheduled, len(output.scheduled_spec_decode_tokens.get(context.request_id, ()))


InGroups = tuple[tuple[int, ...], tuple[int, ...] | None]
"""Block ids, group by group, and the number of blocks of each KV cache group; None for a single group."""


def in_groups(blocks: Sequence[Sequence[int]] | None) -> InGroups:
    """The ids of a block table, by KV cache group, in the form of events."""
    if blocks is None:
        return (), None
    if len(blocks) == 1:
        return tuple(blocks[0]), None
    return tuple(chain.from_iterable(blocks)), tuple(map(len, blocks))


def held_at_end(blocks: Any) -> InGroups:
    """Block ids as connectors name them when a request ends: a list, or a list for each KV cache group."""
    return in_groups((blocks,) if not blocks or isinstance(blocks[0], int) else blocks)


def _added(blocks: Sequence[Sequence[Sequence[int]] | None]) -> list[Sequence[Sequence[int]]]:
    """The blocks that a step adds to requests, by KV cache group. vLLM has None if it adds none; the number of groups is then
    taken from another request."""
    some = next(filter(None, blocks), None)
    none: Sequence[Sequence[int]] = ((),) * (1 if some is None else len(some))
    return [none if each is None else each for each in blocks]


def _left_free(pool: Any, output: Any) -> int | None:
    """The number of blocks that preemptions freed: free after the step, or used by it; too high if the step also freed blocks
    outside a window. None if unknown: another vLLM may keep its blocks elsewhere."""
    used = [new.block_ids for new in output.scheduled_new_reqs]
    used += [blocks for blocks in output.scheduled_cached_reqs.new_block_ids if blocks is not None]
    if not hasattr(pool, "get_num_free_blocks"):
        return None
    free: int = pool.get_num_free_blocks()
    used_blocks: int = sum(block != NULL_BLOCK for groups in used for ids in groups for block in ids)
    return free + used_blocks
