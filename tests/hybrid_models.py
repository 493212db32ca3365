"""Real vLLM engines on the CPU, for models with two KV cache groups each: tiny ones, with seeded random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from kvtrail.connector.simulate import tiny_model

WINDOW = 128
VOCABULARY = 256
COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"] * 2,
        "conv_dim": 64,
        "conv_L_cache": 3,
        "conv_bias": False,
        "block_dim": 64,
        "block_ff_dim": 64,
        "block_multiple_of": 32,
        "block_auto_adjust_ff_dim": False,
    },
}
"""By name: sliding windows and full attention (twice), and short convolutions, which keep a state, and full attention."""
OPTIONS = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": tiny_model.BLOCK_SIZE,
    "num_gpu_blocks_override": 120,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 192,
    "enable_prefix_caching": True,
}


def build(
    folder: Path, name: str, connector: Mapping[str, Any] | None = None, *, seed: int = 7, **overrides: Any
) -> Any:
    """A `vllm.LLM` with weights of this seed; its answers depend on the KV."""
    tiny_model.prepare_environment()
    import vllm_imported

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(COMMON | MODELS[name]))
    from vllm import LLM
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    for architecture in MODELS[name]["architectures"]:
        vllm_imported.load_model(architecture)
    options: dict[str, Any] = {**OPTIONS, "served_model_name": name, **overrides}
    if connector is not None:
        options["kv_transfer_config"] = {"kv_role": "kv_both", **connector}
    with patch.object(DummyModelLoader, "load_weights", partial(_fill, seed)):
        return LLM(model=str(folder), **options)


def tables(llm: Any, request_id: str) -> tuple[list[int], ...]:
    """The block tables of a running request, by KV cache group."""
    found: tuple[list[int], ...] = scheduler(llm).kv_cache_manager.get_block_ids(request_id)
    return found


def scheduler(llm: Any) -> Any:
    """vLLM's scheduler in an engine."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def worker_connector(llm: Any) -> Any:
    """The connector's worker side, in this process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()


def caches(llm: Any) -> list[list[torch.Tensor]]:
    """The KV caches of each group, by layer; of a state that is several tensors, each of them."""
    core = llm.llm_engine.engine_core.engine_core
    context = core.model_executor.driver_worker.worker.model_runner.compilation_config.static_forward_context
    groups = scheduler(llm).kv_cache_config.kv_cache_groups
    found = [[context[layer].kv_cache for layer in group.layer_names] for group in groups]
    return [[part for each in some for part in ([each] if torch.is_tensor(each) else each)] for some in found]


def _fill(seed: int, model: Any, *_: Any) -> None:
    """vLLM's own dummy weights are so small that most models answer the same whatever they read."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.state_dict().items()):
        if torch.is_floating_point(weight) and "rotary" not in name:
            noise = torch.randn(weight.shape, generator=generator) * tiny_model.WEIGHT_DEVIATION
            weight.copy_(noise + 1 if "norm" in name and weight.dim() == 1 else noise)
