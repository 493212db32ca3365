"""Real vLLM engines with two KV cache groups that fit a laptop: four layers with seeded random weights, on the CPU.

Two models have layers with a sliding window beside full attention, one has recurrent states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtrail.connector.simulate import tiny_model

WINDOW = 128
VOCABULARY = 256
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
_WINDOWS: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **_WINDOWS},
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        **_WINDOWS,
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


def build(
    folder: Path, model: str, connector: Mapping[str, Any] | None = None, *, seed: int = 0, **overrides: Any
) -> Any:
    """A `vllm.LLM` of one of `MODELS`, written to `folder`, with the given `kv_transfer_config`, or without a connector."""
    tiny_model.prepare_environment()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**_SIZES, **MODELS[model]}))
    from vllm import LLM

    options: dict[str, Any] = {
        **tiny_model.OPTIONS,
        "served_model_name": model,
        "load_format": "dummy",
        "num_gpu_blocks_override": 200,
        "max_num_batched_tokens": 512,
        "seed": seed,
        **overrides,
    }
    if connector is not None:
        options["kv_transfer_config"] = {"kv_role": "kv_both", **connector}
    return LLM(model=str(folder), **options)
