"""Which blocks of windows and of recurrent states are checked: never one that its request may have given back."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.fingerprints.plan import ADMITTED, COMPUTED, HELD, LOADED, Check, CheckPlan, Group
from kvtrail.connector.fingerprints.scheduler import CheckScheduler
from kvtrail.tracer.events.cache_groups import ALL, CHUNKED, MAMBA, SLIDING, CacheGroup

BLOCK = 32
FULL, WINDOW, CHUNKS, STATES = (
    Group(0, BLOCK),
    Group(0, BLOCK, CacheGroup(SLIDING, window=64)),
    Group(0, BLOCK, CacheGroup(CHUNKED, window=64)),
    Group(0, BLOCK, CacheGroup(MAMBA), BLOCK),
)


class Played:
    """A request on a scheduler of one group, step by step."""

    def __init__(self, group: Group, tokens: int, *, hash_size: int = BLOCK) -> None:
        self.checks = CheckScheduler([group], hash_size=hash_size, held=1.0, identity=lambda request: "plain")
        hashes = [bytes(24) + number.to_bytes(8, "big") for number in range(1, tokens // hash_size + 1)]
        self.request: Any = SimpleNamespace(
            request_id="r", num_tokens=tokens, block_hashes=hashes, num_preemptions=0, num_computed_tokens=0
        )
        self.unreadable: list[tuple[int, int, int]] = []
        """What was computed and is not checked, as the last step's plan says it."""
        self._step = -1

    def admit(self, table: list[int], computed: int, external: int = 0, *, is_async: bool = False) -> None:
        self.checks.on_lookup(self.request, computed, is_async)
        self.checks.on_alloc(self.request, external, SimpleNamespace(get_block_ids=lambda: (table,)))

    def begin(self, table: list[int], computed: int, scheduled: int, **more: Any) -> list[tuple[str, Any]]:
        new = SimpleNamespace(req_id="r", block_ids=(table,), num_computed_tokens=computed)
        return self._plan(new=[new], scheduled={"r": scheduled}, **more)

    def go_on(self, computed: int, scheduled: int, added: Sequence[int] = (), **more: Any) -> list[tuple[str, Any]]:
        cached = SimpleNamespace(
            req_ids=["r"], num_computed_tokens=[computed], new_block_ids=[([*added],)], resumed_req_ids=set()
        )
        return self._plan(cached=cached, scheduled={"r": scheduled}, **more)

    def others(self, **more: Any) -> list[tuple[str, Any]]:
        """A step without it."""
        return self._plan(scheduled={}, **more)

    def _plan(
        self, *, scheduled: dict[str, int], new: Sequence[Any] = (), cached: Any = None, **more: Any
    ) -> list[tuple[str, Any]]:
        none = SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[], resumed_req_ids=set())
        self._step += 1
        given = {"finished_req_ids": set(), "preempted_req_ids": None, **more}
        output = SimpleNamespace(
            scheduled_new_reqs=new, scheduled_cached_reqs=cached or none, num_scheduled_tokens=scheduled, **given
        )
        plan = self.checks.plan_step(output, self._step)
        self.unreadable = [] if plan is None else [each for check in plan.unreadable for each in _blocks(check)]
        return [] if plan is None else [(check.kind, _blocks(check)) for check in _all(plan)]


def _all(plan: CheckPlan) -> list[Check]:
    return [*plan.before, *plan.states, *plan.loads, *(each for each in plan.async_loads if isinstance(each, Check))]


def _blocks(check: Check) -> list[tuple[int, int, int]]:
    """Number, block, and hash."""
    return list(zip(check.numbers, check.blocks, check.hashes, strict=True))


@pytest.mark.parametrize(
    ("group", "computed", "first"),
    [
        (WINDOW, 63, 0),
        (WINDOW, 95, 1),
        (WINDOW, 96, 1),
        (WINDOW, 127, 2),
        (CHUNKS, 63, 0),
        (CHUNKS, 64, 2),
        (FULL, 900, 0),
    ],
)
def test_what_a_request_is_sure_to_hold_is_what_vllm_does_not_skip(group: Group, computed: int, first: int) -> None:
    from vllm.v1.core import single_type_kv_cache_manager as managers

    assert group.first_kept(computed) == first
    size, is_window = group.cache.window, group.cache.kind == SLIDING
    manager: Any = managers.SlidingWindowManager if is_window else managers.ChunkedLocalAttentionManager
    of = SimpleNamespace(sliding_window=size, extra_retained_tokens=0, attention_chunk_size=size)
    if group.frees_blocks:
        assert manager.get_num_skipped_tokens(of, computed) // BLOCK == first


def test_all_that_the_last_step_computed_is_checked_though_its_window_has_gone_on() -> None:
    played = Played(WINDOW, 300)
    played.admit([1, 2, 3, 4, 5], 0)
    assert played.begin([1, 2, 3, 4, 5], 0, 160) == []
    assert played.go_on(160, 32, [6]) == [(COMPUTED, [(n, n + 1, n + 1) for n in range(5)])]


def test_what_was_computed_before_a_step_without_its_request_is_checked_only_in_the_window() -> None:
    """vLLM may have given the rest to another request, which ran in that step."""
    played = Played(WINDOW, 300)
    played.admit([1, 2, 3, 4, 5], 0)
    played.begin([1, 2, 3, 4, 5], 0, 160)
    played.others()
    assert played.go_on(160, 32, [6]) == [(COMPUTED, [(3, 4, 4), (4, 5, 5)])]
    assert played.unreadable == [(0, 1, 1), (1, 2, 2), (2, 3, 3)], "a connector may have stored these"


@pytest.mark.parametrize(("group", "kept"), [(FULL, {0, 1, 2, 3}), (WINDOW, {2, 3}), (CHUNKS, set())])
def test_what_has_left_the_window_is_not_held(group: Group, kept: set[int]) -> None:
    """One of the others in each step."""
    held: list[set[int]] = [set(), set()]
    for seed in range(100):
        played = Played(group, 400)
        played.checks._random.seed(seed)
        played.admit([1, 2, 3, 4, 5], 0)
        played.begin([1, 2, 3, 4, 5], 0, 128)
        assert HELD not in dict(played.go_on(128, 8)), "what was computed just now is checked as such"
        for n, checks in enumerate((played.go_on(136, 64, [6, 7]), played.go_on(200, 8))):
            numbers = [number for kind, blocks in checks if kind == HELD for number, *_ in blocks]
            assert len(numbers) <= 1
            held[n].update(numbers)
    assert held == [kept, {0, 1, 2, 3} if group is FULL else set()]


@pytest.mark.parametrize(("share", "expected"), [(1.0, 3000), (0.01, 30)])
def test_a_share_of_the_running_requests_is_checked_in_each_step(share: float, expected: int) -> None:
    checks = CheckScheduler([FULL], hash_size=BLOCK, held=share, identity=lambda request: "plain")
    chosen = [each for _ in range(1000) for each in checks._chosen(3)]
    assert len(chosen) == pytest.approx(expected, rel=0.3)
    assert {*chosen} == {0, 1, 2}


def test_a_window_that_is_taken_over_and_loaded_begins_where_blocks_are() -> None:
    """Blocks before it have the id 0."""
    played = Played(WINDOW, 300)
    played.admit([0, 0, 0, 4, 5, 6], 128, 64)
    first = played.begin([0, 0, 0, 4, 5, 6], 192, 50)
    assert first == [(LOADED, [(4, 5, 5), (5, 6, 6)])]
    assert [each for each in played.go_on(242, 8) if each[0] == ADMITTED] == [], "its window at 192 begins at 128"
    played = Played(WINDOW, 300)
    played.admit([0, 0, 0, 4, 5, 6], 160)
    assert played.begin([0, 0, 0, 4, 5, 6], 160, 30) == []
    assert (ADMITTED, [(3, 4, 4), (4, 5, 5)]) in played.go_on(190, 8)


def test_no_block_is_none_of_a_window_and_no_state() -> None:
    played = Played(WINDOW, 300)
    played.admit([0, 0, 0, 0, 5, 6], 160)
    played.begin([0, 0, 0, 0, 5, 6], 160, 30)
    assert (ADMITTED, [(4, 5, 5)]) in played.go_on(190, 8)
    played = Played(STATES, 300)
    played.admit([0, 0, 0, 4], 96)
    assert played.begin([0, 0, 0, 4], 96, 20) == []


def test_a_state_counts_where_a_step_ends_at_a_boundary() -> None:
    played = Played(STATES, 300)
    played.admit([0, 0, 3], 0)
    played.begin([0, 0, 3], 0, 96)
    assert played.go_on(96, 20, [4]) == [(COMPUTED, [(3, 3, 3)])]
    assert played.go_on(116, 30, [5]) == [], "its state has seen 116 tokens"
    assert played.go_on(146, 14, []) == []
    assert played.go_on(160, 1, [6]) == [(COMPUTED, [(5, 5, 5)])]


def test_a_state_of_an_earlier_step_is_gone() -> None:
    played = Played(STATES, 300)
    played.admit([0, 0, 3], 0)
    played.begin([0, 0, 3], 0, 96)
    played.others()
    assert played.go_on(96, 20, [4]) == []
    assert played.unreadable == [(3, 3, 3)], "a connector may have stored it"


def test_a_state_that_a_draft_took_too_far_is_none() -> None:
    """The step ran 97 tokens, and the last one was rejected."""
    played = Played(STATES, 300)
    played.admit([0, 0, 3, 4], 0)
    played.begin([0, 0, 3, 4], 0, 97)
    assert played.go_on(96, 20) == []


def test_states_within_a_block_are_named_by_the_tokens_that_they_have_seen() -> None:
    played = Played(Group(0, 64, CacheGroup(MAMBA), BLOCK), 300)
    played.admit([0, 7], 0)
    played.begin([0, 7], 0, 96)
    assert played.go_on(96, 20) == [(COMPUTED, [(3, 7, 3)])]


def test_where_each_block_keeps_its_state_all_that_a_step_passed_are_checked() -> None:
    played = Played(Group(0, BLOCK, CacheGroup(MAMBA, cache_mode=ALL), BLOCK), 300)
    played.admit([1, 2, 3, 4], 0)
    played.begin([1, 2, 3, 4], 0, 100)
    assert played.go_on(100, 20) == [(COMPUTED, [(1, 1, 1), (2, 2, 2), (3, 3, 3)])]


@pytest.mark.parametrize(
    ("external", "is_async", "expected"),
    [
        (0, False, [(ADMITTED, [(3, 3, 3)])]),
        (32, False, [(LOADED, [(4, 4, 4)])]),
        (32, True, [(LOADED, [(4, 4, 4)])]),
        (48, True, []),
    ],
    ids=["taken over", "loaded", "loaded between steps", "of no boundary"],
)
def test_the_state_that_a_request_begins_with_is_checked_before_its_first_step_changes_it(
    external: int, is_async: bool, expected: Any
) -> None:
    played = Played(STATES, 300)
    table = [0, 0, 3] if not external else [0, 0, 0, 4, 5][: (96 + external + 31) // 32]
    played.admit(table, 96, external, is_async=is_async)
    assert played.begin(table, 96 + external, 20) == expected


def test_a_state_in_a_block_that_the_step_goes_on_with_is_not_checked_after_its_load() -> None:
    played = Played(Group(0, 64, CacheGroup(MAMBA), BLOCK), 300)
    played.admit([0, 7], 0, 96)
    assert played.begin([0, 7], 96, 20) == []


def test_blocks_that_vllm_writes_to_before_the_step_are_left_out() -> None:
    """Copies of partial blocks, and states that it moves to the block of their next step, which may be another's last one."""
    played = Played(WINDOW, 300)
    played.admit([1, 2, 3, 4], 0)
    played.begin([1, 2, 3, 4], 0, 128)
    copies = [SimpleNamespace(src_block_id=9, dst_block_id=3)]
    computed = [each for each in played.go_on(128, 8, [5], kv_cache_block_copies=copies) if each[0] == COMPUTED]
    assert computed == [(COMPUTED, [(0, 1, 1), (1, 2, 2), (3, 4, 4)])]
    assert played.unreadable == [(2, 3, 3)]

    played = Played(STATES, 300)
    played.admit([0, 0, 3], 0)
    played.begin([0, 0, 3], 0, 96)
    other = SimpleNamespace(req_id="other", block_ids=([0, 0, 2, 3],), num_computed_tokens=96)
    assert played._plan(new=[other], scheduled={"other": 8}, finished_req_ids={"r"}) == []
    assert played.unreadable == [(3, 3, 3)]


@pytest.mark.parametrize("zeroed", [[3], [9]])
def test_what_a_preempted_request_computed_last_is_unreadable_if_its_block_is_somebody_elses(zeroed: list[int]) -> None:
    """Its connector may have stored it in the step that computed it."""
    played = Played(STATES, 300)
    played.admit([0, 0, 3], 0)
    played.begin([0, 0, 3], 0, 96)
    played.request.num_preemptions = 1
    checks = played.others(preempted_req_ids={"r"}, new_block_ids_to_zero=zeroed)
    state = (3, 3, 3)
    assert (checks, played.unreadable) == (([], [state]) if zeroed == [3] else ([(COMPUTED, [state])], []))
    played.others()
    assert played.unreadable == []


@pytest.mark.parametrize("group", [FULL, WINDOW, STATES])
def test_what_a_request_takes_over_or_loads_is_not_unreadable(group: Group) -> None:
    """It has computed nothing under these hashes."""
    played = Played(group, 300)
    played.admit([1, 2, 3, 4, 5], 96, 32)
    played.begin([1, 2, 3, 4, 5], 128, 20, new_block_ids_to_zero=[2, 3, 4])
    assert played.unreadable == []
    played.others()
    played.go_on(148, 10)
    assert played.unreadable == []
