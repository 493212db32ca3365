"""Connector names: finds the class for a name, and registers the names with vLLM."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, wraps
from typing import Any

from kvtrail.connector.known import importable_as
from kvtrail.connector.vllm_version import too_old

logger = logging.getLogger("vllm.kvtrail")

TRACE = "KVTRAIL_TRACE"
"""The environment variable that traces connectors under their own names."""

TRACED = "Traced"
PLAIN_OFFLOAD = "UntracedOffloadConnector"
OURS = ("OffloadConnector", PLAIN_OFFLOAD)


@cache
def resolve(name: str) -> Any:
    """The class of one of the names that the package's docstring lists; in a vLLM that is too old, the untraced one.

    Raises:
        AttributeError: no such connector, or no such fault; the text lists those that exist. An AttributeError, because vLLM
            asks for the class as an attribute of the module.
    """
    plain_name = name.removeprefix(TRACED).removeprefix(":")
    if reason := too_old():
        if plain_name in OURS or plain_name.startswith("Faulty:"):
            raise AttributeError(f"kvtrail: {plain_name} cannot run: {reason}")
        return _plain(plain_name)
    from kvtrail.connector import faults
    from kvtrail.connector.tracing.traced import traced

    if name.startswith("Faulty:"):
        fault_name, _, plain = name.removeprefix("Faulty:").partition(":")
        fault = faults.FAULTS.get(fault_name)
        if fault is None:
            raise AttributeError(f"kvtrail: no fault {fault_name!r}; known: {', '.join(faults.FAULTS)}")
        logger.warning("kvtrail: the bug %s is injected into %s; its findings are wanted", fault_name, plain)
        return traced(faults.inject(fault, _plain(plain)))
    cls = _plain(plain_name)
    return cls if name == PLAIN_OFFLOAD else traced(cls)


def _plain(name: str) -> type:
    """The untraced class of a connector: ours, `module:Class`, or a name of vLLM's registry."""
    module, colon, attribute = name.rpartition(":")
    if colon:
        return _member(module, attribute)
    if name in OURS:
        return _member("kvtrail.connector.offload", PLAIN_OFFLOAD)
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    registry = KVConnectorFactory._registry
    if name not in registry:
        known = ", ".join(sorted(registry))
        raise AttributeError(
            f"kvtrail: vLLM knows no connector {name!r}. It knows: {known}. For a class of your own, say"
            f" 'Traced:<module>:<class>' with kv_connector_module_path 'kvtrail.connector'."
        )
    cls: type = registry[name]()
    return cls


def _member(module: str, attribute: str) -> type:
    try:
        cls: type = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise AttributeError(f"kvtrail: cannot trace {module}:{attribute}: {error}") from error
    return cls


def found_again(name: str, recorded: str | None) -> str:
    """The name by which a recorded connector can be created again: its own name if vLLM's registry has the same class under
    it, otherwise the recorded `module:Class`, if any. The names come from a file, so this imports only modules of vLLM's
    registry."""
    if ":" in name or not recorded or recorded.rpartition(":")[2] != name or recorded.startswith(("vllm.", "kvtrail.")):
        return name
    try:
        cls = _plain(name)
    except (AttributeError, ImportError):
        return recorded
    return name if importable_as(cls) == recorded else recorded


def configuration(name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The `kv_transfer_config` of a traced connector. `name` is one that the package's docstring lists, or `module:Class`."""
    own = ":" in name and not name.startswith((f"{TRACED}:", "Faulty:"))
    return {
        "kv_connector": f"{TRACED}:{name}" if own else name,
        "kv_connector_module_path": "kvtrail.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(extra),
    }


def untraced(name: str) -> Any:
    """The untraced class of a connector; None if it cannot be imported. A run reports why."""
    try:
        cls = resolve(configuration(name, {})["kv_connector"])
    except Exception:  # of whatever its module raises when it is imported
        return None
    return getattr(cls, "_kvtrail_plain", cls)


def register() -> None:
    """vLLM's `vllm.general_plugins` entry point: register the names, and trace the connectors that the environment names. It
    may be called several times in a process. With a vLLM that is too old, the engine runs and nothing is traced."""
    reason = too_old()
    if reason is not None:
        _say_untraced(reason)
    try:
        _register_names()
    except ImportError:
        return  # a vLLM without connectors
    if reason is None and (patterns := trace_patterns(os.environ.get(TRACE, ""))):
        _trace_under_own_names(patterns)


@cache
def _say_untraced(reason: str) -> None:
    logger.warning(
        "kvtrail: nothing is traced: %s. `Traced<X>` is X itself, %s does nothing, and the OffloadConnector cannot run.",
        *(reason, TRACE),
    )


def trace_patterns(value: str) -> Sequence[str]:
    """The patterns in a value of `KVTRAIL_TRACE`: comma-separated globs of connector names."""
    match value.strip().lower():
        case "" | "0" | "false" | "no" | "off":
            return ()
        case "1" | "true" | "yes" | "on":
            return ("*",)
    return tuple(filter(None, (each.strip() for each in value.split(","))))


def _trace_under_own_names(patterns: Sequence[str]) -> None:
    """Make vLLM's factory return the traced class for these names. The configuration keeps the name, so vLLM's decisions by
    name do not change. The children of a MultiConnector come from the same factory."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kvtrail.connector.tracing.traced import traced

    # In older versions one answer has the class and the number of its arguments.
    asked = "_get_connector_class_with_compat"
    asked = asked if hasattr(KVConnectorFactory, asked) else "get_connector_class"
    plain = getattr(KVConnectorFactory, asked)
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def get(factory: type, config: Any) -> Any:
        found = plain(config)
        cls, *more = found if isinstance(found, tuple) else (found,)
        if any(fnmatchcase(config.kv_connector, pattern) for pattern in patterns):
            try:
                cls = traced(cls, name=cls.__name__)
            except Exception:
                logger.exception("kvtrail: %s cannot be traced and runs untraced", config.kv_connector)
        return (cls, *more) if isinstance(found, tuple) else cls

    setattr(KVConnectorFactory, asked, classmethod(get))
    # At level debug: plugins are loaded in each of vLLM's processes, before it is known whether a connector is configured.
    logger.debug("kvtrail: %s=%s: traces what --kv-transfer-config names", TRACE, ",".join(patterns))


def _register_names() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    registry = KVConnectorFactory._registry
    plain = [name for name in registry if not name.startswith(TRACED) and name not in OURS]
    for name in (*OURS, *(TRACED + name for name in plain)):
        if name not in registry:
            KVConnectorFactory.register_connector(name, "kvtrail.connector", name)
