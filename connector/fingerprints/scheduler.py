"""The scheduler's side: which blocks the workers check in a step, and under which hash each was or will be filled.

A block counts as computed when the next step counts it so. All blocks that are computed, loaded or taken over are checked.

Groups with windows and with states free blocks while their request runs. The last step's results still exist when the next
one begins, even if another request has the block; of older blocks, only those that the request certainly holds are checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, repeat
from operator import add, ge, itemgetter
from typing import Any

from kvtrail.connector.fingerprints.checksums import HandedOver
from kvtrail.connector.fingerprints.plan import ADMITTED, COMPUTED, HELD, LOADED, Check, CheckPlan, Group, HandedLoad
from kvtrail.tracer.events.cache_groups import NULL_BLOCK

_LAST_64_BITS = itemgetter(slice(-8, None))
_number = partial(int.from_bytes, byteorder="big")
_NEVER = 1 << 62
_check = partial(tuple.__new__, Check)
"""Creates a check from all of its values, faster than the constructor of a named tuple."""
Tables = list[tuple[Group, list[int]]]
"""Groups, each with the block table of a request as of the last step."""


@dataclass(slots=True)
class _Blocks:
    """A request's blocks in the groups with blocks of one kind and size. A request fills the blocks of such groups together.

    Attributes:
        unit: the `Group.unit` of these groups.
        each: number of vLLM's hashes per unit.
        of_states: whether the blocks hold recurrent states.
        tables: the request's block tables in these groups.
        planned: number of blocks, from the request's start, with a planned check: computed, loaded or admitted.
        partial: the number of the block that is loaded except for its last token.
    """

    unit: int
    each: int
    of_states: bool
    tables: Tables
    planned: int = 0
    partial: int | None = None


@dataclass(slots=True)
class _RequestState:
    """A live request.

    Attributes:
        identity: a digest of the properties besides its tokens on which its KV depends.
        blocks: its blocks, by kind and size.
        matched: for the last lookup, the number of computed tokens, and whether the load ends between steps.
    """

    request: Any
    identity: str
    epoch: int = 0
    blocks: list[_Blocks] = field(default_factory=list)
    matched: tuple[int, bool] | None = None


class CheckScheduler:
    """Tracks the requests of one scheduler.

    Most requests of a step decode one token into a block that is not full yet. The values that change with each step are in
    dictionaries by request id, and are compared and updated for all requests at once, without a loop over them.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        hash_size: int,
        held: float,
        identity: Callable[[Any], str],
    ) -> None:
        """
        Args:
            groups: the checked groups.
            hash_size: number of tokens per hash of vLLM's requests.
            held: the share of running requests for which a block is checked in each step.
            identity: returns the properties besides its tokens on which a request's KV depends.
        """
        alike: dict[tuple[int, ...], list[Group]] = {}
        for group in groups:
            alike.setdefault((group.block_size, group.boundary, group.keeps_states), []).append(group)
        self._groups = groups
        self._alike = list(alike.values())
        """The groups, in lists with blocks of one kind and size."""
        self._hash_size = hash_size
        self._held = held
        self._identity = identity
        self._random = random.Random(0)
        self._frees_blocks = any(group.frees_blocks for group in groups)
        self._moving = [group for group in groups if group.boundary and not group.keeps_states]
        """The groups with states that vLLM moves from block to block."""
        self._requests: dict[str, _RequestState] = {}
        self._ends: dict[str, int] = {}
        """The number of computed tokens of a request after its last step; absent before its first step."""
        self._due: dict[str, int] = {}
        """The number of computed tokens at which a request may have a new block to check."""
        self._last_scheduled: Mapping[str, int] = {}
        """The number of tokens of each request in the last step."""
        self._plan, self._next = CheckPlan(), CheckPlan()
        """The plans of this step and of the next one. Blocks that a request takes over now are checked in the next step:
        another request may still be filling them."""
        self._left: list[Check] = []
        """Checks of requests that have left their blocks since the last step."""

    def on_lookup(self, request: Any, computed: int, is_async: bool) -> None:
        """Called after a lookup."""
        self._of(request).matched = computed, is_async

    def on_alloc(self, request: Any, external: int, blocks: Any, handed_over: HandedOver | None = None) -> None:
        """Called after `update_state_after_alloc`. `handed_over` is another engine's description of the KV, if the KV comes
        from one."""
        state = self._of(request)
        if state.epoch != request.num_preemptions:
            self._leave(state)
            self._empty(state)
        _take_over(state, blocks.get_block_ids())
        if state.matched is not None:
            (computed, is_async), state.matched = state.matched, None
            self._restart(state, computed, computed + external, is_async)
            if handed_over is not None and is_async and external and len(self._groups) == 1:
                self._check_handed_over(state, computed, computed + external, handed_over)

    def on_load_failures(self) -> set[str]:
        """Called after the workers have reported blocks that could not be loaded. Requests may have fewer computed tokens
        now. Returns the affected requests without a step in this epoch, which were waiting for their loads."""
        waiting = set()
        for request_id, state in self._requests.items():
            computed, end = state.request.num_computed_tokens, self._ends.get(request_id)
            for blocks in state.blocks:
                if blocks.planned > computed // blocks.unit:  # from this block on it will be computed
                    blocks.planned, blocks.partial, self._due[request_id] = computed // blocks.unit, None, 0
                    self._plan.rewound.append(request_id)
                    if not end:
                        waiting.add(request_id)
            if end:
                self._ends[request_id] = min(end, computed)
        return waiting

    def on_reset(self) -> None:
        """Called after a reset of the connector: the weights may change."""
        self._plan.reset = True

    def plan_step(self, output: Any, number: int) -> CheckPlan | None:
        """The checks of the step of this `SchedulerOutput`; None if there is nothing to do."""
        plan, scheduled, running = self._plan, output.num_scheduled_tokens, output.scheduled_cached_reqs
        checks = plan.before
        for request_id in output.finished_req_ids:
            if (state := self._requests.get(request_id)) is not None:
                self._leave(state)
                plan.ended.append(request_id)
                del self._requests[request_id], self._due[request_id]
            self._ends.pop(request_id, None)
        for request_id in output.preempted_req_ids or ():
            state = self._requests.get(request_id)
            if state is not None and state.epoch != state.request.num_preemptions:
                self._leave(state)
                self._empty(state)
        for new in output.scheduled_new_reqs:
            if (state := self._requests.get(new.req_id)) is not None:
                _take_over(state, new.block_ids)
                if new.num_computed_tokens >= self._due[new.req_id]:
                    checks += self._completed(state, new.num_computed_tokens)
            self._ends[new.req_id] = new.num_computed_tokens + scheduled[new.req_id]
        ids, computed, new_blocks = running.req_ids, running.num_computed_tokens, running.new_block_ids
        for request_id, added in compress(zip(ids, new_blocks, strict=True), new_blocks):
            if (state := self._requests.get(request_id)) is None:
                continue
            if request_id in running.resumed_req_ids:
                _take_over(state, added)
                continue
            for blocks in state.blocks:
                for group, table in blocks.tables:
                    table += added[group.number]
        for n in self._chosen(len(ids)):
            if (state := self._requests.get(ids[n])) is not None:
                self._check_held(state, computed[n], checks)
        are_due = map(ge, computed, map(self._due.get, ids, repeat(_NEVER)))
        for request_id, tokens in compress(zip(ids, computed, strict=True), are_due):
            checks += self._completed(self._requests[request_id], tokens)
        self._ends.update(zip(ids, map(add, computed, map(scheduled.__getitem__, ids)), strict=True))
        checks += self._left
        if self._frees_blocks:
            if written := self._written(output):
                self._drop(plan, written)
            self._last_scheduled = scheduled
        if zeroed := getattr(output, "new_block_ids_to_zero", None):
            self._drop(plan, {*zeroed})  # vLLM fills these with zeros before they can be read
        self._left, self._plan, self._next = [], self._next, CheckPlan()
        plan.step = number
        return plan or None

    def _drop(self, plan: CheckPlan, blocks: set[int]) -> None:
        """Remove blocks that cannot be read any more from the plan. Their computed contents may have been stored."""
        checks, plan.before = plan.before, []
        for check in checks:
            some = check.without(blocks)
            if some is not check and check.kind == COMPUTED:
                plan.unreadable.append(check.only([block in blocks for block in check.blocks]))
            if some.blocks:
                plan.before.append(some)

    def _written(self, output: Any) -> set[int]:
        """The blocks that vLLM overwrites before they can be read: targets of copies of partial blocks, and of states that
        it moves to the block of their next step."""
        written = {copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ()}
        for group in self._moving:
            for new in output.scheduled_new_reqs:
                last = (new.num_computed_tokens + output.num_scheduled_tokens[new.req_id] - 1) // group.block_size
                written.update(new.block_ids[group.number][last : last + 1])
            for added in output.scheduled_cached_reqs.new_block_ids:
                if added is not None:
                    written.update(added[group.number])
        return written

    def _of(self, request: Any) -> _RequestState:
        state = self._requests.get(request.request_id)
        if state is None or state.request is not request:
            state = self._requests[request.request_id] = _RequestState(request, self._identity(request))
            self._empty(state)
        return state

    def _empty(self, state: _RequestState) -> None:
        """Note that the request has no blocks."""
        self._begin_epoch(state)
        state.blocks = [
            _Blocks(
                groups[0].unit,
                groups[0].unit // self._hash_size,
                groups[0].boundary > 0,
                [(group, []) for group in groups],
            )
            for groups in self._alike
        ]

    def _begin_epoch(self, state: _RequestState) -> None:
        """Note that no step has run the request since its last preemption."""
        request_id = state.request.request_id
        state.epoch, self._due[request_id] = state.request.num_preemptions, 0
        self._ends.pop(request_id, None)

    def _restart(self, state: _RequestState, computed: int, end: int, is_async: bool) -> None:
        """Plan the checks of an admitted request, which takes over blocks with `computed` tokens and loads the tokens from
        there to `end`."""
        self._begin_epoch(state)
        self._plan.restarted.append(state.request.request_id)
        total, loads = state.request.num_tokens, self._plan.async_loads if is_async else self._plan.loads
        for blocks in state.blocks:
            if blocks.of_states:
                self._restart_states(state, blocks, computed, end, is_async)
                continue
            unit = blocks.unit
            first, full = computed // unit, end // unit
            loaded, blocks.partial = full, None
            if end > computed and (end % unit or end >= total):
                loaded = blocks.partial = min(full, (total - 1) // unit)
            blocks.planned = loaded
            # An asynchronous load is complete before the first step; another load lacks the tokens that the step computes.
            last = full if is_async else loaded + (end == total - 1)
            for group, table in blocks.tables:
                kept, of_group = group.first_kept(end), [(group, table)]
                self._next.before += self._checks(state, ADMITTED, blocks, of_group, kept, first)
                if end > computed:
                    loads += self._checks(state, LOADED, blocks, of_group, max(first, kept), last)

    def _check_handed_over(self, state: _RequestState, computed: int, end: int, handed_over: HandedOver) -> None:
        """Plan the comparison of a load with another engine's checksums. The request loads the tokens from `computed` to
        `end`. The last block may be partly filled: it is not written to before the comparison."""
        (own,), hashes = state.blocks, state.request.block_hashes
        ((group, table),), each = own.tables, own.each
        numbers = range(-(-computed // group.block_size), min(-(-end // group.block_size), len(table)))
        known = tuple(number for number in numbers if number in handed_over.checksums)
        if known:
            short = _shortened(hashes[each - 1 :: each])
            chosen = tuple(short[number] if number < len(short) else 0 for number in known)
            blocks = tuple(table[number] for number in known)
            request_id = state.request.request_id
            check = Check(request_id, LOADED, group.number, known, blocks, chosen, own.partial, state.identity)
            checksums = tuple(handed_over.checksums[number] for number in known)
            all_blocks = tuple(table[number] for number in numbers)
            self._plan.async_loads.append(HandedLoad(check, checksums, handed_over.layout, all_blocks))

    def _restart_states(self, state: _RequestState, blocks: _Blocks, computed: int, end: int, is_async: bool) -> None:
        """Plan the check of the state with which a request begins, from vLLM's prefix cache or from a load."""
        number = blocks.planned = end // blocks.unit
        if not end or end % blocks.unit or end >= state.request.num_tokens:
            return
        if end == computed:
            self._plan.states += self._checks_of_states(state, ADMITTED, blocks, number, number + 1)
        elif is_async:
            self._plan.async_loads += self._checks_of_states(state, LOADED, blocks, number, number + 1)
        elif end % blocks.tables[0][0].block_size == 0:  # otherwise the step that loads it also writes to it
            self._plan.loads += self._checks_of_states(state, LOADED, blocks, number, number + 1)

    def _completed(self, state: _RequestState, computed: int) -> list[Check]:
        """The checks of blocks that are complete with `computed` tokens and have no planned check yet."""
        checks: list[Check] = []
        request_id, due = state.request.request_id, _NEVER
        has_just_run = not self._frees_blocks or request_id in self._last_scheduled
        full = min(computed, len(state.request.block_hashes) * self._hash_size)
        for blocks in state.blocks:
            unit, first = blocks.unit, blocks.planned
            if blocks.of_states:
                end = self._ends.get(request_id, 0)
                if has_just_run and computed == end:
                    checks += self._checks_of_states_left(state, blocks, computed)
                elif end:
                    for each in {computed, end}:
                        self._plan.unreadable += self._checks_of_states_left(state, blocks, each)
                last = computed // unit
            else:
                last = min(full // unit, len(blocks.tables[0][1]))
                if last > first and has_just_run:
                    checks += self._checks(state, COMPUTED, blocks, blocks.tables, first, last)
                elif last > first:
                    checks += self._checks_of_kept(state, blocks, computed, first, last)
            if last > first:
                first = blocks.planned = last
            due = min(due, (first + 1) * unit)
        self._due[request_id] = due
        return checks

    def _checks_of_kept(
        self, state: _RequestState, blocks: _Blocks, computed: int, first: int, last: int
    ) -> list[Check]:
        """The checks of blocks that were computed before the last step, and that the request certainly still holds."""
        checks: list[Check] = []
        for group, table in blocks.tables:
            kept, of_group = min(last, max(first, group.first_kept(computed))), [(group, table)]
            if self._ends.get(state.request.request_id):
                self._plan.unreadable += self._checks(state, COMPUTED, blocks, of_group, first, kept)
            checks += self._checks(state, COMPUTED, blocks, of_group, kept, last)
        return checks

    def _checks_of_states_left(self, state: _RequestState, blocks: _Blocks, computed: int) -> list[Check]:
        """The checks of recurrent states that the last step, which ended at `computed` tokens, has left at a boundary."""
        number, keeps_states = computed // blocks.unit, blocks.tables[0][0].keeps_states
        if not keeps_states and computed % blocks.unit:
            return []
        first = blocks.planned + 1 if keeps_states else number
        return self._checks_of_states(state, COMPUTED, blocks, first, number + 1)

    def _chosen(self, running: int) -> set[int]:
        """The indexes of the running requests for which a block is checked in this step; `running` is their number."""
        count = int(running * self._held + self._random.random())
        return {*self._random.sample(range(running), count)} if count else set()

    def _check_held(self, state: _RequestState, computed: int, checks: list[Check]) -> None:
        """Check one block of each group that the request holds and that was checked before."""
        if not self._ends.get(state.request.request_id):
            return
        for blocks in state.blocks:
            for group, table in blocks.tables:
                first = group.first_kept(computed)
                if not blocks.of_states and first < blocks.planned:
                    number = self._random.randrange(first, blocks.planned)
                    checks += self._checks(state, HELD, blocks, [(group, table)], number, number + 1)

    def _leave(self, state: _RequestState) -> None:
        """Plan the last checks of a request that has lost its blocks or ended. The results of its last step still exist when
        the next step begins."""
        if end := self._ends.get(state.request.request_id):
            self._left += self._completed(state, min(end, state.request.num_tokens - 1))

    def _checks(
        self, state: _RequestState, kind: str, blocks: _Blocks, tables: Tables, first: int, last: int
    ) -> list[Check]:
        """For each of these block tables, the check of the request's blocks in [first, last) that have a hash."""
        hashes, each = state.request.block_hashes, blocks.each
        last = min(last, len(hashes) // each, len(tables[0][1]))
        checks: list[Check] = []
        if first >= last:
            return checks
        request_id, partial, identity = state.request.request_id, blocks.partial, state.identity
        numbers, short = tuple(range(first, last)), _shortened(hashes[(first + 1) * each - 1 : last * each : each])
        for group, table in tables:
            ids = tuple(table[first:last])
            check = _check((request_id, kind, group.number, numbers, ids, short, partial, identity))
            if NULL_BLOCK in ids:
                check = check.without({NULL_BLOCK})
            if check.blocks:
                checks.append(check)
        return checks

    def _checks_of_states(self, state: _RequestState, kind: str, blocks: _Blocks, first: int, last: int) -> list[Check]:
        """The checks of a request's recurrent states in [first, last) that have a hash."""
        request_id, hashes, unit = state.request.request_id, state.request.block_hashes, blocks.unit
        last, checks = min(last, len(hashes) // blocks.each + 1), []
        for group, table in blocks.tables:
            size = group.block_size
            some = range(max(first, 1), min(last, len(table) * size // unit + 1))
            held = [(each, block) for each in some if (block := table[(each * unit - 1) // size]) != NULL_BLOCK]
            if held:
                numbers, ids = zip(*held, strict=True)
                short = _shortened([hashes[number * blocks.each - 1] for number in numbers])
                checks.append(Check(request_id, kind, group.number, numbers, ids, short, None, state.identity))
        return checks


def _take_over(state: _RequestState, ids: Sequence[Sequence[int]]) -> None:
    """Replace the request's block tables; `ids` are by the number of the KV cache group."""
    for blocks in state.blocks:
        for group, table in blocks.tables:
            table[:] = ids[group.number]


def _shortened(hashes: Sequence[bytes]) -> tuple[int, ...]:
    """The last 64 bits of each hash."""
    return tuple(map(_number, map(_LAST_64_BITS, hashes)))
