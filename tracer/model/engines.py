"""The description of an engine, from the resource of its recorders, and its name for people.

Unless one is configured, vLLM's engine id is a random UUID, new at each start. It distinguishes engines but identifies none
to a person.
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
"""The fields of an engine's description, each with the attribute of its recorders' resource that holds it. `version` is
vLLM's, `kvtrail` the recorder's. `model` is the served name, if there is one: the name that vLLM was given may be a local
folder."""
LAUNCHED_WITH = {
    "vLLM": semconv.ENGINE_VERSION.key, "kvtrail": semconv.VERSION.key, "connector": semconv.CONNECTOR_CLASS.key,
    "block size": semconv.BLOCK_SIZE.key, "max_num_batched_tokens": semconv.MAX_BATCHED.key,
    "max_num_seqs": semconv.MAX_SEQUENCES.key, "max_model_len": semconv.MAX_LENGTH.key,
    "scheduling_policy": semconv.POLICY.key, "async_scheduling": semconv.ASYNC_SCHEDULING.key,
    "enable_prefix_caching": semconv.PREFIX_CACHING.key, "kv_load_failure_policy": semconv.LOAD_FAILURES.key,
    "num_speculative_tokens": semconv.DRAFTS.key,
}  # fmt: skip
"""Versions and settings of an engine, by vLLM's names, each with the attribute of its recorders' resource that holds it."""
MOST_SETTINGS, LONGEST_SETTING = 40, 80
"""The maximum number of compared settings of the connector, and the number of compared characters of each."""
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)
_RANK = re.compile(r"_dp(\d+)$")
"""The suffix that vLLM appends to the engine id of a data-parallel rank."""
_SHORT = 8


def described(resource: Mapping[str, Any]) -> dict[str, str]:
    """The fields of `DESCRIPTION` in a recorder's resource. Missing fields are empty. So is an instance id that the
    OpenTelemetry SDK generated, since each process has a different one."""
    description = {field: str(resource.get(key) or "") for field, key in DESCRIPTION.items()}
    description["model"] = str(resource.get(semconv.SERVED_MODEL.key) or description["model"])
    if _UUID.fullmatch(description["instance"]):
        description["instance"] = ""
    return description


def memory_limit(resource: Mapping[str, Any]) -> int | None:
    """The bytes that a connector may hold in host memory, from the settings in its recorder's resource. Known are the
    settings of the OffloadConnector and of vLLM's own connectors. None if they do not say."""
    limit = _settings(resource).get("cpu_bytes_to_use")
    return int(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < 2**63 else None


def launched_with(resource: Mapping[str, Any]) -> dict[str, str]:
    """The versions and settings of an engine and of its connector, as a text for each name. Names that were not recorded are
    left out."""
    found = {name: resource[key] for name, key in LAUNCHED_WITH.items() if resource.get(key) is not None}
    found |= dict(sorted(_settings(resource).items())[:MOST_SETTINGS])
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}
    return {str(name)[:LONGEST_SETTING]: text[:LONGEST_SETTING] for name, text in texts.items()}


def _settings(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The connector's own settings; empty if they are not recorded, or damaged."""
    try:
        own = json.loads(str(resource.get(semconv.CONNECTOR_SETTINGS.key)))
    except ValueError:
        return {}
    return own if isinstance(own, dict) else {}


def pool_blocks(resource: Mapping[str, Any]) -> int | None:
    """The number of KV blocks in the engine's pool; None if its recorder does not say."""
    blocks = resource.get(semconv.POOL_BLOCKS.key)
    return blocks if type(blocks) is int and 0 < blocks < 2**63 else None


def shown_name(engine: str, description: Mapping[str, str]) -> str:
    """The name of an engine for people: its id if it was configured, else its pod or its instance; else its service and host
    with the beginning of its UUID, as a host may run several engines; else this beginning alone. The name never changes
    while the engine runs. Several engines of one pod may have the same name."""
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
    """The description of each engine in these resources, by engine id. A later recorder's fields replace earlier ones."""
    known: dict[str, dict[str, str]] = {}
    for resource in resources:
        if isinstance(engine := resource.get(semconv.ENGINE_ID.key), str):
            description = known.setdefault(engine, described({}))
            description.update({field: text for field, text in described(resource).items() if text})
    return known


def names(known: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The names of engines, by id, from their descriptions. If several engines would have the same name, the beginning of the
    id, or the whole id, is added."""
    plain = {engine: shown_name(engine, description) for engine, description in known.items()}
    apart = dict(plain)
    for length in (_SHORT, None):
        often = Counter(apart.values())
        apart = {e: f"{plain[e]} ({e[:length]})" if often[name] > 1 else name for e, name in apart.items()}
    return apart


def listed(known: Mapping[str, Mapping[str, str]], open_requests: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The engines by id, each with its `name`, the fields of its description, and the number of its `open` requests. An
    engine with open requests is listed even without a description."""
    listed = {engine: {"name": name, **known[engine], "open": 0} for engine, name in names(known).items()}
    for engine, count in open_requests.items():
        listed.setdefault(engine, {"name": engine, **described({}), "open": 0})["open"] = count
    return listed
