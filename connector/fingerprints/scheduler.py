"""The scheduler's side: which blocks the workers check in a step, and under which hash each was or will be filled.

A block counts as computed when the next step counts it so. All blocks that are computed, loaded or taken over are checked.

Groups with windows and with states give blocks back while their request runs. What the last step has computed is still there
when the next one begins, whoever has the block by then; of anything older, only what the request is sure to hold is checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.connector.fingerprints.checksums import HandedOver
from kvtrail.connector.fingerprints.plan import ADMITTED, COMPUTED, HELD, LOADED, Check, CheckPlan, Group, HandedLoad

NULL_BLOCK = 0
"""vLLM's id of no block, in the place of one that a request has given back or never needed."""
Block = tuple[int, int, int]
"""A block of a request: its number in it, its id, and the last 64 bits of its hash."""


@dataclass(slots=True)
class _RequestState:
    """A live request. Lists have a place for each group.

    Attributes:
        tables: the block tables, as of the last step.
        planned: blocks from its start with a planned check, whether computed, loaded or admitted.
        due: computed tokens at which there may be a new one to check.
        end: tokens that are computed when its last step has run; 0 before its first.
        step: the number of that step, where some group frees blocks.
        partial: the number of the block that is loaded but for its last token.
    """

    request: Any
    epoch: int = 0
    tables: list[list[int]] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)
    due: int = 0
    end: int = 0
    step: int = -1
    partial: list[int | None] = field(default_factory=list)
    matched: tuple[int, bool] | None = None
    """Of the last lookup: the tokens that vLLM had computed, and whether the load ends between steps."""


class CheckScheduler:
    """Follows the requests of one scheduler."""

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
            groups: those that are checked.
            hash_size: tokens of a hash of vLLM's requests.
            held: the share of the running requests of which a block is checked in each step.
            identity: what a request's KV depends on besides its tokens.
        """
        self._groups = groups
        self._hash_size = hash_size
        self._held = held
        self._identity = identity
        self._random = random.Random(0)
        self._frees_blocks = any(group.frees_blocks for group in groups)
        self._states = [group for group in groups if group.boundary]
        self._hashes_of_block = [group.block_size // hash_size for group in groups]
        self._last_step = -1
        """The number of the step that was planned last."""
        self._requests: dict[str, _RequestState] = {}
        self._left: list[Check] = []
        """Of requests that have left their blocks since the last step."""
        self._admitted: list[Check] = []
        """Taken over in this step, in which another request may be filling the same blocks."""
        self._due: list[Check] = []
        """Taken over in the last step, and checked in the next."""
        self._unseen: list[Check] = []
        """Computed blocks that nobody will have checked."""
        self._begun_with: list[Check] = []
        """Recurrent states, which are there when their request's first step begins, and not any more when it ends."""
        self._loads: list[Check] = []
        self._async_loads: list[Check] = []
        self._handed_over: list[HandedLoad] = []
        self._restarted: list[str] = []
        self._rewound: list[str] = []
        self._reset = False

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
        for state in self._requests.values():
            computed = state.request.num_computed_tokens
            for n, group in enumerate(self._groups):
                if state.planned and state.planned[n] > computed // group.unit:
                    self._rewind(state, n, computed // group.unit)
                    if not state.end:
                        waiting.add(state.request.request_id)
            if state.end:
                state.end = min(state.end, computed)
        return waiting

    def on_reset(self) -> None:
        """After a reset of the connector: other weights may come."""
        self._reset = True

    def plan_step(self, output: Any, number: int) -> CheckPlan | None:
        """The checks of the step of this `SchedulerOutput`; None if there is nothing to do."""
        checks, self._due, self._admitted = self._due, self._admitted, []
        ended = [request_id for request_id in output.finished_req_ids if request_id in self._requests]
        for request_id in ended:
            self._leave(self._requests.pop(request_id))
        for request_id in output.preempted_req_ids or ():
            state = self._requests.get(request_id)
            if state is not None and state.epoch != state.request.num_preemptions:
                self._leave(state)
        scheduled, running = output.num_scheduled_tokens, output.scheduled_cached_reqs
        for new in output.scheduled_new_reqs:
            if (state := self._requests.get(new.req_id)) is not None:
                state.tables = [list(new.block_ids[group.number]) for group in self._groups]
                self._ran(state, new.num_computed_tokens, scheduled[new.req_id], checks)
        held = self._chosen(running.req_ids)
        for request_id, computed, added in zip(
            running.req_ids, running.num_computed_tokens, running.new_block_ids, strict=True
        ):
            if (state := self._requests.get(request_id)) is not None:
                if added is not None:
                    self._extend(state, added, resumed=request_id in running.resumed_req_ids)
                if request_id in held:
                    self._check_held(state, computed, checks)
                if computed >= state.due:
                    self._ran(state, computed, scheduled[request_id], checks)
                else:  # nearly always
                    state.end = computed + scheduled[request_id]
        checks += self._left
        if self._frees_blocks:
            checks = self._not_yet_written(output, checks)
            for request_id in scheduled:
                if (state := self._requests.get(request_id)) is not None:
                    state.step = number
            self._last_step = number
        loads = self._loads or self._async_loads or self._handed_over
        if zeroed := getattr(output, "new_block_ids_to_zero", None):
            checks = self._without(checks, {*zeroed})  # vLLM fills these with zeros before anybody can read them
        changed = self._restarted or self._rewound or ended or self._reset
        if not (checks or self._unseen or self._begun_with or loads or changed):
            return None
        plan = CheckPlan(
            number,
            tuple(checks),
            tuple(self._unseen),
            tuple(self._begun_with),
            tuple(self._loads),
            tuple(self._async_loads),
            tuple(self._handed_over),
            tuple(self._restarted),
            tuple(self._rewound),
            tuple(ended),
            self._reset,
            {},
        )
        self._left, self._begun_with, self._loads, self._async_loads, self._handed_over = [], [], [], [], []
        self._restarted, self._rewound, self._reset, self._unseen = [], [], False, []
        return plan

    def _without(self, checks: Sequence[Check], blocks: set[int]) -> list[Check]:
        """The checks without blocks that cannot be read any more. What was computed in them may have been stored."""
        left = []
        for check in checks:
            some = check.without(blocks)
            if some is not check and check.kind == COMPUTED:
                self._unseen.append(check.only([block in blocks for block in check.blocks]))
            if some.blocks:
                left.append(some)
        return left

    def _not_yet_written(self, output: Any, checks: Sequence[Check]) -> list[Check]:
        """The checks without the blocks that vLLM writes to before anybody can read them: copies of partial blocks, and
        states that it moves to the block of their next step."""
        written = {copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ()}
        for group in self._states:
            if group.keeps_states:
                continue
            for new in output.scheduled_new_reqs:
                last = (new.num_computed_tokens + output.num_scheduled_tokens[new.req_id] - 1) // group.block_size
                written.update(new.block_ids[group.number][last : last + 1])
            for added in output.scheduled_cached_reqs.new_block_ids:
                if added is not None:
                    written.update(added[group.number])
        return self._without(checks, written) if written else [*checks]

    def _of(self, request: Any) -> _RequestState:
        state = self._requests.get(request.request_id)
        if state is None or state.request is not request:
            state = self._requests[request.request_id] = _RequestState(request)
            self._empty(state)
        return state

    def _empty(self, state: _RequestState) -> None:
        """It has no blocks."""
        state.epoch, state.end, state.due = state.request.num_preemptions, 0, 0
        state.tables = [[] for _ in self._groups]
        state.planned = [0] * len(self._groups)
        state.partial = [None] * len(self._groups)

    def _restart(self, state: _RequestState, computed: int, end: int, is_async: bool) -> None:
        """It takes over blocks with `computed` tokens, and what comes after them up to `end` is loaded."""
        tables = state.tables
        self._empty(state)
        state.tables = tables
        self._restarted.append(state.request.request_id)
        total = state.request.num_tokens
        for n, group in enumerate(self._groups):
            if self._states and group.boundary:
                self._restart_states(state, n, computed, end, is_async)
                continue
            first, full = computed // group.block_size, end // group.block_size
            loaded = full
            if end > computed and (end % group.block_size or end >= total):
                loaded = min(full, (total - 1) // group.block_size)
                state.partial[n] = loaded
            state.planned[n] = loaded
            kept = group.first_kept(end) if self._frees_blocks else 0
            # all of an asynchronous load is there before the first step, of another only what is not computed
            to_load = self._blocks(state, n, max(first, kept), full if is_async else loaded + (end == total - 1))
            self._admitted += self._checks(state, ADMITTED, n, self._blocks(state, n, kept, first))
            (self._async_loads if is_async else self._loads).extend(self._checks(state, LOADED, n, to_load))
        state.due = 0

    def _check_handed_over(self, state: _RequestState, computed: int, end: int, handed_over: HandedOver) -> None:
        """The request loads what comes after `computed` tokens, and another engine has the checksums of it. The last
        block may be partly filled: nobody writes to it before the load is compared."""
        (group,), (table,), each = self._groups, state.tables, self._hashes_of_block[0]
        numbers = range(-(-computed // group.block_size), min(-(-end // group.block_size), len(table)))
        known = [number for number in numbers if number in handed_over.checksums]
        hashes = state.request.block_hashes[each - 1 :: each]
        short = [_short(hashes[number]) if number < len(hashes) else 0 for number in known]
        chosen = [(number, table[number], hash_) for number, hash_ in zip(known, short, strict=True)]
        for check in self._checks(state, LOADED, 0, chosen):
            checksums = tuple(handed_over.checksums[number] for number in known)
            blocks = tuple(table[number] for number in numbers)
            self._handed_over.append(HandedLoad(check, checksums, handed_over.layout, blocks))

    def _restart_states(self, state: _RequestState, n: int, computed: int, end: int, is_async: bool) -> None:
        """The request begins with a state that is in vLLM's prefix cache, or is loaded."""
        group = self._groups[n]
        state.planned[n] = end // group.unit
        if not end or end % group.unit or end >= state.request.num_tokens:
            return
        number = end // group.unit
        if end == computed:
            self._begun_with += self._checks(state, ADMITTED, n, self._blocks(state, n, number, number + 1))
        elif is_async:
            self._async_loads += self._checks(state, LOADED, n, self._blocks(state, n, number, number + 1))
        elif end % group.block_size == 0:  # else the step that loads it also writes to it
            self._loads += self._checks(state, LOADED, n, self._blocks(state, n, number, number + 1))

    def _ran(self, state: _RequestState, computed: int, scheduled: int, checks: list[Check]) -> None:
        """A step runs `scheduled` of its tokens, after `computed` ones."""
        if computed >= state.due:
            checks += self._completed(state, computed)
        state.end = computed + scheduled

    def _completed(self, state: _RequestState, computed: int) -> list[Check]:
        """The blocks that are complete with `computed` tokens and have no planned check yet."""
        checks: list[Check] = []
        due = []
        has_just_run = state.step == self._last_step
        for n, group in enumerate(self._groups):
            if self._states and group.boundary:
                if has_just_run and computed == state.end:
                    checks += self._checks(state, COMPUTED, n, self._states_left(state, n, computed))
                elif state.end:
                    for end in {computed, state.end}:
                        self._unseen += self._checks(state, COMPUTED, n, self._states_left(state, n, end))
                state.planned[n] = max(state.planned[n], computed // group.unit)
                due.append((computed // group.unit + 1) * group.unit)
                continue
            full = min(computed, state.request.num_tokens) // group.block_size
            hashed = len(state.request.block_hashes) * self._hash_size // group.block_size
            last = min(full, hashed, len(state.tables[n]))
            first = state.planned[n]
            if not has_just_run and (kept := min(last, group.first_kept(computed))) > first:
                if state.end:
                    self._unseen += self._checks(state, COMPUTED, n, self._blocks(state, n, first, kept))
                first = kept
            checks += self._checks(state, COMPUTED, n, self._blocks(state, n, first, last))
            state.planned[n] = max(state.planned[n], last)
            due.append((state.planned[n] + 1) * group.block_size)
        state.due = min(due)
        return checks

    def _states_left(self, state: _RequestState, n: int, computed: int) -> list[Block]:
        """The recurrent states that the last step, which ended at `computed` tokens, has left where a boundary is."""
        group, number = self._groups[n], computed // self._groups[n].unit
        if group.keeps_states:
            return self._blocks(state, n, state.planned[n] + 1, number + 1)
        if computed % group.unit:
            return []
        return self._blocks(state, n, number, number + 1)

    def _chosen(self, running: Sequence[str]) -> Collection[str]:
        """Those of the running requests of which a block is checked in this step."""
        count = int(len(running) * self._held + self._random.random())
        return {*self._random.sample(running, count)} if count else ()

    def _check_held(self, state: _RequestState, computed: int, checks: list[Check]) -> None:
        """Check one of the blocks of each group that a request holds and that was checked before."""
        if not state.end:
            return
        for n, group in enumerate(self._groups):
            first = group.first_kept(computed)
            if not group.boundary and first < state.planned[n]:
                number = self._random.randrange(first, state.planned[n])
                checks += self._checks(state, HELD, n, self._blocks(state, n, number, number + 1))

    def _leave(self, state: _RequestState) -> None:
        """It has lost its blocks, or ended: what its last step has computed is still there when the next one begins."""
        if state.end:
            self._left += self._completed(state, min(state.end, state.request.num_tokens - 1))
        self._empty(state)

    def _extend(self, state: _RequestState, added: Sequence[Sequence[int]], *, resumed: bool) -> None:
        for table, group in zip(state.tables, self._groups, strict=True):
            if resumed:
                table.clear()
            table += added[group.number]

    def _rewind(self, state: _RequestState, n: int, first: int) -> None:
        """From this block on it will be computed."""
        state.planned[n], state.partial[n], state.due = first, None, 0
        self._rewound.append(state.request.request_id)

    def _blocks(self, state: _RequestState, n: int, first: int, last: int) -> list[Block]:
        """Those of a request's blocks that have a hash, by their numbers."""
        if self._states and self._groups[n].boundary:
            return self._boundaries(state, self._groups[n], state.tables[n], first, last)
        hashes, table = state.request.block_hashes, state.tables[n]
        each = self._hashes_of_block[n]
        blocks = [
            (number, table[number], _short(hashes[(number + 1) * each - 1]))
            for number in range(first, min(last, len(table), len(hashes) // each))
        ]
        return [block for block in blocks if block[1] != NULL_BLOCK] if self._frees_blocks else blocks

    def _boundaries(self, state: _RequestState, group: Group, table: list[int], first: int, last: int) -> list[Block]:
        """The same of recurrent states."""
        hashes = state.request.block_hashes
        each = group.unit // self._hash_size
        blocks = []
        for number in range(max(first, 1), min(last, len(hashes) // each + 1)):
            place = (number * group.unit - 1) // group.block_size
            if place < len(table) and table[place] != NULL_BLOCK:
                blocks.append((number, table[place], _short(hashes[number * each - 1])))
        return blocks

    def _checks(self, state: _RequestState, kind: str, n: int, chosen: Sequence[Block]) -> list[Check]:
        if not chosen:
            return []
        numbers, blocks, hashes = zip(*chosen, strict=True)
        group = self._groups[n].number
        request_id, identity = state.request.request_id, self._identity(state.request)
        return [Check(request_id, kind, group, numbers, blocks, hashes, state.partial[n], identity)]


def _short(hash_: bytes) -> int:
    """The last 64 bits."""
    return int.from_bytes(hash_[-8:], "big")
