"""The scheduler's side: which blocks the workers are to look at in a step, and under which hash each was or will be filled.

A block counts as computed when the next step counts it so. Whatever is sampled is sampled by hash: a block is looked at
always or never, since half a truth would accuse the innocent. Some bytes are looked at of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvtrail.tracer.events.ids import bounded

COMPUTED, LOADED, ADMITTED, HELD = "computed", "loaded", "admitted", "held"
_HASHES = 1 << 64


class Look(NamedTuple):
    """Blocks of a request to be looked at: their numbers in it, their ids, and the last 64 bits of their hashes. The last
    token of the block with the number `mixed` is computed after the others were loaded. The request's KV and hashes depend on
    its tokens and on the `identity`."""

    request_id: str
    look: str
    group: int
    numbers: tuple[int, ...]
    blocks: tuple[int, ...]
    hashes: tuple[int, ...]
    mixed: int | None
    identity: str

    @property
    def recorded_id(self) -> str:
        """The request's id as it is recorded, which is short: it is kept for as long as its blocks are known."""
        return bounded(self.request_id)


class Orders(NamedTuple):
    """What the workers do in a step: looks before it, loads to be looked at after it, and those that end between steps; the
    requests that begin anew, those that compute failed loads again, and those that have ended; whether all that is known is
    to be forgotten; and where requests are in their callers' traces."""

    step: int
    before: tuple[Look, ...]
    loads: tuple[Look, ...]
    awaited: tuple[Look, ...]
    begun: tuple[str, ...]
    rewound: tuple[str, ...]
    ended: tuple[str, ...]
    forget: bool
    places: dict[str, tuple[bytes, bool]]


NO_ORDERS = Orders(0, (), (), (), (), (), (), False, {})


class Group(NamedTuple):
    """A KV cache group that is looked at: its number, and the tokens of a block."""

    number: int
    block_size: int


Found = tuple[int, int, int]
"""A block: its number in the request, its id, and the last 64 bits of its hash."""


@dataclass(slots=True)
class _Tracked:
    """A live request. Lists have a place for each group.

    Attributes:
        tables: the block tables, as of the last step.
        told: blocks from its start that were told, whether computed, loaded or admitted.
        due: computed tokens at which there may be a new one to tell.
        end: tokens that are computed when its last step has run; 0 before its first.
        mixed: the number of the block that is loaded but for its last token.
        held: the complete blocks of which all bytes are looked at, by number.
        coming: those that will be once its first step has run.
        has_sampled: whether there are any of these.
    """

    request: Any
    epoch: int = 0
    tables: list[list[int]] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    due: int = 0
    end: int = 0
    mixed: list[int | None] = field(default_factory=list)
    held: list[dict[int, Found]] = field(default_factory=list)
    coming: list[list[Found]] = field(default_factory=list)
    has_sampled: bool = False
    matched: tuple[int, bool] | None = None
    """Of the last lookup: the tokens that vLLM had computed, and whether the load ends between steps."""


class OrderBook:
    """Follows the requests of one scheduler."""

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        hash_size: int,
        rate: float,
        all_held: bool,
        identity: Callable[[Any], str],
        slim: bool = False,
    ) -> None:
        """
        Args:
            groups: those that are looked at.
            hash_size: tokens of a hash of vLLM's requests.
            rate: the share of hashes that is sampled.
            all_held: whether all sampled blocks that a running request holds are looked at in each step, and not one of them.
            identity: what a request's KV depends on besides its tokens.
            slim: whether all blocks that are computed, loaded or admitted are looked at, besides.
        """
        self._groups = groups
        self._hash_size = hash_size
        self._below, self._sampled_below = _HASHES if slim else below(rate), below(rate)
        self._all_held = all_held
        self._identity = identity
        self._random = random.Random(0)
        self._tracked: dict[str, _Tracked] = {}
        self._left: list[Look] = []
        """Of requests that have left their blocks since the last step."""
        self._admitted: list[Look] = []
        """Taken over in this step, in which another request may be filling the same blocks."""
        self._due: list[Look] = []
        """Taken over in the last step, and looked at in the next."""
        self._loads: list[Look] = []
        self._awaited: list[Look] = []
        self._begun: list[str] = []
        self._rewound: list[str] = []
        self._forget = False

    def looked_up(self, request: Any, computed: int, is_async: bool) -> None:
        """After a lookup."""
        self._of(request).matched = computed, is_async

    def allocated(self, request: Any, external: int, blocks: Any) -> None:
        """After `update_state_after_alloc`."""
        tracked = self._of(request)
        if tracked.epoch != request.num_preemptions:
            self._leave(tracked)
        tables = blocks.get_block_ids()
        tracked.tables = [list(tables[group.number]) for group in self._groups]
        if tracked.matched is not None:
            (computed, is_async), tracked.matched = tracked.matched, None
            self._begin(tracked, computed, computed + external, is_async)

    def loads_failed(self) -> set[str]:
        """After the workers have reported blocks that could not be loaded: requests may have fewer computed tokens now.
        Returns those that have no step behind them: they have waited for their loads."""
        waiting = set()
        for tracked in self._tracked.values():
            computed = tracked.request.num_computed_tokens
            for n, group in enumerate(self._groups):
                if tracked.told and tracked.told[n] > computed // group.block_size:
                    self._rewind(tracked, n, computed // group.block_size)
                    if not tracked.end:
                        waiting.add(tracked.request.request_id)
            if tracked.end:
                tracked.end = min(tracked.end, computed)
        return waiting

    def forget(self) -> None:
        """After a reset of the connector: other weights may come."""
        self._forget = True

    def step(self, output: Any, number: int) -> Orders | None:
        """The orders of the step of this `SchedulerOutput`; None if there are none."""
        looks, self._due, self._admitted = self._due, self._admitted, []
        ended = [request_id for request_id in output.finished_req_ids if request_id in self._tracked]
        for request_id in ended:
            self._leave(self._tracked.pop(request_id))
        for request_id in output.preempted_req_ids or ():
            tracked = self._tracked.get(request_id)
            if tracked is not None and tracked.epoch != tracked.request.num_preemptions:
                self._leave(tracked)
        scheduled, running = output.num_scheduled_tokens, output.scheduled_cached_reqs
        for new in output.scheduled_new_reqs:
            if (tracked := self._tracked.get(new.req_id)) is not None:
                tracked.tables = [list(new.block_ids[group.number]) for group in self._groups]
                self._ran(tracked, new.num_computed_tokens, scheduled[new.req_id], looks)
        for request_id, computed, added in zip(
            running.req_ids, running.num_computed_tokens, running.new_block_ids, strict=True
        ):
            if (tracked := self._tracked.get(request_id)) is not None:
                if added is not None:
                    self._extend(tracked, added, anew=request_id in running.resumed_req_ids)
                if tracked.has_sampled or computed >= tracked.due:
                    self._ran(tracked, computed, scheduled[request_id], looks)
                else:  # nearly always, where few are sampled
                    tracked.end = computed + scheduled[request_id]
        looks += self._left
        if not (looks or self._loads or self._awaited or self._begun or self._rewound or ended or self._forget):
            return None
        if zeroed := getattr(output, "new_block_ids_to_zero", None):
            looks = _without(looks, {*zeroed})
        orders = Orders(
            number,
            tuple(looks),
            tuple(self._loads),
            tuple(self._awaited),
            tuple(self._begun),
            tuple(self._rewound),
            tuple(ended),
            self._forget,
            {},
        )
        self._left, self._loads, self._awaited, self._begun, self._rewound, self._forget = [], [], [], [], [], False
        return orders

    def _of(self, request: Any) -> _Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.request is not request:
            tracked = self._tracked[request.request_id] = _Tracked(request)
            self._empty(tracked)
        return tracked

    def _empty(self, tracked: _Tracked) -> None:
        """It has no blocks."""
        tracked.epoch, tracked.end, tracked.due = tracked.request.num_preemptions, 0, 0
        tracked.tables = [[] for _ in self._groups]
        tracked.told = [0] * len(self._groups)
        tracked.mixed = [None] * len(self._groups)
        tracked.held = [{} for _ in self._groups]
        tracked.coming = [[] for _ in self._groups]
        tracked.has_sampled = False

    def _begin(self, tracked: _Tracked, computed: int, end: int, is_async: bool) -> None:
        """It takes over blocks with so many computed tokens, and what comes after them up to `end` is loaded."""
        tables = tracked.tables
        self._empty(tracked)
        tracked.tables = tables
        self._begun.append(tracked.request.request_id)
        total = tracked.request.num_tokens
        for n, group in enumerate(self._groups):
            first, full = computed // group.block_size, end // group.block_size
            loaded = full
            if end > computed and (end % group.block_size or end >= total):
                loaded = min(full, (total - 1) // group.block_size)
                tracked.mixed[n] = loaded
            tracked.told[n] = loaded
            admitted = self._sampled(found := self._found(tracked, n, 0, first))
            # all of an asynchronous load is there before the first step, of another only what is not computed
            to_load = self._found(tracked, n, first, full if is_async else loaded + (end == total - 1))
            tracked.coming[n] = admitted + [each for each in self._sampled(to_load) if each[0] < loaded]
            tracked.has_sampled = tracked.has_sampled or bool(tracked.coming[n])
            self._admitted += self._looks(tracked, ADMITTED, n, found)
            (self._awaited if is_async else self._loads).extend(self._looks(tracked, LOADED, n, to_load))
        tracked.due = 0

    def _ran(self, tracked: _Tracked, computed: int, scheduled: int, looks: list[Look]) -> None:
        """A step runs so many of its tokens, after so many that are computed."""
        if tracked.end:
            if any(tracked.coming):
                for held, coming in zip(tracked.held, tracked.coming, strict=True):
                    held.update((each[0], each) for each in coming)
                    coming.clear()
            self._look_at_held(tracked, looks)
        if computed >= tracked.due:
            looks += self._completed(tracked, computed)
        tracked.end = computed + scheduled

    def _completed(self, tracked: _Tracked, computed: int) -> list[Look]:
        """The blocks that are complete with so many computed tokens, and were not told yet."""
        looks: list[Look] = []
        due = []
        for n, group in enumerate(self._groups):
            full = min(computed, tracked.request.num_tokens) // group.block_size
            hashed = len(tracked.request.block_hashes) * self._hash_size // group.block_size
            last = min(full, hashed, len(tracked.tables[n]))
            found = self._found(tracked, n, tracked.told[n], last)
            looks += self._looks(tracked, COMPUTED, n, found)
            if sampled := self._sampled(found):
                tracked.held[n].update((each[0], each) for each in sampled)
                tracked.has_sampled = True
            tracked.told[n] = max(tracked.told[n], last)
            due.append((tracked.told[n] + 1) * group.block_size)
        tracked.due = min(due)
        return looks

    def _look_at_held(self, tracked: _Tracked, looks: list[Look]) -> None:
        for n, held in enumerate(tracked.held):
            if not held:
                continue
            if self._all_held:
                looks += self._looks(tracked, HELD, n, list(held.values()))
            elif (one := held.get(int(self._random.random() * tracked.told[n]))) is not None:
                looks += self._looks(tracked, HELD, n, [one])

    def _leave(self, tracked: _Tracked) -> None:
        """It has lost its blocks, or ended: what its last step has computed is still there when the next one begins."""
        if tracked.end:
            self._left += self._completed(tracked, min(tracked.end, tracked.request.num_tokens - 1))
        self._empty(tracked)

    def _extend(self, tracked: _Tracked, added: Sequence[Sequence[int]], *, anew: bool) -> None:
        for table, group in zip(tracked.tables, self._groups, strict=True):
            if anew:
                table.clear()
            table += added[group.number]

    def _rewind(self, tracked: _Tracked, n: int, told: int) -> None:
        """From this block on it will be computed."""
        tracked.told[n], tracked.mixed[n], tracked.due = told, None, 0
        tracked.held[n] = {number: each for number, each in tracked.held[n].items() if number < told}
        tracked.coming[n] = [each for each in tracked.coming[n] if each[0] < told]
        self._rewound.append(tracked.request.request_id)

    def _found(self, tracked: _Tracked, n: int, first: int, last: int) -> list[Found]:
        """Those of a request's blocks that are looked at at all."""
        hashes, table = tracked.request.block_hashes, tracked.tables[n]
        each = self._groups[n].block_size // self._hash_size
        found = []
        for number in range(first, min(last, len(table), len(hashes) // each)):
            short = int.from_bytes(hashes[(number + 1) * each - 1][-8:], "big")
            if short < self._below:
                found.append((number, table[number], short))
        return found

    def _sampled(self, found: list[Found]) -> list[Found]:
        """Those of which all bytes are looked at."""
        return (
            found if self._sampled_below == self._below else [each for each in found if each[2] < self._sampled_below]
        )

    def _looks(self, tracked: _Tracked, look: str, n: int, found: Sequence[Found]) -> list[Look]:
        if not found:
            return []
        numbers, blocks, hashes = zip(*found, strict=True)
        group = self._groups[n].number
        request_id, identity = tracked.request.request_id, self._identity(tracked.request)
        return [Look(request_id, look, group, numbers, blocks, hashes, tracked.mixed[n], identity)]


def below(rate: float) -> int:
    """The hashes below this are sampled."""
    return int(rate * _HASHES)


def _without(looks: Sequence[Look], blocks: set[int]) -> list[Look]:
    """The looks without these blocks, which vLLM fills with zeros before anybody can look."""
    kept = []
    for each in looks:
        places = [n for n, block in enumerate(each.blocks) if block not in blocks]
        numbers, ids, hashes = (tuple(part[n] for n in places) for part in (each.numbers, each.blocks, each.hashes))
        kept.append(each._replace(numbers=numbers, blocks=ids, hashes=hashes))
    return kept
