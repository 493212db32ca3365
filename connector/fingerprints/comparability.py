"""Whether an engine alone writes to its connector's store, and which engines have comparable fingerprints."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

ELSEWHERE = ("remote", "url", "host", "addr", "server", "path", "disk", "p2p", "nixl", "config_file")
"""Words in the names of settings that name a location outside of the engine."""
OF_CODE = "kv_connector_module_path"
"""A setting of a MultiConnector's child that names a module."""
ELSEWHERE_IN_ENVIRONMENT = "LMCACHE_"


def is_own(transfer: Any, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nothing in this `KVTransferConfig` or the environment shows that others write to the connector's store, or that
    the store outlives the engine."""
    if transfer.kv_role != "kv_both":
        return False
    variables = {name: value for name, value in environ.items() if name.startswith(ELSEWHERE_IN_ENVIRONMENT)}
    given = (transfer.kv_connector_extra_config or {}, variables)
    return not any(
        value and name != OF_CODE and any(word in name.lower() for word in ELSEWHERE) and not _is_no(value)
        for each in given
        for name, value in _settings(each)
    )


def identity_of(vllm_config: Any, kv_cache_config: Any, *, of_heads: bool = False) -> str:
    """A digest of the properties besides the tokens on which KV and its hashes depend: 8 hexadecimal digits for the model,
    and 8 for all properties. `of_heads`: leave out the tensor-parallel size, on which a rank's blocks depend, but not the KV
    of a head."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    layers = [(type(group.kv_cache_spec).__name__, *group.layer_names) for group in kv_cache_config.kv_cache_groups]
    algorithm = str(getattr(cache, "prefix_caching_hash_algo", ""))
    weights = (getattr(model, "model", ""), str(getattr(model, "revision", None)))
    depends = (
        *weights,
        str(getattr(model, "dtype", "")),
        str(getattr(cache, "cache_dtype", "")),
        getattr(cache, "block_size", None),
        None if of_heads else parallel.tensor_parallel_size,
        getattr(parallel, "pipeline_parallel_size", 1),
        layers,
        algorithm,
        os.environ.get("PYTHONHASHSEED") or _seed_of(algorithm, vllm_config),
    )
    return _digest(weights) + _digest(depends)


def _digest(values: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(values).encode(), digest_size=4).hexdigest()


def _seed_of(algorithm: str, vllm_config: Any) -> str:
    """The seed of block hashes: a different one for each engine, unless this vLLM has the same seed for all."""
    from vllm.v1.core import kv_cache_utils

    same: str | None = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", None)
    return same if same is not None and "xxhash" not in algorithm else str(vllm_config.instance_id)


def _settings(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings in a mapping and in nested mappings."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        elif isinstance(value, list | tuple):
            yield from (pair for each in value if isinstance(each, Mapping) for pair in _settings(each))
        yield name, value


def _is_no(value: Any) -> bool:
    return str(value).lower() in ("false", "0", "none", "no", "off")
