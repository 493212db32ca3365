"""A connector, made for a re-run: its class by name, and vLLM's configuration as recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtrail.connector.known import plain_name
from kvtrail.connector.known.environment import Environment, RecordedStore, Unusable, environment_for
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.rerun.calls import RecordedCalls
from kvtrail.connector.tracing.traced import Tracing
from kvtrail.tracer.events.events import Alloc

ASSUMED_BLOCK_SIZE = 16
"""vLLM's default, where none is recorded."""


def resolve(against: str) -> type:
    """The class to run against, untraced, by its name: of vLLM's registry, ours, `module:Class`, or `Faulty:<fault>:<name>`.

    Raises:
        Unusable: there is no such class here; the text says why.
    """
    from kvtrail.connector.registration import resolve as traced_class

    tiny_model.prepare_environment()
    try:
        cls = traced_class(against.removeprefix("connector:"))
    except (AttributeError, ImportError, TypeError) as error:
        why = str(error).removeprefix("kvtrail: ").partition(" For a class of your own")[0]
        raise Unusable(f"--against {against}: {why} A class of your own is module:Class.") from error
    plain: type = next(base for base in cls.__mro__ if not issubclass(base, Tracing))
    return plain


def make(
    cls: type, recorded: RecordedCalls, *, config: Mapping[str, Any] | None = None
) -> tuple[Any, Environment, int]:
    """A connector object in its recorded environment, and the block size that it was made for.

    `config` is `kv_connector_extra_config`; it overrides what was recorded.

    Raises:
        Unusable: it cannot be made here; the text says why, and what to install.
    """
    block_size = recorded.block_size or ASSUMED_BLOCK_SIZE
    blocks = (e.blocks_ids or () for c in recorded.calls for e in c.events if isinstance(e, Alloc))
    kv_cache_config = tiny_model.kv_cache(max((max(ids, default=0) for ids in blocks), default=0) + 1, block_size)
    (group,) = kv_cache_config.kv_cache_groups
    block_bytes = group.kv_cache_spec.page_size_bytes * len(group.layer_names)
    calls = tuple(call.events for call in recorded.calls)
    store = RecordedStore(recorded.connector, recorded.chunk_size, block_size, block_bytes, calls)
    environment = environment_for(cls, store)
    if recorded.block_size is None:
        environment.notes.append(f"the size of a KV block is not recorded; {block_size} tokens are assumed")
    settings = recorded.settings if environment.same_connector else {}
    settings = {**settings, **environment.settings(), **(config or {})}
    try:
        with tempfile.TemporaryDirectory() as folder:
            vllm_config = tiny_model.engine_config(
                Path(folder),
                {
                    "kv_connector": cls.__name__,
                    "kv_connector_module_path": cls.__module__,
                    "engine_id": recorded.engine,
                    "kv_connector_extra_config": settings,
                },
                drafts=recorded.drafts,
                disable_hybrid_kv_cache_manager=True,
            )
        vllm_config.cache_config.block_size = block_size  # an engine on the CPU would want a multiple of 32
        connector = environment.make(cls, vllm_config, kv_cache_config)
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise Unusable(
            f"{plain_name(cls)} cannot be made here: {error}. Install {package}, or put the folder that has it on PYTHONPATH"
        ) from error
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"{plain_name(cls)} cannot be made here: {type(error).__name__}: {error}") from error
    return connector, environment, block_size
