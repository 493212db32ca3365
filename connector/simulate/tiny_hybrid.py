"""A tiny hybrid model: a four-layer Gemma 3 with seeded random weights and a sliding window in every other layer. vLLM
puts its layers into two KV cache groups.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtrail.connector.simulate.tiny_model import (
    FEED_FORWARD,
    HEADS,
    HIDDEN,
    POSITIONS,
    VOCABULARY,
    write_weights,
)

LAYERS = 4
WINDOW = 128
OPTIONS: dict[str, Any] = {"served_model_name": "tiny-gemma", "num_gpu_blocks_override": 80}
"""vLLM's engine arguments, in place of the other tiny model's: both groups take blocks from one pool."""
GAIN = 3.0
"""Weight of some norms, so that the answer depends on the KV. A Gemma's norms multiply by 1 plus their weight. A layer's
output must be larger than the token's own embedding, which is also the output embedding; otherwise the model repeats the last
token. Queries and keys must be long; otherwise each token attends to all others equally, and wrong blocks change nothing."""
_NORMS = {"input": 0.0, "post_attention": GAIN, "pre_feedforward": 0.0, "post_feedforward": GAIN}


def write(folder: Path, seed: int) -> None:
    """Write the model. The norms stay neutral, which is 0 in a Gemma, but those with `GAIN`."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "intermediate_size": FEED_FORWARD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        "torch_dtype": "float32",
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"norm.weight": torch.zeros(HIDDEN)}
    for layer in range(LAYERS):
        for norm, added in _NORMS.items():
            weights[f"layers.{layer}.{norm}_layernorm.weight"] = torch.full((HIDDEN,), added)
        for part in ("q", "k"):
            weights[f"layers.{layer}.self_attn.{part}_norm.weight"] = torch.full((HIDDEN // HEADS,), GAIN)
    write_weights(folder, "model", seed, _matrices(), weights)


def _matrices() -> dict[str, tuple[int, int]]:
    of_layer = {f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "o")}
    of_layer |= {f"mlp.{part}_proj": (FEED_FORWARD, HIDDEN) for part in ("gate", "up")}
    of_layer["mlp.down_proj"] = (HIDDEN, FEED_FORWARD)
    layers = {f"layers.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in of_layer.items()}
    return {"embed_tokens.weight": (VOCABULARY, HIDDEN), **layers}
