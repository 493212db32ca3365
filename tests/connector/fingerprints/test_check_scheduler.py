"""When blocks are checked: never while somebody may still be filling them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvtrail.connector.fingerprints.plan import ADMITTED, LOADED, Group
from kvtrail.connector.fingerprints.scheduler import CheckScheduler

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


def scheduler() -> CheckScheduler:
    return CheckScheduler([Group(0, BLOCK)], hash_size=BLOCK, held=1.0, identity=lambda request: "plain")


def test_blocks_that_another_request_is_loading_are_checked_a_step_later() -> None:
    """vLLM gives blocks to others from the moment on at which their load is planned."""
    checks, loading, taking = scheduler(), request("loading", 100), request("taking", 90)
    checks.on_lookup(loading, 0, is_async=False)
    checks.on_alloc(loading, 64, table(4, 5, 6, 7))
    checks.on_lookup(taking, 64, is_async=False)
    checks.on_alloc(taking, 0, table(4, 5, 8))
    first = checks.plan_step(output(("loading", [4, 5, 6, 7], 64, 36), ("taking", [4, 5, 8], 64, 26)), 0)
    assert first is not None
    assert [(check.request_id, check.kind) for check in (*first.before, *first.loads)] == [("loading", LOADED)]
    second = checks.plan_step(output(), 1)
    assert second is not None
    assert [(check.request_id, check.kind, check.blocks) for check in second.before] == [("taking", ADMITTED, (4, 5))]
    assert checks.plan_step(output(), 2) is None, "once"


def test_blocks_that_vllm_zeroes_before_the_check_are_left_out() -> None:
    checks, taking = scheduler(), request("taking", 90)
    checks.on_lookup(taking, 64, is_async=False)
    checks.on_alloc(taking, 0, table(4, 5, 8))
    checks.plan_step(output(("taking", [4, 5, 8], 64, 26)), 0)
    after = checks.plan_step(output(zeroed=[5]), 1)
    assert after is not None
    assert [(check.kind, check.blocks) for check in after.before] == [(ADMITTED, (4,))]
