"""Who an engine is: what the resource of its recorders says, and the name by which people know it.

vLLM's engine id is a random UUID unless one is configured, and new at each start. It tells engines apart, and tells nobody
which one it is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kvtrail.tracer.events import semconv

DESCRIPTION = {
    "model": semconv.MODEL.key,
    "version": semconv.ENGINE_VERSION.key,
    "kvtrail": semconv.VERSION.key,
    "service": "service.name",
    "instance": "service.instance.id",
    "pod": "k8s.pod.name",
    "host": "host.name",
}
"""What describes an engine, and the attribute of its recorders' resource that says it: `version` is vLLM's, `kvtrail` the
recorder's. `model` is the name it is served under, if it has one: what vLLM was given may be a folder of one machine."""
LAUNCHED_WITH = {
    "vLLM": semconv.ENGINE_VERSION.key, "kvtrail": semconv.VERSION.key, "connector": semconv.CONNECTOR_CLASS.key,
    "block size": semconv.BLOCK_SIZE.key, "max_num_batched_tokens": semconv.MAX_BATCHED.key,
    "max_num_seqs": semconv.MAX_SEQUENCES.key, "max_model_len": semconv.MAX_LENGTH.key,
    "scheduling_policy": semconv.POLICY.key, "async_scheduling": semconv.ASYNC_SCHEDULING.key,
    "enable_prefix_caching": semconv.PREFIX_CACHING.key, "kv_load_failure_policy": semconv.LOAD_FAILURES.key,
    "num_speculative_tokens": semconv.DRAFTS.key,
}  # fmt: skip
"""Versions and settings of an engine, by vLLM's names, and the attribute of its recorders' resource that says them."""
MOST_SETTINGS, LONGEST_SETTING = 40, 80
"""How many of the connector's own settings are compared, and how many characters of each."""
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)
_RANK = re.compile(r"_dp(\d+)$")
"""What vLLM appends to the engine id of a data-parallel rank."""
_SHORT = 8


def described(resource: Mapping[str, Any]) -> dict[str, str]:
    """The fields of `DESCRIPTION`, as a recorder's resource has them; what it lacks is empty, and so is an instance's id that
    the OpenTelemetry SDK has made up, for each process another."""
    description = {field: str(resource.get(key) or "") for field, key in DESCRIPTION.items()}
    description["model"] = str(resource.get(semconv.SERVED_MODEL.key) or description["model"])
    if _UUID.fullmatch(description["instance"]):
        description["instance"] = ""
    return description


def memory_limit(resource: Mapping[str, Any]) -> int | None:
    """The bytes that a connector may hold in host memory, as the settings in its recorder's resource have it: those of the
    OffloadConnector and of vLLM's own. None where they do not say."""
    limit = _settings(resource).get("cpu_bytes_to_use")
    return int(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < 2**63 else None


def launched_with(resource: Mapping[str, Any]) -> dict[str, str]:
    """The versions and settings of an engine, with its connector's own, as a text for each name; without what is not
    recorded."""
    found = {name: resource[key] for name, key in LAUNCHED_WITH.items() if resource.get(key) is not None}
    found |= dict(sorted(_settings(resource).items())[:MOST_SETTINGS])
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}
    return {str(name)[:LONGEST_SETTING]: text[:LONGEST_SETTING] for name, text in texts.items()}


def _settings(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The connector's own settings; empty where they are not recorded, or damaged."""
    try:
        own = json.loads(str(resource.get(semconv.CONNECTOR_SETTINGS.key)))
    except ValueError:
        return {}
    return own if isinstance(own, dict) else {}


def pool_blocks(resource: Mapping[str, Any]) -> int | None:
    """The KV blocks of the engine's pool; None where its recorder does not say."""
    blocks = resource.get(semconv.POOL_BLOCKS.key)
    return blocks if type(blocks) is int and 0 < blocks < 2**63 else None


def shown_name(engine: str, description: Mapping[str, str]) -> str:
    """The name of an engine for people: its id if somebody chose it, else its pod or its instance; else its service and host
    with the beginning of its UUID, as a host may run several; else that beginning alone. It never changes while the engine
    runs, and several engines of one pod may have the same."""
    rank = _RANK.search(engine)
    own = engine.removesuffix(rank[0]) if rank else engine
    if not _UUID.fullmatch(own):
        return engine
    name = description["pod"] or description["instance"]
    if not name and description["host"]:
        place = " on ".join(filter(None, (description["service"], description["host"])))
        name = f"{place} ({own[:_SHORT]})"
    name = name or own[:_SHORT]
    return f"{name} dp{rank[1]}" if rank else name


def descriptions(resources: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """By engine id: what these resources say of it. A later recorder replaces what an earlier one said."""
    known: dict[str, dict[str, str]] = {}
    for resource in resources:
        if isinstance(engine := resource.get(semconv.ENGINE_ID.key), str):
            description = known.setdefault(engine, described({}))
            description.update({field: text for field, text in described(resource).items() if text})
    return known


def names(known: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The names of engines, by id, from their descriptions: those that several would have are distinguished by the beginning
    of each one's id, or by all of it."""
    plain = {engine: shown_name(engine, description) for engine, description in known.items()}
    apart = dict(plain)
    for length in (_SHORT, None):
        often = Counter(apart.values())
        apart = {e: f"{plain[e]} ({e[:length]})" if often[name] > 1 else name for e, name in apart.items()}
    return apart


def listed(known: Mapping[str, Mapping[str, str]], open_requests: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The engines by id, each with its `name`, the fields of its description, and how many of its requests are `open`. One
    that has open requests is listed even if nothing is known of it."""
    listed = {engine: {"name": name, **known[engine], "open": 0} for engine, name in names(known).items()}
    for engine, count in open_requests.items():
        listed.setdefault(engine, {"name": engine, **described({}), "open": 0})["open"] = count
    return listed
