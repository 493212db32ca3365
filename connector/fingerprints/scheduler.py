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

NULL_BLOCK = 0
"""vLLM's id of the null block, in place of a block that a request has freed or never needed."""
_LAST_64_BITS = itemgetter(slice(-8, None))
_number = partial(int.from_bytes, byteorder="big")
_NEVER = 1 << 62


@dataclass(slots=True)
class _RequestState:
    """A live request. Lists have a place for each group.

    Attributes:
        identity: the properties besides its tokens on which its KV depends.
        tables: the block tables, as of the last step.
        planned: blocks from its start with a planned check, whether computed, loaded or admitted.
        partial: the number of the block that is loaded but for its last token.
        matched: of the last lookup, the tokens that vLLM had computed, and whether the load ends between steps.
    """

    request: Any
    identity: str
    epoch: int = 0
    tables: list[list[int]] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)
    partial: list[int | None] = field(default_factory=list)
    matched: tuple[int, bool] | None = None


class CheckScheduler:
    """Tracks the requests of one scheduler.

    Most requests of a step decode a token into a block that is not full yet. So that a step does not go through them one by
    one, what changes with each step is kept by request id, and is compared and entered for all of them at once.
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
        self._groups = groups
        self._hash_size = hash_size
        self._hashes_each = [group.unit // hash_size for group in groups]
        self._held = held
        self._identity = identity
        self._random = random.Random(0)
        self._frees_blocks = any(group.frees_blocks for group in groups)
        self._requests: dict[str, _RequestState] = {}
        self._ends: dict[str, int] = {}
        """Tokens of a request that are computed when its last step has run; none before its first."""
        self._due: dict[str, int] = {}
        """Computed tokens of a request at which there may be a new block to check."""
        self._last_scheduled: Mapping[str, int] = {}
        """Tokens by request in the last step."""
        self._plan, self._next = CheckPlan(), CheckPlan()
        """Of this step, and of the next one: what is taken over in this step another request may still be filling."""
        self._left: list[Check] = []
        """Of requests that have left their blocks since the last step."""

    def on_lookup(self, request: Any, computed: int, is_async: bool) -> None:
        """After a lookup."""
        self._of(request).matched = computed, is_async

    def on_alloc(self, request: Any, external: int, blocks: Any, handed_over: HandedOver | None = None) -> None:
        """After `update_state_after_alloc`. `handed_over` is what another engine says of the KV, if it is that of another."""
        state = self._of(request)
        if state.epoch != request.num_preemptions:
            self._leave(state)
        tables = blocks.get_block_ids()
        state.tables = [list(tables[group.number]) for group in self._groups]
        if state.matched is not None:
            (computed, is_async), state.matched = state.matched, None
            self._restart(state, computed, computed + external, is_async)
            if handed_over is not None and is_async and external and len(self._groups) == 1:
                self._check_handed_over(state, computed, computed + external, handed_over)

    def on_load_failures(self) -> set[str]:
        """After the workers have reported blocks that could not be loaded: requests may have fewer computed tokens now.
        Returns those that have no step behind them: they have waited for their loads."""
        waiting = set()
        for request_id, state in self._requests.items():
            computed, end = state.request.num_computed_tokens, self._ends.get(request_id)
            for n, group in enumerate(self._groups):
                if state.planned[n] > computed // group.unit:  # from this block on it will be computed
                    state.planned[n], state.partial[n], self._due[request_id] = computed // group.unit, None, 0
                    self._plan.rewound.append(request_id)
                    if not end:
                        waiting.add(request_id)
            if end:
                self._ends[request_id] = min(end, computed)
        return waiting

    def on_reset(self) -> None:
        """After a reset of the connector: other weights may come."""
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
        for new in output.scheduled_new_reqs:
            if (state := self._requests.get(new.req_id)) is not None:
                state.tables = [list(new.block_ids[group.number]) for group in self._groups]
                if new.num_computed_tokens >= self._due[new.req_id]:
                    checks += self._completed(state, new.num_computed_tokens)
            self._ends[new.req_id] = new.num_computed_tokens + scheduled[new.req_id]
        ids, computed, places = running.req_ids, running.num_computed_tokens, range(len(running.req_ids))
        held, added = self._chosen(len(ids)), compress(places, running.new_block_ids)
        due = compress(places, map(ge, computed, map(self._due.get, ids, repeat(_NEVER))))
        for n in sorted({*added, *due, *held}):
            if (state := self._requests.get(ids[n])) is not None:
                if running.new_block_ids[n] is not None:
                    self._extend(state, running.new_block_ids[n], resumed=ids[n] in running.resumed_req_ids)
                if n in held:
                    self._check_held(state, computed[n], checks)
                if computed[n] >= self._due[ids[n]]:
                    checks += self._completed(state, computed[n])
        self._ends.update(zip(ids, map(add, computed, map(scheduled.__getitem__, ids)), strict=True))
        checks += self._left
        if self._frees_blocks:
            if written := self._written(output):
                self._drop(plan, written)
            self._last_scheduled = scheduled
        if zeroed := getattr(output, "new_block_ids_to_zero", None):
            self._drop(plan, {*zeroed})  # vLLM fills these with zeros before anybody can read them
        self._left, self._plan, self._next = [], self._next, CheckPlan()
        plan.step = number
        return plan or None

    def _drop(self, plan: CheckPlan, blocks: set[int]) -> None:
        """Leave out blocks that cannot be read any more. What was computed in them may have been stored."""
        checks, plan.before = plan.before, []
        for check in checks:
            some = check.without(blocks)
            if some is not check and check.kind == COMPUTED:
                plan.unseen.append(check.only([block in blocks for block in check.blocks]))
            if some.blocks:
                plan.before.append(some)

    def _written(self, output: Any) -> set[int]:
        """The blocks that vLLM writes to before anybody can read them: copies of partial blocks, and states that it moves to
        the block of their next step."""
        written = {copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ()}
        for group in self._groups:
            if not group.boundary or group.keeps_states:
                continue
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
        """It has no blocks."""
        state.epoch, self._due[state.request.request_id] = state.request.num_preemptions, 0
        self._ends.pop(state.request.request_id, None)
        state.tables = [[] for _ in self._groups]
        state.planned = [0] * len(self._groups)
        state.partial = [None] * len(self._groups)

    def _restart(self, state: _RequestState, computed: int, end: int, is_async: bool) -> None:
        """It takes over blocks with `computed` tokens, and what comes after them up to `end` is loaded."""
        tables = state.tables
        self._empty(state)
        state.tables = tables
        self._plan.restarted.append(state.request.request_id)
        total, loads = state.request.num_tokens, self._plan.async_loads if is_async else self._plan.loads
        for n, group in enumerate(self._groups):
            if group.boundary:
                self._restart_states(state, n, computed, end, is_async)
                continue
            first, full = computed // group.block_size, end // group.block_size
            loaded = full
            if end > computed and (end % group.block_size or end >= total):
                loaded = min(full, (total - 1) // group.block_size)
                state.partial[n] = loaded
            state.planned[n] = loaded
            kept = group.first_kept(end) if self._frees_blocks else 0
            self._next.before += self._checks(state, ADMITTED, n, kept, first)
            # all of an asynchronous load is there before the first step, of another only what is not computed
            last = full if is_async else loaded + (end == total - 1)
            loads += self._checks(state, LOADED, n, max(first, kept), last)

    def _check_handed_over(self, state: _RequestState, computed: int, end: int, handed_over: HandedOver) -> None:
        """The request loads what comes after `computed` tokens, and another engine has the checksums of it. The last
        block may be partly filled: nobody writes to it before the load is compared."""
        (group,), (table,), hashes = self._groups, state.tables, state.request.block_hashes
        each = self._hashes_each[0]
        numbers = range(-(-computed // group.block_size), min(-(-end // group.block_size), len(table)))
        known = tuple(number for number in numbers if number in handed_over.checksums)
        if known:
            short = _shortened(hashes[each - 1 :: each])
            chosen = tuple(short[number] if number < len(short) else 0 for number in known)
            blocks = tuple(table[number] for number in known)
            request_id, partial = state.request.request_id, state.partial[0]
            check = Check(request_id, LOADED, group.number, known, blocks, chosen, partial, state.identity)
            checksums = tuple(handed_over.checksums[number] for number in known)
            all_blocks = tuple(table[number] for number in numbers)
            self._plan.handed_over.append(HandedLoad(check, checksums, handed_over.layout, all_blocks))

    def _restart_states(self, state: _RequestState, n: int, computed: int, end: int, is_async: bool) -> None:
        """The request begins with a state that is in vLLM's prefix cache, or is loaded."""
        group = self._groups[n]
        number = state.planned[n] = end // group.unit
        if not end or end % group.unit or end >= state.request.num_tokens:
            return
        if end == computed:
            self._plan.states += self._checks(state, ADMITTED, n, number, number + 1)
        elif is_async:
            self._plan.async_loads += self._checks(state, LOADED, n, number, number + 1)
        elif end % group.block_size == 0:  # else the step that loads it also writes to it
            self._plan.loads += self._checks(state, LOADED, n, number, number + 1)

    def _completed(self, state: _RequestState, computed: int) -> list[Check]:
        """The blocks that are complete with `computed` tokens and have no planned check yet."""
        checks: list[Check] = []
        due = []
        request, end = state.request, self._ends.get(state.request.request_id, 0)
        has_just_run = not self._frees_blocks or request.request_id in self._last_scheduled
        for n, group in enumerate(self._groups):
            if group.boundary:
                if has_just_run and computed == end:
                    checks += self._checks_of_states_left(state, n, computed)
                elif end:
                    for each in {computed, end}:
                        self._plan.unseen += self._checks_of_states_left(state, n, each)
                state.planned[n] = max(state.planned[n], computed // group.unit)
                due.append((computed // group.unit + 1) * group.unit)
                continue
            hashed = len(request.block_hashes) * self._hash_size
            last = min(min(computed, request.num_tokens, hashed) // group.block_size, len(state.tables[n]))
            first = state.planned[n]
            if not has_just_run and (kept := min(last, group.first_kept(computed))) > first:
                if end:
                    self._plan.unseen += self._checks(state, COMPUTED, n, first, kept)
                first = kept
            checks += self._checks(state, COMPUTED, n, first, last)
            state.planned[n] = max(state.planned[n], last)
            due.append((state.planned[n] + 1) * group.block_size)
        self._due[request.request_id] = min(due)
        return checks

    def _checks_of_states_left(self, state: _RequestState, n: int, computed: int) -> list[Check]:
        """Of the recurrent states that the last step, which ended at `computed` tokens, has left where a boundary is."""
        group, number = self._groups[n], computed // self._groups[n].unit
        if not group.keeps_states and computed % group.unit:
            return []
        first = state.planned[n] + 1 if group.keeps_states else number
        return self._checks(state, COMPUTED, n, first, number + 1)

    def _chosen(self, running: int) -> set[int]:
        """The indexes of requests, out of this many running ones, for which a block is checked in this step."""
        count = int(running * self._held + self._random.random())
        return {*self._random.sample(range(running), count)} if count else set()

    def _check_held(self, state: _RequestState, computed: int, checks: list[Check]) -> None:
        """Check one of the blocks of each group that a request holds and that was checked before."""
        if not self._ends.get(state.request.request_id):
            return
        for n, group in enumerate(self._groups):
            first = group.first_kept(computed)
            if not group.boundary and first < state.planned[n]:
                number = self._random.randrange(first, state.planned[n])
                checks += self._checks(state, HELD, n, number, number + 1)

    def _leave(self, state: _RequestState) -> None:
        """It has lost its blocks, or ended: what its last step has computed is still there when the next one begins."""
        if end := self._ends.get(state.request.request_id):
            self._left += self._completed(state, min(end, state.request.num_tokens - 1))
        self._empty(state)

    def _extend(self, state: _RequestState, added: Sequence[Sequence[int]], *, resumed: bool) -> None:
        for table, group in zip(state.tables, self._groups, strict=True):
            if resumed:
                table.clear()
            table += added[group.number]

    def _checks(self, state: _RequestState, kind: str, n: int, first: int, last: int) -> list[Check]:
        """The check of those of a request's blocks from `first` to before `last` that have a hash, if there are any."""
        group, table, hashes = self._groups[n], state.tables[n], state.request.block_hashes
        each, is_state = self._hashes_each[n], group.boundary > 0
        if is_state:
            first, last = (
                max(first, 1),
                min(last, len(hashes) // each + 1, len(table) * group.block_size // group.unit + 1),
            )
            blocks = [table[(number * group.unit - 1) // group.block_size] for number in range(first, last)]
        else:
            last = min(last, len(table), len(hashes) // each)
            blocks = table[first:last]
        if not blocks:
            return []
        numbers, request_id = tuple(range(first, last)), state.request.request_id
        short = _shortened(hashes[(first + 1 - is_state) * each - 1 : (last - is_state) * each : each])
        check = Check(request_id, kind, group.number, numbers, tuple(blocks), short, state.partial[n], state.identity)
        if NULL_BLOCK in blocks:
            check = check.without({NULL_BLOCK})
        return [check] if check.blocks else []


def _shortened(hashes: Sequence[bytes]) -> tuple[int, ...]:
    """The last 64 bits of each."""
    return tuple(map(_number, map(_LAST_64_BITS, hashes)))
