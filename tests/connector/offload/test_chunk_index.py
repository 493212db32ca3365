"""Which chunks the OffloadConnector holds: what is found of a prefix is all that is held of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.offload.plan import OffloadPlan
from kvtrail.connector.offload.scheduler import ChunkIndex, OffloadScheduler

CHUNK = BLOCK = 4


def chain(name: str, length: int, shared: str = "", fork: int = 0) -> list[bytes]:
    """The keys of a prefix: each stands for all chunks up to its own; the first `fork` chunks are `shared`."""
    chunks = (shared * fork + name * length)[:length]
    return [chunks[: n + 1].encode() for n in range(length)]


def found_and_held(index: ChunkIndex, keys: Sequence[bytes]) -> tuple[int, int]:
    return index.longest_prefix(keys), sum(key in index for key in keys)


def test_the_tail_of_a_prefix_goes_first() -> None:
    index, keys = ChunkIndex(8), chain("a", 8)
    assert index.extend(keys) == ([0, 1, 2, 3, 4, 5, 6, 7], [])
    index.use(keys)
    index.end_step()
    assert index.extend(chain("b", 1)) == ([7], [keys[7]])
    assert found_and_held(index, keys) == (7, 7)


def test_the_least_recently_used_prefix_goes_first() -> None:
    index = ChunkIndex(3)
    index.extend(chain("a", 2))
    index.extend(chain("b", 1))
    index.end_step()
    index.use(chain("a", 1))
    index.end_step()
    assert index.extend(chain("c", 2)) == ([1, 2], [b"aa", b"b"])


def test_looking_up_is_no_use() -> None:
    index = ChunkIndex(2)
    index.extend(chain("a", 1))
    index.extend(chain("b", 1))
    index.end_step()
    index.longest_prefix(chain("a", 1))
    assert index.extend(chain("c", 1)) == ([0], [b"a"])


def test_a_prefix_longer_than_the_room_keeps_its_head() -> None:
    index = ChunkIndex(4)
    for length in range(1, 8):
        slots, evicted = index.extend(chain("a", length))
        assert (slots, evicted) == (list(range(min(length, 4))), [])
        index.end_step()


def test_nothing_that_a_step_uses_is_evicted_in_it() -> None:
    index = ChunkIndex(2)
    index.extend(chain("a", 1))
    index.extend(chain("b", 1))
    assert index.extend(chain("c", 1)) == ([], [])
    index.end_step()
    assert index.extend(chain("c", 1)) == ([0], [b"a"])


def test_a_cleared_index_is_empty() -> None:
    index = ChunkIndex(2)
    index.extend(chain("a", 2))
    index.clear()
    assert found_and_held(index, chain("a", 2)) == (0, 0)
    assert sorted(index.extend(chain("b", 2))[0]) == [0, 1]


def test_a_chunk_behind_a_gap_keeps_its_slot() -> None:
    """A load that fails leaves a gap; before, the chunk behind it got another slot, and the one that it had was lost."""
    index, keys = ChunkIndex(3), chain("a", 3)
    index.extend(keys)
    index.end_step()
    index.discard(keys[0])
    assert index.extend(keys) == ([0, 1, 2], [])
    index.end_step()
    assert len(index.extend(chain("b", 3))[0]) == 3


KEYS = st.builds(
    chain,
    st.sampled_from("abc"),
    st.integers(1, 7),
    st.sampled_from("abc"),
    st.integers(0, 4),
)


@given(st.integers(1, 9), st.lists(st.tuples(st.sampled_from(["extend", "use", "end step"]), KEYS), max_size=60))
def test_what_is_held_of_a_prefix_is_found(slots: int, calls: list[tuple[str, list[bytes]]]) -> None:
    """After any sequence of stores, uses and evictions, of chains that share prefixes; and what goes is, of the tails that
    the step does not use, the one that was used least recently."""
    index = ChunkIndex(slots)
    used: dict[bytes, int] = {}  # held chunk -> when it was used last
    prefixes: dict[bytes, list[bytes]] = {}
    in_step: set[bytes] = set()
    for now, (call, keys) in enumerate(calls):
        held = index.longest_prefix(keys)
        if call == "end step":
            index.end_step()
            in_step.clear()
        elif call == "use":
            index.use(keys[:held])
            used |= dict.fromkeys(keys[:held], now)
            in_step.update(keys[:held])
        else:
            places, evicted = index.extend(keys)
            in_step.update(keys[:held])
            used |= dict.fromkeys(keys[:held], now)
            for key in evicted:
                tails = {k for k in used if not any(k in prefixes[other][:-1] for other in used)}
                assert key == min(tails - in_step, key=used.__getitem__)
                del used[key]
            used |= dict.fromkeys(keys[: len(places)], now)
            in_step.update(keys[: len(places)])
            prefixes |= {key: keys[: n + 1] for n, key in enumerate(keys)}
            assert len(set(places) & set(range(slots))) == len(places)
            assert len(places) == len(keys) or in_step >= set(used), "there was room"
            assert not evicted or len(used) == slots
        for each in prefixes.values():
            found, in_all = found_and_held(index, each)
            assert found == in_all == sum(key in used for key in each)


CALLS = st.sampled_from(["extend", "use", "discard", "end step"])


@given(st.integers(1, 9), st.lists(st.tuples(CALLS, KEYS, st.integers(0, 6)), max_size=60))
def test_no_slot_is_lost_and_none_has_two_chunks(slots: int, calls: list[tuple[str, list[bytes], int]]) -> None:
    """Also where chunks are discarded, of any place in a prefix."""
    index = ChunkIndex(slots)
    for call, keys, place in calls:
        if call == "end step":
            index.end_step()
        elif call == "use":
            index.use(keys[: index.longest_prefix(keys)])
        elif call == "discard":
            index.discard(keys[place % len(keys)])
        else:
            places, _ = index.extend(keys)
            assert places == index.slots(keys[: len(places)])
            assert len({*places}) == len(places)
    index.end_step()
    assert len(index.extend(chain("z", slots))[0]) == slots


@dataclass
class Request:
    """What the scheduler's side asks of vLLM's request."""

    request_id: str
    block_hashes: list[bytes]
    num_preemptions: int = 0
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_tokens = len(self.block_hashes) * BLOCK + 1


def stepped(scheduler: OffloadScheduler, request: Request, computed: int, scheduled: int) -> OffloadPlan:
    """A step of one request."""
    table = list(range(100, 200))
    new = SimpleNamespace(req_id=request.request_id, num_computed_tokens=computed, block_ids=(table,))
    output: Any = SimpleNamespace(
        scheduled_new_reqs=[new],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[]),
        num_scheduled_tokens={request.request_id: scheduled},
    )
    return scheduler.end_step(output)


def scheduler_with(slots: int) -> OffloadScheduler:
    return OffloadScheduler(OffloadConfig(CHUNK, BLOCK, (Group(BLOCK, 1),), slots=slots), drafts=False)


def starts(plan: OffloadPlan) -> tuple[list[int], list[int], list[tuple[str, int]]]:
    """Where the chunks begin that a plan stores, and that were held already; and what it refuses."""
    return [copy.start for copy in plan.stores], [copy.start for copy in plan.present], plan.refused


def test_a_prefix_that_was_loaded_loses_its_tail() -> None:
    scheduler, a, b = scheduler_with(8), Request("a", chain("a", 8)), Request("b", chain("b", 1))
    scheduler.new_tokens(a, 0)
    stepped(scheduler, a, 0, 33)
    scheduler.finished(a)
    assert scheduler.new_tokens(a, 0) == 32
    scheduler.admitted(a, 32, [range(8)])
    assert len(stepped(scheduler, a, 32, 1).loads) == 8
    scheduler.new_tokens(b, 0)
    assert starts(stepped(scheduler, b, 0, 5)) == ([0], [], [])
    assert scheduler.take_evicted() == [(b"aaaaaaaa".hex(), CHUNK, 1, "b")]
    assert scheduler.new_tokens(a, 0) == 28


def test_what_was_evicted_while_a_request_runs_is_stored_again_before_what_follows() -> None:
    scheduler, a, b = scheduler_with(4), Request("a", chain("a", 4)), Request("b", chain("b", 3))
    scheduler.new_tokens(a, 0)
    assert starts(stepped(scheduler, a, 0, 12)) == ([0, 4, 8], [], [])
    scheduler.new_tokens(b, 0)
    assert starts(stepped(scheduler, b, 0, 12)) == ([0, 4, 8], [], [])
    plan = stepped(scheduler, a, 12, 4)
    assert starts(plan) == ([4, 8, 12], [], [])
    assert [copy.blocks for copy in plan.stores] == [(101,), (102,), (103,)]
    assert scheduler.new_tokens(a, 0) == 16


def test_without_room_the_head_stays_and_each_chunk_is_tried_once() -> None:
    scheduler, a = scheduler_with(2), Request("a", chain("a", 6))
    scheduler.new_tokens(a, 0)
    assert starts(stepped(scheduler, a, 0, 12)) == ([0, 4], [], [("a", 8)])
    assert [starts(stepped(scheduler, a, computed, 1))[2] for computed in range(12, 20)] == [
        [], [], [], [("a", 8)], [], [], [], [("a", 8)],
    ]  # fmt: skip
    assert scheduler.new_tokens(a, 0) == 8
