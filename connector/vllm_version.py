"""The installed vLLM: whether its connectors can be traced, and which facts it does not show.

Missing features are detected in vLLM's classes. The version number only decides whether vLLM is too old.
"""

from __future__ import annotations

import inspect
import logging
import re
from functools import cache

from kvtrail.connector.known.probe import Probe
from kvtrail.tracer.events.unsupported import Lack

logger = logging.getLogger("vllm.kvtrail")

_CACHE_MAP = {"insert": ["key", "block"], "pop": ["key", "block_id"], "get_one_block": ["key"]}
"""The methods that make all changes of the map in vLLM's prefix cache, with their arguments."""
OLDEST = (0, 20)
"""The oldest vLLM that is traced."""


@cache
def too_old() -> str | None:
    """Why nothing can be traced here, as a clause; None if this vLLM is new enough. A build without a usable number, from a
    checkout without tags, counts as new enough."""
    import vllm

    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: F401
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1  # noqa: F401
    except ImportError as error:
        return f"vLLM {vllm.__version__} has no KV connectors that kvtrail knows ({error})"
    number = re.match(r"(\d+)\.(\d+)(?!\.dev)", vllm.__version__)
    if number is None or tuple(map(int, number.groups())) >= OLDEST:
        return None
    return f"this is vLLM {vllm.__version__}, and kvtrail traces connectors from {'.'.join(map(str, OLDEST))} on"


def unsupported(probe: Probe) -> frozenset[Lack]:
    """The facts that this vLLM does not show for a connector with this probe."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.v1.core import block_pool
    from vllm.v1.request import Request

    shown = {
        Lack.REQUEST_STARTS: hasattr(KVConnectorBase_V1, "on_new_request"),
        Lack.HIT_SOURCES: hasattr(KVConnectorBase_V1, "get_external_cache_hit_sources"),
        Lack.BLOCK_TABLES: hasattr(KVConnectorBase_V1, "bind_kv_cache_manager"),
        Lack.STATISTICS: hasattr(Request, "take_prefill_stats"),
        Lack.PREFIX_CACHE: shows_changes(getattr(block_pool, "BlockHashToBlockMap", object)),
        Lack.PLANS: probe.knows_plans(),
    }
    found = frozenset(lack for lack, is_shown in shown.items() if not is_shown)
    _log(found)
    return found


def shows_changes(cls: type) -> bool:
    """Whether the changes of a class of maps, such as that of vLLM's prefix cache, can be followed: its methods are known."""
    try:
        forms = {name: list(inspect.signature(getattr(cls, name)).parameters)[1:] for name in _CACHE_MAP}
    except (AttributeError, TypeError, ValueError):
        return False
    return forms == _CACHE_MAP


@cache
def _log(found: frozenset[Lack]) -> None:
    if found:
        logger.info("kvtrail: this vLLM does not show %s (docs/limits.md lists the effects)", ", ".join(sorted(found)))
