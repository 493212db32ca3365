"""Real engines with several KV cache groups: what is loaded is, bit by bit, what an engine without a connector computes."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="a real engine needs vLLM")

import hybrid_models

from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE

CONNECTOR = "UntracedOffloadConnector"
RNG = random.Random(0)
HEAD = [RNG.randrange(3, 256) for _ in range(300)]
PROMPTS = {
    "first": HEAD,
    "again": HEAD,
    "diverges": [*HEAD[:200], *(RNG.randrange(3, 256) for _ in range(150))],
    "goes on": [*HEAD, *(RNG.randrange(3, 256) for _ in range(400))],
    "a part": HEAD[:256],
}
"""Each is run alone, after the one before."""
MORE = 12
"""Tokens that each request generates."""


class Ran:
    """What an engine did with `PROMPTS`: the tokens of each, and what lay in its blocks, by group and place, at the end."""

    def __init__(self, llm: Any, *, forgets: bool) -> None:
        """`forgets`: vLLM's own prefix cache is emptied before each request."""
        self.tokens: dict[str, list[int]] = {}
        self.blocks: dict[str, list[dict[int, list[torch.Tensor]]]] = {}
        self.cached: dict[str, int] = {}
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=MORE, ignore_eos=True, detokenize=False)
        caches = hybrid_models.caches(llm)
        for name, prompt in PROMPTS.items():
            if forgets:
                assert llm.reset_prefix_cache()
            llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)
            while llm.llm_engine.has_unfinished_requests():
                inside = hybrid_models.scheduler(llm).requests
                if inside and (tables := hybrid_models.tables(llm, next(iter(inside)))) and all(tables):
                    self.blocks[name] = [
                        {at: [layer[block].clone() for layer in group] for at, block in enumerate(table) if block}
                        for group, table in zip(caches, tables, strict=True)
                    ]
                for output in llm.llm_engine.step():
                    self.tokens[name] = list(output.outputs[0].token_ids)
                    self.cached[name] = output.num_cached_tokens


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    built: list[Any] = []

    def build(model: str, name: str | None = None, overrides: dict[str, Any] | None = None, **extra: Any) -> Any:
        connector = None
        if name is not None:
            connector = {
                "kv_connector": name,
                "kv_connector_module_path": "kvtrail.connector",
                "kv_connector_extra_config": extra,
            }
        built.append(hybrid_models.build(tmp_path / model, model, connector, **(overrides or {})))
        return built[-1]

    yield build
    for llm in built:
        llm.llm_engine.engine_core.shutdown()
    built.clear()
    gc.collect()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """What an engine without a connector does, which goes on behind what its own prefix cache holds."""
    known: dict[str, Ran] = {}

    def of(model: str) -> Ran:
        if model not in known:
            llm = hybrid_models.build(tmp_path_factory.mktemp("plain"), model)
            known[model] = Ran(llm, forgets=False)
            llm.llm_engine.engine_core.shutdown()
        return known[model]

    return of


@pytest.mark.parametrize("model", ["gemma", "gpt-oss"])
def test_tokens_and_bytes_are_those_of_an_engine_without_a_connector(
    engine: Callable[..., Any], expected: Callable[[str], Ran], model: str
) -> None:
    plain, ours = expected(model), Ran(engine(model, CONNECTOR, chunk_size=BLOCK_SIZE), forgets=True)
    assert ours.tokens == plain.tokens
    assert len({tuple(tokens[:4]) for tokens in plain.tokens.values()}) > 2, "the answers depend on the prompts"
    assert all(tokens >= plain.cached[name] for name, tokens in ours.cached.items()), "vLLM's own cache has longer hits"
    assert ours.cached == {"first": 0, "again": 288, "diverges": 192, "goes on": 288, "a part": 224}
    for name, groups in plain.blocks.items():
        whole = (len(PROMPTS[name]) + MORE - 1) // BLOCK_SIZE  # behind its tokens, a block holds anything
        for number, (there, here) in enumerate(zip(groups, ours.blocks[name], strict=True)):
            assert there.keys() == here.keys(), (name, number)
            for place, layers in there.items():
                for layer, loaded in zip(layers, here[place], strict=True):
                    assert place >= whole or torch.equal(layer, loaded), (name, number, place)


@pytest.mark.parametrize("model", ["gemma"])
def test_large_chunks_keep_of_a_window_what_can_be_needed(
    engine: Callable[..., Any], expected: Callable[[str], Ran], model: str
) -> None:
    """A chunk of 192 tokens has six blocks of full attention, and the last four of a window of 128 tokens."""
    llm = engine(model, CONNECTOR, chunk_size=192)
    memory = hybrid_models.worker_connector(llm)._memory
    assert memory._config.rows == (4, 6)
    ours = Ran(llm, forgets=True)
    assert ours.tokens == expected(model).tokens
    assert ours.cached == {"first": 0, "again": 192, "diverges": 192, "goes on": 192, "a part": 192}


@pytest.mark.parametrize("model", ["gemma"])
def test_this_comparison_can_fail(
    engine: Callable[..., Any], expected: Callable[[str], Ran], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the blocks of windows the tokens differ."""
    plain = HostMemory.load

    def of_full_attention(self: HostMemory, copies: list[Copy]) -> None:
        plain(self, [copy for copy in copies if copy.group == 1])

    monkeypatch.setattr(HostMemory, "load", of_full_attention)
    ours = Ran(engine(model, CONNECTOR, chunk_size=BLOCK_SIZE), forgets=True)
    assert ours.tokens["first"] == expected(model).tokens["first"]
    assert ours.tokens != expected(model).tokens


@pytest.mark.parametrize("model", ["gemma"])
def test_many_requests_at_once_with_few_blocks(
    engine: Callable[..., Any], expected: Callable[[str], Ran], model: str
) -> None:
    """They preempt each other, and host memory is small, so chunks are evicted."""
    from vllm import SamplingParams

    bytes_of_chunk = 2 * 2 * BLOCK_SIZE * 2 * 32 * 4 * 2
    llm = engine(
        model,
        CONNECTOR,
        {"num_gpu_blocks_override": 44, "max_num_batched_tokens": 96, "scheduler_reserve_full_isl": False},
        chunk_size=BLOCK_SIZE,
        cpu_bytes_to_use=14 * bytes_of_chunk,
    )
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]
    first = llm.generate(prompts, params, use_tqdm=False)
    assert llm.reset_prefix_cache()
    second = llm.generate(prompts, params, use_tqdm=False)
    for outputs in (first, second):
        for name, output in zip(PROMPTS, outputs, strict=True):
            assert list(output.outputs[0].token_ids)[:MORE] == expected(model).tokens[name], name
    assert [each.outputs[0].token_ids for each in first] == [each.outputs[0].token_ids for each in second]


def test_a_model_with_a_state_is_refused(engine: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="recurrent states"):
        engine("lfm2", CONNECTOR)
