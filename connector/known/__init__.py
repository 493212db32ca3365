"""Known connectors: one package each, found by the class names that it declares (docs/connectors.md).

In: a connector's class or name. Out: its declaration and its parts: `probe` (the only one that an engine imports; `contents`
beside it follows the connector's store), `fake` for the bare scheduler, and `recorded` to drive a recording again. A
connector without a package is traced too.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from kvtrail.tracer.events import capabilities, patience
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.patience import Patience

PROBES = "kvtrail.probes"
"""Entry points of probes, by the name of a connector's class."""
UNTRACED = "Untraced"
"""Prefix of the class names of kvtrail's own connectors. The traced class has the name without the prefix."""


@dataclass(frozen=True, slots=True)
class KnownConnector:
    """The declaration of a package, as `CONNECTOR` in its `__init__`.

    Attributes:
        package: the package's `__name__`; its modules `probe`, `fake` and `recorded` are optional.
        classes: class names in vLLM's registry or in the connector's own package. Subclasses are recognized too.
        capabilities: the properties of its spans on which rules may rely.
        compared_by_name: whether vLLM compares its registered name, so that the name `Traced<X>` would hide it.
        other_writers: whether its lookups may find tokens that no request of this engine has computed.
        patience: its time limits for another engine, from the settings in its extra configuration. The function may import
            vLLM.
        lease: the seconds for which a connector object keeps the blocks of a request that has just ended, by the request's
            id; None if the time is not fixed.
        unrecoverable: why its installed version ends the engine when vLLM recomputes loaded tokens; None if it does not, as
            far as known. Otherwise the guard leaves wrong bytes as they are.
        children: the attribute that lists the connectors to which it passes calls.
        check_settings: the values from which `kvtrail check` draws each setting of its extra configuration.
        settings_when_full: the values that replace them in runs with a full store.
        hands_over: whether engines with it in one process hand over to each other, with the `stand_in` in its package.
        check_children: the connectors from which `kvtrail check` draws two children.
    """

    package: str
    classes: tuple[str, ...]
    capabilities: frozenset[Capability] = frozenset()
    compared_by_name: bool = False
    other_writers: bool = False
    patience: Callable[[Mapping[str, Any]], Patience] | None = None
    lease: Callable[[Any, str], float | None] | None = None
    unrecoverable: Callable[[], str | None] | None = None
    children: str | None = None
    check_settings: Mapping[str, Any] = field(default_factory=dict)
    settings_when_full: Mapping[str, Any] = field(default_factory=dict)
    check_children: tuple[str, ...] = ()
    hands_over: bool = False

    def part(self, module: str) -> Any:
        """The object that a module of the package defines under its own name in capitals (PROBE, FAKE or RECORDED): a class,
        or for `recorded` a function. None without the module."""
        name = f"{self.package}.{module}"
        if importlib.util.find_spec(name) is None:
            return None
        return getattr(importlib.import_module(name), module.upper())


@cache
def _by_class() -> dict[str, KnownConnector]:
    folders = (
        importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__) if each.ispkg
    )
    return {name: folder.CONNECTOR for folder in folders for name in folder.CONNECTOR.classes}


def by_name(name: str) -> KnownConnector | None:
    """The connector that has a class of this name."""
    return _by_class().get(name)


def by_class(cls: type) -> KnownConnector | None:
    """The connector of this class, or of one of its base classes."""
    return next((known for base in cls.__mro__ if (known := by_name(base.__name__))), None)


def unrecoverable(connector: Any) -> str | None:
    """Why a connector, or a child to which it passes calls, ends the engine when vLLM recomputes loaded tokens; None if none
    of them is known to."""
    known = by_class(type(connector))
    if known is None:
        return None
    if known.unrecoverable is not None and (why := known.unrecoverable()) is not None:
        return why
    children = () if known.children is None else getattr(connector, known.children, None) or ()
    return next((why for child in children if (why := unrecoverable(child)) is not None), None)


@cache
def part_of(cls: type, module: str) -> Any:
    """The `probe`, `fake` or `recorded` part for a connector class; None if none is declared. The author's declaration
    comes first: the attribute `kvtrail_probe` (or `kvtrail_fake`, `kvtrail_recorded`), as an object or as a name
    `module:Class`. For a probe, an entry point of the group `kvtrail.probes` comes next, named like the class or one of its
    bases. The package of a known connector comes last.

    Raises:
        ImportError, AttributeError: the author's declaration cannot be imported.
    """
    own = getattr(cls, f"kvtrail_{module}", None)
    if own is not None:
        return pkgutil.resolve_name(own) if isinstance(own, str) else own
    if module == "probe":
        declared = {each.name: each for each in entry_points(group=PROBES)}
        if entry := next((declared[base.__name__] for base in cls.__mro__ if base.__name__ in declared), None):
            return entry.load()
    known = by_class(cls)
    return None if known is None else known.part(module)


def has_other_writers(cls: type) -> bool:
    """Whether a connector's lookups may find tokens that no request of this engine has computed, according to its class
    attribute `kvtrail_other_writers` or to the package of a known connector."""
    known = by_class(cls)
    return bool(getattr(cls, "kvtrail_other_writers", known is not None and known.other_writers))


def overrides(cls: type, method: str) -> bool:
    """Whether a class, or a class between it and vLLM's base class, defines a method itself. An inherited method claims
    nothing. Two bound class methods are never the same object, so this compares the classes that define the method."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    return any(method in each.__dict__ for each in cls.__mro__ if each.__module__ not in (base.__name__, "builtins"))


def plain_name(cls: type) -> str:
    """The name of an untraced connector class in recordings."""
    return cls.__name__.removeprefix(UNTRACED)


def importable_as(cls: type) -> str:
    """An untraced connector class as `module:Class`. For a class with an injected fault, the class without the fault."""
    cls = getattr(cls, "_kvtrail_without_fault", cls)
    plain = next(base for base in cls.__mro__ if base.__module__ != "kvtrail.connector")
    return f"{plain.__module__}:{plain.__qualname__}"


def capabilities_of(cls: type) -> frozenset[Capability]:
    """The capabilities of an untraced connector class: of the known connector from which it is derived, if any, and those in
    its attribute `kvtrail_capabilities`."""
    own = frozenset(each for each in Capability if each in getattr(cls, "kvtrail_capabilities", ()))
    return own | known.capabilities if (known := by_class(cls)) else own


def capabilities_declared(cls: type) -> str:
    """The resource attribute with the capabilities of all known connectors and of `cls`."""
    declared = {name: known.capabilities for name, known in _by_class().items() if not name.startswith(UNTRACED)}
    declared[plain_name(cls)] = capabilities_of(cls)
    return capabilities.declaration({name: each for name, each in declared.items() if each})


def patience_declared(cls: type, settings: Mapping[str, Any]) -> str:
    """The resource attribute with the time limits of all known connectors and of `cls`, which may be derived from one and may
    declare its own `Patience` in its attribute `kvtrail_patience`. `settings` is the extra configuration of `cls`."""
    known = by_class(cls)
    declared = {
        name: each.patience(settings if each is known else {})
        for name, each in _by_class().items()
        if each.patience is not None
    }
    if known is not None and known.patience is not None:
        declared[plain_name(cls)] = known.patience(settings)
    if isinstance(own := getattr(cls, "kvtrail_patience", None), Patience):
        declared[plain_name(cls)] = own
    return patience.declaration(declared)
