"""Fakes of what vLLM hands to a connector, made from a recording: requests, their blocks, and the scheduler's steps.

The objects are of vLLM's own classes. What is not recorded (sampling, adapters, multimodal inputs) has vLLM's defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.prefixes import Prefixes
from kvtrail.connector.simulate.recorded import use
from kvtrail.tracer.events.events import RequestEnd, Schedule

UNLIMITED = 1 << 20
"""Tokens that a request may generate where its limit is not recorded."""


class NotRecorded(AttributeError):
    """A connector asked for a part of vLLM that is not recorded. An AttributeError, so that `hasattr` is false."""


class Unrecorded:
    """A part of vLLM that is not recorded. It can be handed over; using it raises `NotRecorded`."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise NotRecorded(f"vLLM's {self._what} was asked for {name!r}, which no recording shows")


class FakeCacheManager(Unrecorded):
    """vLLM's KV cache manager, with block tables only."""

    def __init__(self, requests: FakeRequests) -> None:
        super().__init__("KV cache manager")
        self.get_block_ids = requests.table
        self.block_pool = Unrecorded("block pool")


@dataclass(slots=True)
class FakeRequest:
    """A request.

    Attributes:
        request: vLLM's object.
        name: the recorded request's in `Prefixes`.
        table: its KV blocks.
        reached: computed tokens at the end of its last step.
        scheduled: whether a step has run it; vLLM introduces a request to its workers once.
        admitted: number of its last allocation among all allocations.
        handed: the list of blocks in the step output with which it last started or resumed.
        added: blocks that the current step adds to them.
    """

    request: Any
    name: str
    table: list[int] = field(default_factory=list)
    reached: int = 0
    scheduled: bool = False
    admitted: int = 0
    handed: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """What a step runs of a request: `scheduled` tokens from `computed` on; and the blocks that it adds, or, if `whole`, its
    whole table. None where they are not recorded."""

    request: str
    computed: int
    scheduled: int
    resumed: bool = False
    drafted: int = 0
    blocks: tuple[int, ...] | None = None
    whole: bool = False

    @classmethod
    def of(cls, event: Schedule) -> Run:
        """What a recorded step ran."""
        return cls(
            event.request or "",
            event.computed,
            event.scheduled,
            event.resumed,
            event.drafted or 0,
            event.blocks_ids,
            event.blocks_whole,
        )


class FakeRequests:
    """The requests of an engine at the current call."""

    def __init__(self, prefixes: Prefixes, *, one_process: bool = False) -> None:
        """`one_process`: the workers are in the scheduler's process. They append to the lists of blocks in a step's output,
        which a connector that holds the same lists sees."""
        self._prefixes = prefixes
        self._one_process = one_process
        self._block_size = prefixes.block_size
        self._live: dict[str, FakeRequest] = {}
        self._used: Counter[str] = Counter()
        self._made_up = count(1_000_000)
        self._allocations = count()
        self._ended: set[str] = set()

    def table(self, request_id: str) -> tuple[list[int], ...]:
        """The block table of a request, in vLLM's form: a list for the one KV cache group, empty for one that is gone."""
        live = self._live.get(request_id)
        return ([] if live is None else [*live.table],)

    def begin(self, request_id: str, total: int, *, limit: int | None = None, priority: int = 0) -> FakeRequest:
        """Add a request with `total` prompt tokens; it may generate `limit` tokens."""
        name = use(request_id, self._used)

        def hasher(request: Any) -> list[Any]:
            first, end = len(request.block_hashes), request.num_tokens // self._block_size
            return list(self._prefixes.block_hashes(name, first, end))

        prompt = self._prefixes.tokens(name, 0, total)
        request = tiny_model.request(request_id, prompt, limit or UNLIMITED, priority=priority, block_hasher=hasher)
        self._live[request_id] = FakeRequest(request, name)
        return self._live[request_id]

    def at(self, request_id: str, *, epoch: int, total: int | None) -> FakeRequest:
        """The request as of a recorded call, which may be the first one about it."""
        held = self._live.get(request_id) or self.begin(request_id, total or 1)
        if total is not None:
            self._resize(held, total)
        if held.request.num_preemptions != epoch:
            self._preempt(held, epoch)
        return held

    def allocate(self, held: FakeRequest, blocks: Sequence[int] | None, number: int | None) -> Any:
        """The request's block table at an allocation, as vLLM's `KVCacheBlocks`."""
        from vllm.v1.core.kv_cache_manager import KVCacheBlocks
        from vllm.v1.core.kv_cache_utils import KVCacheBlock

        wanted = -(-held.request.num_tokens // self._block_size) if number is None else number
        held.admitted = next(self._allocations)
        held.table = [next(self._made_up) for _ in range(wanted)] if blocks is None else list(blocks)
        return KVCacheBlocks(([KVCacheBlock(block) for block in held.table],))

    def in_order(self, runs: Sequence[Run]) -> list[Run]:
        """The runs in the order in which their requests were admitted, which is that of the running ones in vLLM."""
        return sorted(runs, key=lambda run: self._live[run.request].admitted)

    def step(self, runs: Sequence[Run], preempted: set[str]) -> Any:
        """A step, as vLLM's `SchedulerOutput`."""
        from vllm.v1.core.sched.output import KVConnectorBlockState, NewRequestData, SchedulerOutput

        output = SchedulerOutput.make_empty()
        cached = output.scheduled_cached_reqs
        for run in runs:
            held = self._live[run.request]
            self._resize(held, max(held.request.num_tokens, run.computed + run.scheduled - run.drafted))
            held.request.num_computed_tokens = run.computed
            starts = not held.scheduled or run.resumed
            self._add_blocks(held, run, starts=starts)
            if run.drafted:
                output.scheduled_spec_decode_tokens[run.request] = [-1] * run.drafted
            if not held.scheduled:
                output.scheduled_new_reqs.append(NewRequestData.from_request(held.request, (held.handed,)))
            else:
                cached.req_ids.append(run.request)
                if run.resumed:
                    cached.resumed_req_ids.add(run.request)
                    cached.all_token_ids[run.request] = [*held.request.all_token_ids]
                new = held.handed if starts else held.added
                cached.new_block_ids.append((new,) if new else None)
                cached.num_computed_tokens.append(run.computed)
                cached.num_output_tokens.append(held.request.num_output_tokens)
            held.scheduled = True
        output.num_scheduled_tokens = {run.request: run.scheduled for run in self._as_scheduled(runs, output)}
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        output.preempted_req_ids = preempted
        output.finished_req_ids, self._ended = self._ended, set()
        output.kv_connector_block_state = KVConnectorBlockState(
            req_ids=set(output.num_scheduled_tokens), resolve_block_ids=self.table, boundary_state_offloads={}
        )
        return output

    def after(self, runs: Sequence[Run]) -> None:
        """Apply a step: what it runs counts as computed."""
        for run in runs:
            held = self._live[run.request]
            held.reached = held.request.num_computed_tokens = run.computed + run.scheduled
            if self._one_process:
                held.handed += held.added

    def end(self, event: RequestEnd) -> tuple[Any, list[int]]:
        """The request at its end, and the blocks that hold its computed tokens."""
        from vllm.v1.request import RequestStatus

        held = self.at(event.request or "", epoch=event.epoch, total=event.total)
        computed = held.request.num_computed_tokens if event.computed is None else event.computed
        held.request.num_computed_tokens = computed
        status = f"FINISHED_{(event.outcome or '').upper()}"
        held.request.status = getattr(RequestStatus, status, RequestStatus.FINISHED_STOPPED)
        return held.request, held.table[: -(-computed // self._block_size)]

    def forget(self, request_id: str) -> None:
        """Remove a request that has ended; the next step reports it to the workers."""
        self._live.pop(request_id, None)
        self._ended.add(request_id)

    def _as_scheduled(self, runs: Sequence[Run], output: Any) -> list[Run]:
        """The runs in the scheduler's order: what was running first, then what is admitted."""
        new = {each.req_id for each in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids
        return sorted(runs, key=lambda run: self._live[run.request].admitted if run.request in new else -1)

    def _add_blocks(self, held: FakeRequest, run: Run, *, starts: bool) -> None:
        """Add the blocks of a step: the whole table where the request starts or resumes, otherwise the new ones."""
        from vllm.v1.request import RequestStatus

        held.request.status = RequestStatus.RUNNING
        if run.blocks is not None:
            added = list(run.blocks[len(held.table) if run.whole and not starts else 0 :])
            held.table = added if starts else held.table + added
        else:
            missing = -(-(run.computed + run.scheduled) // self._block_size) - len(held.table)
            added = [next(self._made_up) for _ in range(missing)]
            held.table = held.table + added
        if starts:
            held.handed, held.added = [*held.table], []
        else:
            held.added = added

    def _preempt(self, held: FakeRequest, epoch: int) -> None:
        from vllm.v1.request import RequestStatus

        held.request.num_preemptions = epoch
        held.request.num_computed_tokens = held.reached = 0
        held.request.status = RequestStatus.PREEMPTED
        held.table = []

    def _resize(self, held: FakeRequest, total: int) -> None:
        """Bring a request to `total` tokens; fewer, where a step was assumed to run more than it did."""
        request, now = held.request, held.request.num_tokens
        if total > now:
            request.append_output_token_ids(self._prefixes.tokens(held.name, now, total))
        elif total < now:
            del request._all_token_ids[total:]
            del request._output_token_ids[max(0, total - request.num_prompt_tokens) :]
            del request.block_hashes[total // self._block_size :]
