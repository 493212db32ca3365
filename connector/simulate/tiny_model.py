"""A real vLLM engine that fits a laptop: a two-layer OPT with seeded random weights, on the CPU, in this process.

With vLLM's own dummy weights the model always answers the same token, so wrong KV would go unnoticed. With normal weights of
a standard deviation of 0.25 the answer depends on the KV, and not on the batch. The weights are written to a file before vLLM
starts: on a CPU vLLM packs what it has loaded, so overwriting its parameters later changes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvtrail.tracer.events import cache_groups
from kvtrail.tracer.events.cache_groups import CacheGroup

VOCABULARY = 512
HIDDEN = 64
HEADS = 2
LAYERS = 2
FEED_FORWARD = 128
POSITIONS = 2048
BLOCK_SIZE = 32  # vLLM's CPU attention takes multiples of 32
WEIGHT_DEVIATION = 0.25
STATE_SLOTS = 1
"""A block of a recurrent group holds one state, of the size of one token's KV."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to the commands
    "HF_HUB_OFFLINE": "1",
}
"""Environment variables that are set before vLLM is imported, unless the user has set them."""

OPTIONS: dict[str, Any] = {
    "served_model_name": "tiny-opt",
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
"""vLLM's engine arguments. The block pool holds about three requests of the demo's size, and a step runs 48 tokens, so that
requests queue, prefill in chunks and preempt each other. `scheduler_reserve_full_isl` is off for the same reason: it would
make vLLM admit a request only when all of it fits."""


def prepare_environment() -> None:
    """Let vLLM run in this process, with few threads and few log lines."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import torch

    if not torch.cuda.is_available():  # a vLLM that was built for a GPU finds no device then, unless this is set
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")


def engine_config(folder: Path, connector: Mapping[str, Any] | None, *, drafts: int = 0, **overrides: Any) -> Any:
    """vLLM's configuration of an engine with a model in `folder`, which needs no weights.

    Args:
        connector: a `kv_transfer_config`; None runs without a connector.
        drafts: speculative tokens per step; no draft model is needed.
        overrides: vLLM's engine arguments, in place of `OPTIONS`.

    Raises:
        ValueError, ImportError: vLLM refuses a setting or the connector.
    """
    from vllm.engine.arg_utils import EngineArgs

    write_model(folder)
    options = {**OPTIONS, **overrides}
    if "kv_events_config" in options:
        from vllm.config import KVEventsConfig

        options["kv_events_config"] = KVEventsConfig(**options["kv_events_config"])
    if connector is not None:
        options["kv_transfer_config"] = {"kv_role": "kv_both", **connector}
    if drafts:
        options["speculative_config"] = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 2}
    return EngineArgs(model=str(folder), **options).create_engine_config()


def kv_cache(num_blocks: int, block_size: int, *, ranks: int = 1, groups: Sequence[CacheGroup] = ()) -> Any:
    """The model's KV cache on each of `ranks` tensor-parallel ranks, as vLLM's `KVCacheConfig`: one group of all layers, or
    one layer for each of `groups`.

    Raises:
        ValueError: a group is of a kind that this model has no layer for.
    """
    import torch
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheTensor,
        MambaSpec,
        SlidingWindowSpec,
    )

    heads, width = HEADS // ranks, HIDDEN // HEADS
    layout: Any = {"num_kv_heads": heads, "head_size": width, "dtype": torch.float32}
    sizes = [group.block_size or block_size for group in groups] or [block_size]
    page = FullAttentionSpec(block_size=max(sizes), **layout).page_size_bytes
    specs: list[Any] = [] if groups else [FullAttentionSpec(block_size=block_size, **layout)]
    for group, size in zip(groups, sizes, strict=False):
        padded: Any = {} if size == max(sizes) else {"page_size_padded": page}  # all blocks are of one pool
        match group.kind:
            case cache_groups.FULL:
                specs.append(FullAttentionSpec(block_size=size, **layout, **padded))
            case cache_groups.SLIDING if group.window:
                specs.append(SlidingWindowSpec(block_size=size, sliding_window=group.window, **layout, **padded))
            case cache_groups.CHUNKED if group.window:
                specs.append(
                    ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=group.window, **layout, **padded)
                )
            case cache_groups.MAMBA:
                mode = group.cache_mode or cache_groups.ALIGN
                state: Any = {"shapes": ((heads, STATE_SLOTS, 2 * width),), "dtypes": (torch.float32,)}
                specs.append(MambaSpec(block_size=size, mamba_cache_mode=mode, page_size_padded=page, **state))
            case kind:
                raise ValueError(
                    f"the simulated model has no layer that keeps what a KV cache group of kind {kind} keeps"
                )
    layers = [f"layer.{number}" for number in range(len(groups) or LAYERS)]
    of_specs = [[layer] for layer in layers] if groups else [layers]
    made = [KVCacheGroupSpec(names, spec) for names, spec in zip(of_specs, specs, strict=True)]
    tensor: Any = KVCacheTensor  # its fields differ from version to version
    if "layer_stride" in {each.name for each in fields(KVCacheTensor)}:
        strides = {"layer_stride": page * num_blocks, "block_stride": page}
        tensors = [tensor(page * num_blocks * len(layers), layers, **strides)]
    else:  # an older vLLM has a tensor for each layer
        tensors = [tensor(page * num_blocks, [layer]) for layer in layers]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=made)


def write_model(folder: Path, layers: int = LAYERS) -> None:
    """Write the model's configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "ffn_dim": FEED_FORWARD,
        "word_embed_proj_dim": HIDDEN,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "torch_dtype": "float32",
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))


def write(folder: Path, seed: int, layers: int = LAYERS) -> None:
    """Write the model. The norms stay ones and zeros; noise there would drown the attention."""
    import torch

    write_model(folder, layers)
    of_layers = [f"layers.{n}.{which}_layer_norm" for n in range(layers) for which in ("self_attn", "final")]
    norms = [*of_layers, "final_layer_norm"]
    weights = {f"{norm}.weight": torch.ones(HIDDEN) for norm in norms}
    weights |= {f"{norm}.bias": torch.zeros(HIDDEN) for norm in norms}
    write_weights(folder, "model.decoder", seed, _shapes(layers), weights)


def write_weights(
    folder: Path, prefix: str, seed: int, shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, Any]
) -> None:
    """Write a model's weights, whose names begin with a prefix: seeded noise of these shapes, and these tensors."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(shape, generator=generator) * WEIGHT_DEVIATION for name, shape in shapes.items()}
    # Of two engines with one folder, one may read while the other writes.
    whole = folder / f"{os.getpid()}.partial"
    save_file({f"{prefix}.{name}": tensor for name, tensor in {**noise, **weights}.items()}, whole)
    whole.replace(folder / "model.safetensors")


def _shapes(layers: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "embed_positions.weight": (POSITIONS + 2, HIDDEN),  # OPT counts positions from 2
    }
    attention = {f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "out")}
    linear = {**attention, "fc1": (FEED_FORWARD, HIDDEN), "fc2": (HIDDEN, FEED_FORWARD)}
    for layer in range(layers):
        for name, (rows, columns) in linear.items():
            shapes[f"layers.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"layers.{layer}.{name}.bias"] = (rows,)
    return shapes


def build(
    folder: Path,
    connector: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    write: Callable[[Path, int], None] = write,
    **overrides: Any,
) -> Any:
    """A `vllm.LLM` over a model that `write` writes to `folder`, from a seed, with the given `kv_transfer_config`, or without
    a connector."""
    prepare_environment()
    write(folder, seed)
    from vllm import LLM

    options: dict[str, Any] = {**OPTIONS, "seed": seed, **overrides}
    if connector is not None:
        options["kv_transfer_config"] = {"kv_role": "kv_both", **connector}
    return LLM(model=str(folder), **options)
