"""A connector's KV cache events are judged as a router lives by them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvtrail.connector.simulate.check.session import Checked, check
from kvtrail.connector.simulate.judges.kv_events import KVEvents


def checked(connector: str, runs: int = 2, seed: int = 0) -> Checked:
    return check(connector, profiles=["kv-events"], steps=None, runs=runs, seed=seed, shrink_tries=0)


@pytest.mark.parametrize("connector", ["planted.reporting:Reporting", "SimpleCPUOffloadConnector"])
def test_true_events_cause_no_findings(connector: str) -> None:
    result = checked(connector)
    assert [found.failure.text for found in result.found] == []
    assert all(result.reached[f"events/{what}"] for what in ("stored", "removed", "found"))


@pytest.mark.parametrize(
    ("bug", "what"),
    [
        ("EvictionNotReported", "a block that events have stored is not found"),
        ("StoreNotReported", "an event removes what none has stored"),
        ("MoreRemoved", "a block that events have removed is found"),
        ("ReportedTooEarly", "an event stores what nobody has computed"),
        ("RemovedElsewhere", "an event removes what none has stored"),
    ],
)
def test_each_wrong_event_is_found(bug: str, what: str) -> None:
    runs = (checked(f"planted.reporting:{bug}", runs=1, seed=seed) for seed in range(3))
    assert any(f"kv-events: {what}" == found.failure.id for run in runs for found in run.found)


def test_a_connector_without_events_is_not_judged_by_them() -> None:
    result = checked("planted.chunk_store:ChunkStore", runs=1)
    assert (result.found, result.reached["events/stored"], result.reached["events/found"]) == ([], 0, 0)


def test_hashes_of_a_connectors_own_are_not_compared_with_vllms() -> None:
    """LMCache has hashes of its own: it is unknown which prompts they are of."""
    texts: list[str] = []
    events = KVEvents(lambda what, text: texts.append(what), 32)
    events.take([stored(b"its own")], 1)
    events.looked_up(SimpleNamespace(request_id="r", block_hashes=[b"\1" * 32]), 0, 32, 2)
    assert texts == []
    events.take([BlockRemoved(block_hashes=[b"another"], medium="CPU")], 3)
    assert texts == ["an event removes what none has stored"]


def test_a_block_that_was_stored_twice_is_there_until_it_is_removed_twice() -> None:
    """Chunks that share a block report it once each (vLLM 0.32, `kv_connector/v1/offloading/events.py`)."""
    texts: list[str] = []
    events = KVEvents(lambda what, text: texts.append(what), 32)
    request = SimpleNamespace(request_id="r", block_hashes=[b"\1" * 32])
    events.computed(request, 0, 32)
    name = maybe_convert_block_hash(b"\1" * 32)  # type: ignore[arg-type]
    events.take([stored(name), stored(name), BlockRemoved(block_hashes=[name], medium="CPU")], 1)
    assert (events.listed(request), events.stored, events.removed, events.found) == (32, 2, 1, 0)
    events.looked_up(request, 0, 32, 2)
    assert texts == []
    events.take([BlockRemoved(block_hashes=[name], medium="CPU")], 3)
    events.looked_up(request, 0, 32, 4)
    assert (events.listed(request), texts) == (0, ["a block that events have removed is found"])


def test_a_store_that_the_same_step_takes_back_misleads_no_router() -> None:
    """A step's failed load spoils what the step computed. The connector has reported it already, and takes it back."""
    texts: list[str] = []
    events = KVEvents(lambda what, text: texts.append(what), 32)
    request = SimpleNamespace(request_id="r", block_hashes=[b"\1" * 32, b"\2" * 32])
    events.computed(request, 0, 32)
    known, spoilt = (maybe_convert_block_hash(each) for each in request.block_hashes)  # type: ignore[arg-type]
    events.take([stored(known), stored(spoilt), BlockRemoved(block_hashes=[spoilt], medium="CPU")], 1)
    assert (events.listed(request), texts) == (32, [])
    events.take([stored(spoilt)], 2)
    assert texts == ["an event stores what nobody has computed"]


def stored(name: Any) -> Any:
    return BlockStored(
        block_hashes=[name],
        parent_block_hash=None,
        token_ids=[],
        block_size=32,
        lora_id=None,
        medium="CPU",
        lora_name=None,
    )
