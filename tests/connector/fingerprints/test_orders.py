"""When blocks are looked at: never while somebody may still be filling them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvtrail.connector.fingerprints.orders import ADMITTED, LOADED, Group, OrderBook

BLOCK = 32


def request(name: str, tokens: int) -> Any:
    hashes = [bytes(24) + number.to_bytes(8, "big") for number in range(1, tokens // BLOCK + 1)]
    return SimpleNamespace(
        request_id=name, num_tokens=tokens, block_hashes=hashes, num_preemptions=0, num_computed_tokens=0
    )


def table(*blocks: int) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (list(blocks),))


def output(*first_steps: tuple[str, list[int], int, int], zeroed: list[int] | None = None) -> Any:
    """A step with these new requests: id, table, computed and scheduled tokens."""
    new = [
        SimpleNamespace(req_id=name, block_ids=(blocks,), num_computed_tokens=computed)
        for name, blocks, computed, _ in first_steps
    ]
    running = SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[], resumed_req_ids=set())
    return SimpleNamespace(
        scheduled_new_reqs=new, scheduled_cached_reqs=running, finished_req_ids=set(), preempted_req_ids=None,
        num_scheduled_tokens={name: scheduled for name, _, _, scheduled in first_steps}, new_block_ids_to_zero=zeroed,
    )  # fmt: skip


def book() -> OrderBook:
    return OrderBook([Group(0, BLOCK)], hash_size=BLOCK, rate=1.0, all_held=False, identity=lambda request: "plain")


def test_blocks_that_another_request_is_loading_are_looked_at_a_step_later() -> None:
    """vLLM gives blocks to others from the moment on at which their load is planned."""
    orders, loading, taking = book(), request("loading", 100), request("taking", 90)
    orders.looked_up(loading, 0, is_async=False)
    orders.allocated(loading, 64, table(4, 5, 6, 7))
    orders.looked_up(taking, 64, is_async=False)
    orders.allocated(taking, 0, table(4, 5, 8))
    first = orders.step(output(("loading", [4, 5, 6, 7], 64, 36), ("taking", [4, 5, 8], 64, 26)), 0)
    assert first is not None
    assert [(look.request_id, look.look) for look in (*first.before, *first.loads)] == [("loading", LOADED)]
    second = orders.step(output(), 1)
    assert second is not None
    assert [(look.request_id, look.look, look.blocks) for look in second.before] == [("taking", ADMITTED, (4, 5))]
    assert orders.step(output(), 2) is None, "once"


def test_blocks_that_vllm_zeroes_before_the_look_are_left_out() -> None:
    orders, taking = book(), request("taking", 90)
    orders.looked_up(taking, 64, is_async=False)
    orders.allocated(taking, 0, table(4, 5, 8))
    orders.step(output(("taking", [4, 5, 8], 64, 26)), 0)
    after = orders.step(output(zeroed=[5]), 1)
    assert after is not None
    assert [(look.look, look.blocks) for look in after.before] == [(ADMITTED, (4,))]
