"""Before a step the bytes of every block that it reads are compared: what is wrong is found, and named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.workers.contents import FAILED, UNWRITTEN, Secret
from kvtrail.connector.simulate.workers.own_worker import OwnWorker

PROMPTS = {"r-0": list(range(3, 103)), "r-1": list(range(200, 300))}


@pytest.fixture
def bare(tmp_path: Path) -> BareScheduler:
    """Two requests that generate."""
    made = BareScheduler(tmp_path, configuration("UntracedOffloadConnector", {"chunk_size": 64}), own_workers=True)
    for name, prompt in PROMPTS.items():
        made.add(name, prompt, 300)
    while made.scheduler.requests["r-1"].num_output_tokens < 2:
        made.step()
    return made


def cache(bare: BareScheduler, layer: str) -> Any:
    return worker(bare).model.caches[layer].tensor


def worker(bare: BareScheduler) -> OwnWorker:
    assert isinstance(bare.worker, OwnWorker)
    return bare.worker


def table(bare: BareScheduler, name: str) -> list[int]:
    (blocks,) = bare.scheduler.kv_cache_manager.get_block_ids(name)
    return list(blocks)


def found(bare: BareScheduler) -> list[str]:
    bare.step()
    return worker(bare).model.wrong


def test_right_blocks_are_compared_and_nothing_is_found(bare: BareScheduler) -> None:
    before = worker(bare).model.compared
    assert found(bare) == []
    assert worker(bare).model.compared - before == len(table(bare, "r-0")) + len(table(bare, "r-1"))


def test_a_bit_that_flips_is_found(bare: BareScheduler) -> None:
    block = table(bare, "r-1")[1]
    cache(bare, "layer.1").numpy().view(np.int32)[block, 1, 7, 63] ^= 1
    (text,) = found(bare)
    assert "r-1 reads the KV of its first" in text
    assert f"1 of them has wrong KV in layer.1, the first of them token 39 in block {block}" in text
    assert "its own KV, but for 1 of its 128 numbers" in text
    assert len(found(bare)) == 1, "it is reported once"


def test_another_requests_kv_is_named(bare: BareScheduler) -> None:
    for layer in ("layer.0", "layer.1"):
        cache(bare, layer)[table(bare, "r-0")[0]] = cache(bare, layer)[table(bare, "r-1")[2]]
    (text,) = found(bare)
    assert "32 of them have wrong KV in all layers" in text
    assert "it holds the KV of token 64 of r-1" in text


def test_another_layers_kv_is_named(bare: BareScheduler) -> None:
    block = table(bare, "r-0")[0]
    cache(bare, "layer.0")[block] = cache(bare, "layer.1")[block]
    (text,) = found(bare)
    assert "wrong KV in layer.0" in text
    assert "it holds the KV of token 0 of r-0 in layer.1" in text


def test_zeros_are_named(bare: BareScheduler) -> None:
    cache(bare, "layer.0")[table(bare, "r-0")[1], :, 5] = 0
    assert "the first of them token 37" in found(bare)[0]
    assert "it holds zeros" in found(bare)[0]


def test_a_write_into_a_block_that_no_step_reads_now_is_found(tmp_path: Path) -> None:
    """The drafts of one request use up each step, so the other only holds its blocks."""
    connector = configuration("UntracedOffloadConnector", {"chunk_size": 64})
    bare = BareScheduler(tmp_path, connector, own_workers=True, drafts=60)
    for name, prompt in PROMPTS.items():
        bare.add(name, prompt[:20], 300)
    bare.step()
    cache(bare, "layer.1")[table(bare, "r-1")[0], 0, 3] = 0.5
    scheduled: list[Any] = []
    bare.step(scheduled.append)
    assert list(scheduled[0].num_scheduled_tokens) == ["r-0"]
    (text,) = worker(bare).model.wrong
    assert (
        "r-1 holds the KV of its first 20 tokens. 1 of them has wrong KV in layer.1, the first of them token 3" in text
    )


def test_a_draft_that_turns_out_right_is_written_by_the_step_that_accepts_it(tmp_path: Path) -> None:
    """As a model does it: a block that an accepted draft has filled is complete before the next step."""
    connector = configuration("UntracedOffloadConnector", {"chunk_size": 64})
    bare = BareScheduler(tmp_path, connector, own_workers=True, drafts=3)
    request = bare.add("r-0", PROMPTS["r-0"], 200)
    layer, filled = worker(bare).model.caches["layer.1"], 0
    while request.num_output_tokens < 150:
        before = request.num_computed_tokens
        bare.step()
        accepted = request.num_computed_tokens - before - 1
        filled += accepted > 0 and request.num_computed_tokens % 32 == 0
        expected = bare.shared.prefixes.of(request)
        for at in range(before, request.num_computed_tokens):
            assert layer.secret.number(layer.words(table(bare, "r-0")[at // 32], at % 32)) == expected[at]
    assert filled
    assert found(bare) == []


def test_what_may_not_be_read_yet_is_not_compared(bare: BareScheduler) -> None:
    last = table(bare, "r-0")[-1]
    computed = bare.scheduler.requests["r-0"].num_computed_tokens
    cache(bare, "layer.0")[last, :, computed % 32 + 1 :] = 7.0
    assert found(bare) == []
    while bare.scheduler.requests["r-0"].num_computed_tokens % 32:
        assert found(bare) == [], "the model writes over it"


def test_no_two_places_hold_the_same() -> None:
    """Of any two of many tokens, layers and places inside a token, the bits differ; and all are plain floats."""
    numbers = np.array([0, 1, 2, 3, 127, 2**23 - 1, 2**23, 2**29 - 1], np.int32)
    names = ("0/layer.0", "1/layer.0"), ("0/layer.1", "1/layer.1"), ("2/layer.0", "3/layer.0")
    secrets = [Secret(heads, (64,)) for heads in names]
    tokens = [secret.words(numbers) for secret in secrets]
    rows = np.concatenate(tokens).reshape(len(numbers) * len(secrets), -1)
    assert len(np.unique(rows, axis=0)) == len(rows)
    for secret, words in zip(secrets, tokens, strict=True):
        assert [secret.number(each) for each in words] == numbers.tolist()
        assert all(other.number(words[0]) is None for other in secrets if other is not secret)
        floats = words.view(np.float32)
        assert np.isfinite(floats).all()
        assert (np.abs(floats) >= np.finfo(np.float32).tiny).all()
        assert all(len(np.unique(place)) == len(numbers) for place in words.reshape(len(numbers), -1).T)
    scribble = secrets[0].words(np.array([UNWRITTEN, FAILED], np.int32)).view(np.float32)
    assert (scribble[0] == -1.0).all()
    assert (scribble[1] == -2.0).all()


def test_each_rank_has_its_own_bytes(tmp_path: Path) -> None:
    connector = configuration("UntracedOffloadConnector", {"chunk_size": 64})
    bare = BareScheduler(tmp_path, connector, own_workers=True, tensor_parallel_size=2)
    bare.add("r-0", PROMPTS["r-0"], 300)
    while bare.scheduler.requests.get("r-0") is None or bare.scheduler.requests["r-0"].num_output_tokens < 2:
        bare.step()
    assert worker(bare).model.wrong == []
    block = table(bare, "r-0")[0]
    cache(bare, "layer.0 of rank 1")[block] = cache(bare, "layer.0")[block]
    assert "wrong KV in layer.0 of rank 1" in found(bare)[0]
    assert "it holds the KV of token 0 of r-0 in layer.0." in found(bare)[0]


def test_ranks_report_in_an_older_vllm_without_failed_loads_in_its_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

    aggregate = KVOutputAggregator.aggregate

    def older(*reports: Any) -> Any:
        whole: Any = aggregate(*reports)
        known = vars(whole.kv_connector_output).items()
        whole.kv_connector_output = SimpleNamespace(**{name: it for name, it in known if name != "failed_recving"})
        return whole

    monkeypatch.setattr(KVOutputAggregator, "aggregate", older)
    connector = configuration("UntracedOffloadConnector", {"chunk_size": 64})
    bare = BareScheduler(tmp_path, connector, own_workers=True, tensor_parallel_size=2)
    bare.add("r-0", PROMPTS["r-0"], 3)
    bare.run()
    assert worker(bare).model.wrong == []
