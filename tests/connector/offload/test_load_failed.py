"""A load that failed: what was stored behind it was computed of garbage, and is forgotten; all else stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.offload.scheduler import OffloadScheduler, short

BLOCK, CHUNK = 16, 32


def a_request(name: str, tokens: int) -> Any:
    hashes = [f"{name}-{n}".encode() for n in range(tokens // BLOCK)]
    return SimpleNamespace(request_id=name, num_tokens=tokens, block_hashes=hashes, num_preemptions=0)


class Stored:
    """A scheduler of the OffloadConnector, and the calls of vLLM that matter here."""

    def __init__(self) -> None:
        config = OffloadConfig.read({"chunk_size": CHUNK}, hash_size=BLOCK, groups=[Group(BLOCK, 64)])
        self.scheduler = OffloadScheduler(config, drafts=False)

    def begin(self, *requests: tuple[Any, range]) -> None:
        """Compute all of some new requests in one step, in these blocks."""
        for request, _ in requests:
            self.matched(request)
        new = [SimpleNamespace(req_id=r.request_id, num_computed_tokens=0, block_ids=(list(b),)) for r, b in requests]
        self._step(
            new, SimpleNamespace(req_ids=[]), {request.request_id: request.num_tokens for request, _ in requests}
        )

    def go_on(self, request: Any, computed: int) -> Any:
        """Compute the rest of a running request; returns the plan."""
        running = SimpleNamespace(
            req_ids=[request.request_id], num_computed_tokens=[computed], new_block_ids=[None], resumed_req_ids=set()
        )
        return self._step([], running, {request.request_id: request.num_tokens - computed})

    def rest(self) -> None:
        """Two steps without any request."""
        for _ in range(2):
            self.go_on_with_nothing()

    def go_on_with_nothing(self) -> None:
        self._step([], SimpleNamespace(req_ids=[]), {})

    def matched(self, request: Any) -> int:
        self.scheduler.new_tokens(request, 0)
        return self.scheduler.last_matched

    def _step(self, new: list[Any], running: Any, tokens: dict[str, int]) -> Any:
        defaults: dict[str, Any] = {"num_computed_tokens": [], "new_block_ids": [], "resumed_req_ids": set()}
        return self.scheduler.end_step(
            SimpleNamespace(
                scheduled_new_reqs=new,
                scheduled_cached_reqs=SimpleNamespace(**(defaults | vars(running))),
                num_scheduled_tokens=tokens,
            )
        )


@pytest.mark.parametrize(
    ("failed", "kept"),
    [((0,), 0), ((3,), CHUNK), ((4,), 2 * CHUNK), ((5, 2), CHUNK), ((99,), 3 * CHUNK)],
    ids=["first block", "second block of a chunk", "first block of a chunk", "the first of two", "somebody else's"],
)
def test_chunks_from_the_failed_block_on_are_forgotten(failed: tuple[int, ...], kept: int) -> None:
    store, request = Stored(), a_request("a", 3 * CHUNK)
    store.begin((request, range(6)))
    store.scheduler.load_failed(set(failed))
    assert store.matched(request) == kept
    evicted = [key for key, *_ in store.scheduler.take_evicted()]
    assert evicted == [short(f"a-{n}".encode()) for n in (1, 3, 5) if (n + 1) * BLOCK > kept]


def test_they_are_stored_again_when_they_are_computed_again() -> None:
    store, request = Stored(), a_request("a", 3 * CHUNK)
    store.begin((request, range(6)))
    store.scheduler.load_failed({2})
    plan = store.go_on(request, CHUNK)
    assert [(copy.start, copy.blocks) for copy in plan.stores] == [(CHUNK, (2, 3)), (2 * CHUNK, (4, 5))]
    assert store.matched(request) == 3 * CHUNK


def test_requests_that_do_not_hold_the_block_keep_theirs() -> None:
    store = Stored()
    holds, apart = a_request("holds", CHUNK), a_request("apart", CHUNK)
    store.begin((holds, range(2)), (apart, range(2, 4)))
    store.scheduler.load_failed({1})
    assert (store.matched(holds), store.matched(apart)) == (0, CHUNK)


def test_what_was_stored_before_the_load_stays() -> None:
    """It was computed of other blocks, and only the latest steps can have used the failed ones."""
    store, request = Stored(), a_request("a", 2 * CHUNK)
    store.begin((request, range(4)))
    store.rest()
    store.scheduler.load_failed({0})
    assert store.matched(request) == 2 * CHUNK


@pytest.mark.parametrize("steps", [0, 1])
def test_a_request_that_has_ended_since_then_is_forgotten_as_well(steps: int) -> None:
    """vLLM may end a request before it says that its load has failed, or run a step in between."""
    store, request = Stored(), a_request("a", 2 * CHUNK)
    store.begin((request, range(4)))
    store.scheduler.finished(request)
    for _ in range(steps):
        store.go_on_with_nothing()
    store.scheduler.load_failed({2})
    assert store.matched(request) == CHUNK


def test_a_chunk_that_cannot_be_loaded_is_forgotten_when_its_request_has_ended() -> None:
    """Otherwise each request with this prefix would end like that."""
    store, first = Stored(), a_request("a", 2 * CHUNK)
    store.begin((first, range(4)))
    store.scheduler.finished(first)
    store.rest()
    again = SimpleNamespace(**{**vars(first), "request_id": "again"})
    assert store.matched(again) == 2 * CHUNK
    store.scheduler.admitted(again, CHUNK, (list(range(8, 12)),))
    store.scheduler.finished(again)
    store.scheduler.load_failed({8})
    assert store.matched(first) == 0
