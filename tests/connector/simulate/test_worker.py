"""The fake worker: the same seed gives the same failures in every process, whatever order its sets have."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.simulate.calls import Load
from kvtrail.connector.simulate.scenario import Workers
from kvtrail.connector.simulate.workers.worker import FakeWorker


class Backwards(set[str]):
    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=True))


class Forwards(set[str]):
    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))


def failed(received: set[str], seed: int) -> set[int]:
    """The blocks that fail of loads that are reported together."""
    calls: Any = SimpleNamespace(on_load=[], failed={})
    fake: Any = SimpleNamespace()
    worker = FakeWorker(SimpleNamespace(connector=None), Workers(load_failures=0.5, seed=seed), fake, calls)
    for number, name in enumerate(sorted(received)):
        blocks = tuple(range(10 * number, 10 * number + 8))
        calls.on_load[0](SimpleNamespace(request_id=name), Load(0, 256, blocks, True))
    blocks_failed: set[int] = set()
    report = SimpleNamespace(finished_recving=received, invalid_block_ids=blocks_failed)
    worker._fail(SimpleNamespace(scheduled_new_reqs=[]), report)
    return blocks_failed


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_what_was_received_makes_no_difference(seed: int) -> None:
    names = [f"request-{n}" for n in range(6)]
    assert failed(Forwards(names), seed) == failed(Backwards(names), seed) != set()
