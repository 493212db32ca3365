"""What engines hand over to each other, read from a request's `kv_transfer_params`.

The engine that prefills returns them when a request ends, the router gives them to the engine that decodes, and that one
finds them in its request. Connectors differ in what they put in; the names here are those of vLLM 0.32's (docs/handoffs.md).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from kvtrail.connector.recording.contexts import NAMED_BY_GIVER, NAMED_BY_ROUTER
from kvtrail.connector.tracing.steps import held_at_end
from kvtrail.tracer.events.events import Side

Values = tuple[Any, ...]
"""The values of a `kv.handoff`, in the order of its fields."""


def given(
    request: Any, returned: Any, name_of: Callable[[str], str], *, computed: int, with_blocks: bool
) -> Values | None:
    """What the engine keeps for another one when a request ends; None if it is not to be handed over.

    Args:
        returned: the parameters that the connector returns for the client.
        name_of: gives a request its recorded name by its id.
        computed: tokens of which the KV is there.
    """
    asked = getattr(request, "kv_transfer_params", None)
    asked = asked if isinstance(asked, Mapping) else {}
    returned = returned if isinstance(returned, Mapping) else {}
    if not (asked.get("do_remote_decode") or returned.get("do_remote_prefill")):
        return None
    tokens = _count(returned.get("remote_num_tokens")) or computed
    blocks = returned.get("remote_block_ids") if with_blocks else None
    return _values(request, Side.GIVES, {**asked, **returned}, None, tokens, blocks, name_of)


def taken(request: Any, name_of: Callable[[str], str], *, with_blocks: bool) -> Values | None:
    """What the engine is to read of another one when a request begins; None if it is not to read anything."""
    asked = getattr(request, "kv_transfer_params", None)
    if not isinstance(asked, Mapping) or not (asked.get("do_remote_prefill") or asked.get("remote_block_ids")):
        return None
    peer, tokens = asked.get("remote_engine_id"), _count(asked.get("remote_num_tokens"))
    blocks = asked.get("remote_block_ids") if with_blocks else None
    return _values(request, Side.TAKES, asked, None if peer is None else str(peer), tokens, blocks, name_of)


def _values(
    request: Any,
    side: Side,
    parameters: Mapping[str, Any],
    peer: str | None,
    tokens: int | None,
    blocks: Any,
    name_of: Callable[[str], str],
) -> Values:
    prompt = request.prompt_token_ids
    length = len(prompt) if prompt is not None else request.num_prompt_tokens
    covered = length if tokens is None else min(tokens, length)
    digest = None if prompt is None else _digest(prompt[:covered])
    mode = parameters.get("transfer_mode")
    held = (None, None) if not blocks else held_at_end(_tuples(blocks))
    keys = _keys(parameters, name_of)
    return (side.value, keys, peer, tokens, mode and str(mode), length, digest, digest and covered, *held)


def _keys(parameters: Mapping[str, Any], name_of: Callable[[str], str]) -> tuple[str, ...]:
    keys = []
    if (request_id := parameters.get(NAMED_BY_GIVER)) is not None:
        keys.append(f"{NAMED_BY_GIVER}:{parameters.get('remote_engine_id') or ''}/{name_of(str(request_id))}")
    keys += [f"{name}:{name_of(str(parameters[name]))}" for name in NAMED_BY_ROUTER if parameters.get(name)]
    return tuple(keys)


def _digest(tokens: Any) -> str:
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=8).hexdigest()


def _tuples(blocks: Any) -> Any:
    """Block ids as a tuple of one list for each KV cache group: older connectors have one list."""
    return tuple(blocks) if blocks and not isinstance(blocks[0], int) else (list(blocks),)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
