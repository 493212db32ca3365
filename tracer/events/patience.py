"""The time that a connector waits for another engine before it gives up. Nothing is late before this time has passed.

A recorder declares it for each connector in the resource attribute `semconv.PATIENCE`, from the connector's own settings.
In traces without this attribute, from older recorders and from logs, vLLM's defaults apply, by the connector's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple


class Patience(NamedTuple):
    """Time limits in seconds; None if the connector has no such limit, or it is unknown.

    Attributes:
        load_s: limit for the other engine's part of an asynchronous load.
        keep_s: limit for another engine to read the blocks of an ended request.
    """

    load_s: float | None = None
    keep_s: float | None = None


MARGIN_S = 60.0
"""Seconds after its own limit, or after the end of a lease, from which a connector is late."""
NIXL_S, MOONCAKE_S = 480.0, 480.0
_BY_DEFAULT = {
    "NixlPushConnector": Patience(NIXL_S, NIXL_S),
    "NixlPullConnector": Patience(None, NIXL_S),
    "NixlConnector": Patience(None, NIXL_S),
    "MooncakeConnector": Patience(MOONCAKE_S, MOONCAKE_S),
    "MoRIIOConnector": Patience(120.0, 60.0),
}
"""The defaults of vLLM 0.32. A NIXL prefill engine extends its lease as long as the decoding engine sends heartbeats."""


def declaration(patience: Mapping[str, Patience]) -> str:
    """The attribute's value: JSON, the known limits by connector name."""
    known = {
        name: {limit: value for limit, value in each._asdict().items() if value is not None}
        for name, each in sorted(patience.items())
    }
    return json.dumps({name: each for name, each in known.items() if each}, separators=(",", ":"))


@lru_cache(maxsize=256)
def of_connector(name: str, declared: str | None) -> Patience:
    """The time limits of a connector; `declared` is the attribute's value, if its recorder wrote any."""
    by_default = _BY_DEFAULT.get(name.removeprefix("Traced"), Patience())
    if declared is None:
        return by_default
    try:
        own = json.loads(declared)[name]
        return by_default._replace(**{key: float(own[key]) for key in Patience._fields if key in own})
    except (ValueError, LookupError, TypeError, RecursionError):
        return by_default
