"""vLLM's objects, made again from what was recorded of them: requests, their blocks, and the scheduler's steps.

The classes are vLLM's own. What is not recorded (sampling, priority, adapters, multimodal inputs) is as vLLM has it by
default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kvtrail.connector.simulate.rerun.prefixes import Life, Prefixes
from kvtrail.tracer.model.events import RequestEnd, Schedule

UNLIMITED = 1 << 20
"""Tokens that a request may generate of which it is not recorded how many."""


class NotRecorded(AttributeError):
    """A connector asked for a part of vLLM that no recording shows. An AttributeError, so that `hasattr` says no."""


class Unrecorded:
    """A part of vLLM of which nothing is recorded: it can be handed over, and not be asked."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise NotRecorded(f"vLLM's {self._what} was asked for {name!r}, which no recording shows")


class CacheManager(Unrecorded):
    """vLLM's KV cache manager, of which the block tables are recorded."""

    def __init__(self, requests: Requests) -> None:
        super().__init__("KV cache manager")
        self.get_block_ids = requests.table
        self.block_pool = Unrecorded("block pool")


@dataclass(slots=True)
class Rebuilt:
    """A request made again.

    Attributes:
        request: vLLM's object.
        life: which tokens it has.
        table: its KV blocks.
        reached: computed tokens at the end of its last step.
        scheduled: whether a step has run it; vLLM introduces a request to its workers once.
        admitted: number of its last allocation among all of them.
        handed: the list of blocks that the step handed over with which it last started or resumed.
        added: blocks that the current step adds to them.
    """

    request: Any
    life: Life
    table: list[int] = field(default_factory=list)
    reached: int = 0
    scheduled: bool = False
    admitted: int = 0
    handed: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """What a step runs of a request: `scheduled` tokens from `computed` on, and the blocks that it adds; None where they
    were not recorded."""

    request: str
    computed: int
    scheduled: int
    resumed: bool = False
    drafted: int = 0
    blocks: tuple[int, ...] | None = None

    @classmethod
    def of(cls, event: Schedule) -> Run:
        """What a recorded step ran."""
        return cls(
            event.request or "", event.computed, event.scheduled, event.resumed, event.drafted or 0, event.blocks_ids
        )


class Requests:
    """The requests of an engine, as far as the calls have come."""

    def __init__(self, prefixes: Prefixes, *, one_process: bool = False) -> None:
        """`one_process`: the workers are in the scheduler's process. They keep the lists of blocks that a step hands over,
        and append to them; a connector that keeps the same lists sees it."""
        self._prefixes = prefixes
        self._one_process = one_process
        self._block_size = prefixes.block_size
        self._live: dict[str, Rebuilt] = {}
        self._used: dict[str, int] = {}
        self._made_up = count(1_000_000)
        self._allocations = count()
        self._ended: set[str] = set()

    def table(self, request_id: str) -> tuple[list[int], ...]:
        """The block table of a request, as vLLM has it: of one KV cache group."""
        return ([*self._live[request_id].table],)

    def shares(self, held: Rebuilt, end: int) -> bool:
        """Whether it is recorded with whom a request shares its first tokens; see `Prefixes.shows`."""
        return self._prefixes.shows(held.life, end)

    def begin(self, request_id: str, total: int, *, limit: int | None = None, priority: int = 0) -> Rebuilt:
        """A request that has just arrived, with `total` tokens of prompt; it may generate `limit` tokens."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        life = (request_id, self._used.get(request_id, 0))
        self._used[request_id] = life[1] + 1

        def hasher(request: Any) -> list[Any]:
            first, end = len(request.block_hashes), request.num_tokens // self._block_size
            return list(self._prefixes.block_hashes(life, first, end))

        request = Request(
            request_id=request_id,
            prompt_token_ids=self._prefixes.tokens(life, 0, total),
            sampling_params=SamplingParams(temperature=0, max_tokens=limit or UNLIMITED, ignore_eos=True),
            priority=priority,
            pooling_params=None,
            block_hasher=hasher,
        )
        self._live[request_id] = Rebuilt(request, life)
        return self._live[request_id]

    def at(self, request_id: str, *, epoch: int, total: int | None) -> Rebuilt:
        """The request as it is at a recorded call, which may be the first that is known of it."""
        held = self._live.get(request_id) or self.begin(request_id, total or 1)
        if total is not None:
            self._resize(held, total)
        if held.request.num_preemptions != epoch:
            self._preempt(held, epoch)
        return held

    def allocate(self, held: Rebuilt, blocks: Sequence[int] | None, number: int | None) -> Any:
        """The request's block table at an allocation, as vLLM's `KVCacheBlocks`."""
        from vllm.v1.core.kv_cache_manager import KVCacheBlocks
        from vllm.v1.core.kv_cache_utils import KVCacheBlock

        wanted = -(-held.request.num_tokens // self._block_size) if number is None else number
        held.admitted = next(self._allocations)
        held.table = [next(self._made_up) for _ in range(wanted)] if blocks is None else list(blocks)
        return KVCacheBlocks(([KVCacheBlock(block) for block in held.table],))

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
                told = held.handed if starts else held.added
                cached.new_block_ids.append((told,) if told else None)
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
        """The step is under way: what it runs counts as computed."""
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
        """The request has ended; the next step tells the workers."""
        self._live.pop(request_id, None)
        self._ended.add(request_id)

    def _as_scheduled(self, runs: Sequence[Run], output: Any) -> list[Run]:
        """The runs in the order in which vLLM's scheduler takes them up: what runs already, then what is admitted."""
        new = {each.req_id for each in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids
        return sorted(runs, key=lambda run: self._live[run.request].admitted if run.request in new else -1)

    def _add_blocks(self, held: Rebuilt, run: Run, *, starts: bool) -> None:
        """The blocks of a step: those of the whole table where the request starts or resumes, else those that are new."""
        from vllm.v1.request import RequestStatus

        held.request.status = RequestStatus.RUNNING
        if run.blocks is not None:
            added = list(run.blocks)
            held.table = added if starts else held.table + added
        else:
            missing = -(-(run.computed + run.scheduled) // self._block_size) - len(held.table)
            added = [next(self._made_up) for _ in range(missing)]
            held.table = held.table + added
        if starts:
            held.handed, held.added = [*held.table], []
        else:
            held.added = added

    def _preempt(self, held: Rebuilt, epoch: int) -> None:
        from vllm.v1.request import RequestStatus

        held.request.num_preemptions = epoch
        held.request.num_computed_tokens = held.reached = 0
        held.request.status = RequestStatus.PREEMPTED
        held.table = []

    def _resize(self, held: Rebuilt, total: int) -> None:
        """Bring a request to `total` tokens. It gets shorter where a step was taken for longer than it turned out."""
        request, now = held.request, held.request.num_tokens
        if total > now:
            request.append_output_token_ids(self._prefixes.tokens(held.life, now, total))
        elif total < now:
            del request._all_token_ids[total:]
            del request._output_token_ids[max(0, total - request.num_prompt_tokens) :]
            del request.block_hashes[total // self._block_size :]
