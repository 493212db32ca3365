"""The blocks that the workers check in a step, as sent by the scheduler's side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from kvtrail.tracer.events.cache_groups import ALL, FULL, CacheGroup
from kvtrail.tracer.events.ids import bounded

COMPUTED, LOADED, ADMITTED, HELD = "computed", "loaded", "admitted", "held"


class Group(NamedTuple):
    """A checked KV cache group.

    Attributes:
        number: the group's number.
        block_size: number of tokens in a block.
        cache: the kind of the group, and its window.
        boundary: for recurrent states, number of tokens between states with a hash; 0 if blocks hold the KV of tokens.
    """

    number: int
    block_size: int
    cache: CacheGroup = CacheGroup()
    boundary: int = 0

    @property
    def unit(self) -> int:
        """The number of tokens in a unit. The number of a block is its first token divided by the unit; the number of a state
        is the number of units that it has seen."""
        return self.boundary or self.block_size

    @property
    def frees_blocks(self) -> bool:
        """Whether a running request frees blocks."""
        return self.cache.kind != FULL

    @property
    def keeps_states(self) -> bool:
        """Whether a step leaves a recurrent state in each block that it passes, not only in its last one."""
        return self.cache.cache_mode == ALL

    def first_kept(self, computed: int) -> int:
        """The first block that a request with `computed` tokens certainly holds: vLLM's `get_num_skipped_tokens`."""
        return (self.cache.first_needed(computed) or 0) // self.block_size


class Check(NamedTuple):
    """A check of some blocks of a request: their numbers in it, counted by `Group.unit`, their ids, and the last 64 bits of
    their hashes. `kind` says whether they were computed, loaded, admitted or held. The last token of the block with the
    number `partial` is computed after the others were loaded. The request's KV and hashes depend on its tokens and on the
    `identity`."""

    request_id: str
    kind: str
    group: int
    numbers: tuple[int, ...]
    blocks: tuple[int, ...]
    hashes: tuple[int, ...]
    partial: int | None
    identity: str

    @property
    def recorded_id(self) -> str:
        """The request's id in recorded form, shortened since it is kept as long as the request's blocks are known."""
        return bounded(self.request_id)

    def only(self, chosen: Sequence[bool]) -> Check:
        """The check of the chosen blocks only."""
        if all(chosen):
            return self
        numbers, blocks, hashes = (tuple(compress(part, chosen)) for part in (self.numbers, self.blocks, self.hashes))
        return self._replace(numbers=numbers, blocks=blocks, hashes=hashes)

    def without(self, blocks: set[int]) -> Check:
        """The check without these blocks."""
        return self.only([block not in blocks for block in self.blocks])


class HandedLoad(NamedTuple):
    """A load of KV that another engine has handed over: the check of the blocks that have a checksum, these checksums, the
    layout that they belong to, and the ids of all blocks of the load."""

    check: Check
    checksums: tuple[int, ...]
    layout: str
    blocks: tuple[int, ...]

    @property
    def request_id(self) -> str:
        return self.check.request_id


@dataclass(slots=True)
class CheckPlan:
    """The workers' checks of a step.

    Attributes:
        step: its number.
        before: the checks before the step.
        unreadable: computed blocks that may have been stored and cannot be read any more, so that their hashes have unknown
            contents.
        states: recurrent states with which requests begin, to be checked after these and before the step.
        loads: loads to be checked after the step.
        async_loads: loads that end between steps. One with checksums of another engine is listed a second time, with these.
        restarted: the requests that have other blocks now.
        rewound: the requests that recompute failed loads.
        ended: the requests that have ended.
        reset: whether the references must be cleared.
        callers: the requests' contexts in their callers' traces.
    """

    step: int = 0
    before: list[Check] = field(default_factory=list)
    unreadable: list[Check] = field(default_factory=list)
    states: list[Check] = field(default_factory=list)
    loads: list[Check] = field(default_factory=list)
    async_loads: list[Check | HandedLoad] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    rewound: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    reset: bool = False
    callers: dict[str, tuple[bytes, bool]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        checks = self.before or self.unreadable or self.states or self.loads or self.async_loads
        return bool(checks or self.restarted or self.rewound or self.ended or self.reset)
