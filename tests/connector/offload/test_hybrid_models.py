"""Real engines with several KV cache groups: what is loaded is, bit by bit, what an engine without a connector computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="a real engine needs vLLM")

import hybrid_models
from engines import OneEngine

from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE

pytest_plugins = ["engines"]
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


@pytest.fixture(scope="module")
def engine(one_engine: OneEngine, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Builds engines, or takes the one that there is, with an empty store."""
    folder = tmp_path_factory.mktemp("models")

    def engine(model: str, name: str | None = None, overrides: dict[str, Any] | None = None, **extra: Any) -> Any:
        connector = {
            "kv_connector": name,
            "kv_connector_module_path": "kvtrail.connector",
            "kv_connector_extra_config": extra,
        }
        built = partial(hybrid_models.build, folder / model, model, connector if name else None, **(overrides or {}))
        llm = one_engine.get((model, name, overrides, extra), built)
        assert llm.reset_prefix_cache(reset_connector=name is not None)
        return llm

    return engine


@pytest.fixture(scope="module")
def expected(engine: Callable[..., Any]) -> Callable[[str], Ran]:
    """What an engine without a connector does, which goes on behind what its own prefix cache holds."""
    return cache(lambda model: Ran(engine(model), forgets=False))


def differing(model: str, there: Ran, here: Ran) -> list[tuple[str, int, int]]:
    """The request, group and place of each block that is not the same, bit by bit, or is not there."""
    found = []
    for name, groups in there.blocks.items():
        whole = (len(PROMPTS[name]) + MORE - 1) // BLOCK_SIZE
        for number, (theirs, ours) in enumerate(zip(groups, here.blocks[name], strict=True)):
            is_state = model == "lfm2" and number == 0
            for place in theirs.keys() | ours.keys():
                if place >= whole and not is_state:
                    continue  # behind its tokens, a block holds anything
                in_both = place in theirs and place in ours
                if not in_both or not all(map(torch.equal, theirs[place], ours[place])):
                    found.append((name, number, place))
    return found


@pytest.mark.parametrize(
    ("model", "load_async"),
    [
        ("gemma3", False),
        pytest.param("gemma3", True, marks=pytest.mark.long),  # LFM2 loads so, and `test_beside_the_steps.py`
        pytest.param("gpt-oss", False, marks=pytest.mark.long),  # has the groups of Gemma 3
        ("lfm2", True),
    ],
)
def test_tokens_and_bytes_are_those_of_an_engine_without_a_connector(
    engine: Callable[..., Any], expected: Callable[[str], Ran], model: str, load_async: bool
) -> None:
    plain = expected(model)
    ours = Ran(engine(model, CONNECTOR, chunk_size=BLOCK_SIZE, load_async=load_async), forgets=True)
    assert ours.tokens == plain.tokens
    assert len({tuple(tokens[:4]) for tokens in plain.tokens.values()}) > 2, "the answers depend on the prompts"
    assert all(tokens >= plain.cached[name] for name, tokens in ours.cached.items()), "vLLM's own cache has longer hits"
    a_part = 192 if model == "lfm2" else 224  # a state is there where a step ended
    assert ours.cached == {"first": 0, "again": 288, "diverges": 192, "goes on": 288, "a part": a_part}
    assert differing(model, plain, ours) == []


@pytest.mark.parametrize("model", ["gemma3"])
def test_large_chunks_keep_of_a_window_what_can_be_needed(
    engine: Callable[..., Any], expected: Callable[[str], Ran], model: str
) -> None:
    """A chunk of 192 tokens has six blocks of full attention, and the last four of a window of 128 tokens."""
    plain = expected(model)
    llm = engine(model, CONNECTOR, chunk_size=192)
    memory = hybrid_models.worker_connector(llm)._memory
    assert memory._config.rows == (4, 6)
    ours = Ran(llm, forgets=True)
    assert ours.tokens == plain.tokens
    assert ours.cached == {"first": 0, "again": 192, "diverges": 192, "goes on": 192, "a part": 192}


@pytest.mark.parametrize("model", ["gemma3", "lfm2"])
def test_this_comparison_can_fail(
    engine: Callable[..., Any], expected: Callable[[str], Ran], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the blocks of windows and states, which are of the first group, bytes differ; of windows the tokens, too."""
    plain, load = expected(model), HostMemory.load

    def of_full_attention(self: HostMemory, copies: list[Copy]) -> None:
        load(self, [copy for copy in copies if copy.group == 1])

    monkeypatch.setattr(HostMemory, "load", of_full_attention)
    ours = Ran(engine(model, CONNECTOR, chunk_size=BLOCK_SIZE), forgets=True)
    assert ours.tokens["first"] == plain.tokens["first"]
    assert differing(model, plain, ours)
    assert model == "lfm2" or ours.tokens != plain.tokens


@pytest.mark.parametrize("model", ["gemma3"])
def test_many_requests_at_once_with_few_blocks(engine: Callable[..., Any], model: str) -> None:
    """They preempt each other, and host memory is small, so chunks are evicted. The tokens of the tiny LFM2 depend on who
    shares its steps, without a connector as well."""
    from vllm import SamplingParams

    overrides = {"num_gpu_blocks_override": 44, "max_num_batched_tokens": 96, "scheduler_reserve_full_isl": False}
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]

    def tokens(llm: Any) -> list[list[int]]:
        return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, params, use_tqdm=False)]

    of_plain = tokens(engine(model, None, overrides))
    bytes_of_chunk = 2 * 2 * BLOCK_SIZE * 2 * 32 * 4 * 2
    llm = engine(model, CONNECTOR, overrides, chunk_size=BLOCK_SIZE, cpu_bytes_to_use=14 * bytes_of_chunk)
    assert tokens(llm) == of_plain
    assert llm.reset_prefix_cache()
    assert tokens(llm) == of_plain


def test_states_are_not_loaded_within_the_step(engine: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="load_async is False, and vLLM reads recurrent states"):
        engine("lfm2", CONNECTOR, load_async=False)
