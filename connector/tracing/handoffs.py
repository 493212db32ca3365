"""Reads hand-offs between engines from a request's `kv_transfer_params`.

The prefill engine returns the parameters when a request ends, and the router passes them to the decode engine in its
request; or the router passes its own parameters to both. Connectors use different names; this module has those of vLLM 0.32's
connectors and of LMCache (docs/concepts.md).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from kvtrail.connector.recording.contexts import NAMED_BY_GIVER, NAMED_BY_ROUTER
from kvtrail.connector.tracing.steps import held_at_end
from kvtrail.tracer.events.events import FIELDS, LONGEST_REASON, Side
from kvtrail.tracer.events.semconv import Kind

Values = tuple[Any, ...]
"""The values of a `kv.handoff`, in the order of its fields."""
GIVING_TIER, TAKING_TIER = "remote_decoder", "remote_prefiller"
"""The names of the parameters for the P2P tier of vLLM's OffloadingConnector, on each side."""
LMCACHE = "disagg_spec"
"""The name of LMCache's parameters, on the giving side. They have no key: `req_id` is a counter of LMCache's router, which
starts at 1 after each restart, and the taking engine gets no parameters."""


_BETWEEN_ENGINES = {kind: [each.field for each in FIELDS[kind]] for kind in (Kind.XFER, Kind.NOTIFICATION)}
_BLOCKS = {"blocks_ids", "blocks_by_group", "peer_blocks_ids"}


def given(
    request: Any, returned: Any, name_of: Callable[[str], str], *, is_kept: bool, computed: int, with_blocks: bool
) -> Values | None:
    """The values of the hand-off that this engine keeps for another one, or has already sent, when a request ends; None if
    there is no hand-off.

    Args:
        returned: the parameters that the connector returns for the client.
        name_of: maps a request id to its recorded name.
        is_kept: whether the connector keeps the request's blocks.
        computed: number of tokens with KV.
    """
    asked = _mapping(getattr(request, "kv_transfer_params", None))
    returned = _mapping(returned)
    is_given = is_kept and (asked.get("do_remote_decode") or returned.get("do_remote_prefill"))
    is_sent = _mapping(asked.get(GIVING_TIER)) or _mapping(asked.get(LMCACHE))  # sent during the prefill, from a copy
    if not (is_given or (is_sent and computed >= request.num_prompt_tokens)):
        return None
    tokens = _count(returned.get("remote_num_tokens")) or computed
    blocks = returned.get("remote_block_ids") if with_blocks else None
    return _values(request, Side.GIVES, {**asked, **returned}, None, tokens, blocks, name_of)


def taken(request: Any, name_of: Callable[[str], str], *, with_blocks: bool) -> Values | None:
    """The values of the hand-off that this engine will read from another one when a request begins, or declines to read; None
    if there is no hand-off."""
    asked = _mapping(getattr(request, "kv_transfer_params", None))
    if not (asked.get("do_remote_prefill") or asked.get("remote_block_ids") or _mapping(asked.get(TAKING_TIER))):
        return None
    peer, tokens = asked.get("remote_engine_id"), _count(asked.get("remote_num_tokens"))
    blocks = asked.get("remote_block_ids") if with_blocks else None
    side = Side.DECLINES if getattr(request, "abort_immediately", False) else Side.TAKES
    return _values(request, side, asked, None if peer is None else str(peer), tokens, blocks, name_of)


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
    digest = None if prompt is None else digest_of(prompt[:covered])
    mode = parameters.get("transfer_mode")
    held = (None, None) if not blocks else held_at_end(blocks)
    keys = _keys(side, parameters, name_of)
    return (side.value, keys, peer, tokens, mode and str(mode), length, digest, digest and covered, *held)


def _keys(side: Side, parameters: Mapping[str, Any], name_of: Callable[[str], str]) -> tuple[str, ...]:
    keys = []
    tier = _mapping(parameters.get(GIVING_TIER if side is Side.GIVES else TAKING_TIER))
    parameters = {**parameters, **{name: tier[name] for name in NAMED_BY_ROUTER if name in tier}}
    if (request_id := parameters.get(NAMED_BY_GIVER)) is not None:
        keys.append(f"{NAMED_BY_GIVER}:{parameters.get('remote_engine_id') or ''}/{name_of(str(request_id))}")
    keys += [f"{name}:{name_of(str(parameters[name]))}" for name in NAMED_BY_ROUTER if parameters.get(name)]
    return tuple(keys)


def digest_of(tokens: Any) -> str:
    """Digest of token ids, to compare the ids of two engines."""
    return hashlib.blake2b(array("q", tokens).tobytes(), digest_size=8).hexdigest()


def as_recorded(
    kind: Kind, values: tuple[Any, ...], name_of: Callable[[str], str], *, with_blocks: bool
) -> tuple[Any, ...]:
    """The values of an event from a probe in recorded form. Events between engines have block ids only `with_blocks`, and
    `name_of` maps the other engine's request to its recorded name."""
    if kind not in _BETWEEN_ENGINES:
        return values
    named = dict(zip(_BETWEEN_ENGINES[kind], values, strict=True))
    if not with_blocks:
        named.update(dict.fromkeys(named.keys() & _BLOCKS))
    if (request_id := named["peer_request"]) is not None:
        named["peer_request"] = name_of(request_id)
    if (reason := named["reason"]) is not None:
        named["reason"] = reason[:LONGEST_REASON]
    return tuple(named.values())


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
