"""A real vLLM engine that fits a laptop: a two-layer OPT with seeded random weights, on the CPU, in this process.

vLLM's own dummy weights answer the same token to everything, so wrong KV would go unnoticed; normal weights with a standard
deviation of 0.25 answer differently for different KV, and the same for the same, whatever the batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 512
BLOCK_SIZE = 32  # vLLM's CPU attention takes multiples of 32
WEIGHT_DEVIATION = 0.25
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
"""Set before vLLM is imported; what the user has set already stays."""

OPTIONS: dict[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": BLOCK_SIZE,
    "num_gpu_blocks_override": 64,
    "max_model_len": 1024,
    "max_num_batched_tokens": 48,
    "scheduler_reserve_full_isl": False,
    "enable_prefix_caching": True,
}
"""vLLM's engine arguments. The block pool holds about three requests of the demo's size and a step 48 tokens, so that
requests queue, prefill in pieces and preempt each other. `scheduler_reserve_full_isl` is off for the same reason: with it,
vLLM would admit a request only when the whole of it fits."""


def prepare_environment() -> None:
    """Make vLLM run in this process, quietly, on two cores."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def write_model(folder: Path) -> None:
    """Write the model's configuration; its weights are made when it is loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 128,
        "word_embed_proj_dim": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "torch_dtype": "float32",
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))


def build(folder: Path, connector: Mapping[str, Any] | None = None, *, seed: int = 0, **overrides: Any) -> Any:
    """A `vllm.LLM` over a model written to `folder`, with the given `kv_transfer_config`, or without a connector."""
    prepare_environment()
    write_model(folder)
    from vllm import LLM

    options: dict[str, Any] = {**OPTIONS, "seed": seed, **overrides}
    if connector is not None:
        options["kv_transfer_config"] = {"kv_role": "kv_both", **connector}
    llm = LLM(model=str(folder), **options)
    llm.apply_model(_Randomize(seed))
    return llm


class _Randomize:
    """Replace every weight by seeded noise. A class, because vLLM may send it to a worker."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, model: Any) -> None:
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * WEIGHT_DEVIATION)
