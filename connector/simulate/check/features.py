"""The features of a connector: which of them it claims, which were observed, and which profiles test them."""

from __future__ import annotations

import dis
import inspect
import pkgutil
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

from kvtrail.connector.known import by_class, capabilities_of, importable_as, overrides, part_of
from kvtrail.connector.registration import configuration, resolve
from kvtrail.connector.simulate.check.profiles import ORDER, PAIR_PROFILES
from kvtrail.connector.simulate.pairs.engine import can_be_paired
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.events.capabilities import Capability


class Feature(StrEnum):
    """An optional feature of a connector, beyond the core."""

    ASYNC_LOADS = "asynchronous loads"
    ASYNC_LOOKUPS = "asynchronous lookups"
    FAILURES = "failures by block"
    GROUPS = "several KV cache groups"
    RANKS = "several ranks"
    LAYERS = "layer by layer"
    PULL = "hand-off pull"
    PUSH = "hand-off push"
    EVENTS = "cache events"
    PROBE = "probe"


DECLARED = "kvtrail_features"
"""Attribute of a connector's class: names of features that its methods do not show, such as `asynchronous loads`."""
_HANDOFFS = (Feature.PULL, Feature.PUSH)
NEEDS: Mapping[str, tuple[Feature, ...]] = {
    "load-failure": (Feature.FAILURES,),
    "failed-requests": (Feature.FAILURES,),
    "groups": (Feature.GROUPS,),
    "states": (Feature.GROUPS,),
    "block-sizes": (Feature.GROUPS,),
    "ranks": (Feature.RANKS,),
    "kv-events": (Feature.EVENTS,),
    "handoff": _HANDOFFS,
    "handoffs": _HANDOFFS,
    "handoff-ranks": _HANDOFFS,
}
"""The profiles that test a feature, and the features of which a connector must claim at least one. All other profiles are
for all connectors."""
_SEEN: Mapping[Feature, tuple[str, ...]] = {
    Feature.ASYNC_LOADS: ("lookup/async",),
    Feature.ASYNC_LOOKUPS: ("lookup/deferred",),
    Feature.GROUPS: ("groups/hit",),
    Feature.RANKS: ("ranks/hit",),
    Feature.PULL: ("handoff/pull",),
    Feature.PUSH: ("handoff/push",),
    Feature.EVENTS: ("events/stored",),
    Feature.PROBE: ("probe/seen",),
}
"""The points that show a feature. Failures are injected, so points that count them show nothing."""
_NOTHING = frozenset({"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"})
"""The instructions to which `pass`, a docstring or `return` compile."""


def class_of(connector: str) -> type:
    """The untraced class of a connector, without an injected fault, by the name that the user gave.

    Raises:
        AttributeError: there is none.
    """
    cls = resolve(configuration(connector, {})["kv_connector"])
    plain: type = pkgutil.resolve_name(importable_as(getattr(cls, "_kvtrail_plain", cls)))
    return plain


def claimed(connector: str, extra: Mapping[str, Any]) -> list[Feature]:
    """The features that a connector claims, in order: by its interfaces, its overridden methods, and its declarations. One
    that passes calls on to children claims what they claim.

    Args:
        extra: its `kv_connector_extra_config`.

    Raises:
        AttributeError: there is no such connector.
    """
    cls = class_of(connector)
    known = by_class(cls)
    if known is not None and known.children is not None and (children := extra.get("connectors", ())):
        of_children = [claimed(each["kv_connector"], each.get("kv_connector_extra_config", {})) for each in children]
        return [feature for feature in Feature if any(feature in each for each in of_children)]
    declared = frozenset(getattr(cls, DECLARED, ()))
    return [each for each in Feature if each in declared or _claims(each, cls, extra)]


def profiles(
    connector: str, config: Mapping[str, Any] | None, claimed: Sequence[Feature]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The profiles to run, in order, the most important several times; and why others do not run, by profile. Several ranks
    need no claim: any connector may run on them."""
    not_driven: dict[str, str] = {}
    for name, needed in NEEDS.items():
        if Feature.RANKS not in needed and not any(each in claimed for each in needed):
            not_driven[name] = f"the connector does not claim it ({' or '.join(needed)})"
        elif name in PAIR_PROFILES and not can_be_paired(connector, config):
            not_driven[name] = "nothing here lets two engines with it hand over to each other"
    return tuple(name for name in ORDER if name not in not_driven), not_driven


def detected(reached: Counter[str]) -> list[Feature]:
    """The features that were observed in a session, in the order of `Feature`."""
    return [each for each in Feature if any(reached[point] for point in _SEEN.get(each, ()))]


def worlds(scenario: Scenario, present: Sequence[Feature]) -> frozenset[Feature]:
    """The features that a scenario needs to run. A failure in it belongs to them."""
    handed_over = frozenset({Feature.PULL, Feature.PUSH}.intersection(present) or {Feature.PULL})
    if scenario.pair is not None:
        return handed_over
    here = {
        Feature.FAILURES: bool(scenario.workers.load_failures or scenario.workers.fails),
        Feature.GROUPS: bool(scenario.groups),
        Feature.RANKS: scenario.settings.get("tensor_parallel_size", 1) > 1,
        Feature.EVENTS: "kv_events_config" in scenario.settings,
    }
    asked = any(each.handed_on for each in scenario.arrivals)
    return frozenset(feature for feature, needed in here.items() if needed) | (handed_over if asked else frozenset())


def _claims(feature: Feature, cls: type, extra: Mapping[str, Any]) -> bool:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA

    known = by_class(cls)
    hands_on = Capability.HANDS_ON in capabilities_of(cls)
    pushes = hands_on and "push" in cls.__name__.lower()
    match feature:
        case Feature.FAILURES:
            return overrides(cls, "get_block_ids_with_load_errors")
        case Feature.GROUPS:
            return issubclass(cls, SupportsHMA)
        case Feature.LAYERS:
            return _by_layer(cls, extra)
        case Feature.PULL:
            return (hands_on or (known is not None and known.hands_over)) and not pushes
        case Feature.PUSH:
            return pushes
        case Feature.EVENTS:
            return overrides(cls, "take_events")
        case Feature.PROBE:
            return part_of(cls, "probe") is not None
        case _:
            return False  # no method says so: it is declared, or seen


def _by_layer(cls: type, extra: Mapping[str, Any]) -> bool:
    """Whether layers are loaded or saved one by one. A class that declares this to vLLM is believed. Any other class must
    define both methods, since they are abstract; methods that do nothing claim nothing."""
    if overrides(cls, "requires_piecewise_for_cudagraph"):
        return bool(cast(Any, cls).requires_piecewise_for_cudagraph(dict(extra)))
    methods = (inspect.unwrap(getattr(cls, name)) for name in ("wait_for_layer_load", "save_kv_layer"))
    return any(each.opname not in _NOTHING for method in methods for each in dis.get_instructions(method))
