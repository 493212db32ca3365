"""Runs the suite: a session of `check` with the profiles for a level and a connector's features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.features import Feature
from kvtrail.connector.simulate.check.session import NONE_KNOWN, SHRINK_TRIES, STEPS, Checked, Known, check
from kvtrail.connector.simulate.conformance.requirements import Level
from kvtrail.connector.simulate.run import Unbuildable

OTHER_LEVEL = "run with `--level extended`"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to test a connector.

    Attributes:
        connector: the connector's name, as the user gave it.
        config: its `kv_connector_extra_config`; None where each workload draws its own.
        level: `core`, `extended` or `all`.
        steps: number of scheduling steps.
        seed: the first seed.
        cls: the connector's untraced class.
        claimed: the features that it claims.
        driven: the profiles to run, in order.
        not_driven: why other profiles do not run, by profile.
        at: the time of the request.
    """

    connector: str
    config: Mapping[str, Any] | None
    level: str
    steps: int
    seed: int
    cls: type
    claimed: Sequence[Feature]
    driven: tuple[str, ...]
    not_driven: Mapping[str, str]
    at: datetime


def asked_of(
    connector: str,
    *,
    config: Mapping[str, Any] | None = None,
    level: str = Level.CORE.value,
    steps: int | None = None,
    seed: int = 0,
) -> Asked:
    """The tests of a connector at a level. The same arguments give the same workloads on each machine.

    Args:
        connector: a name that vLLM knows, or `module:Class`.
        config: its `kv_connector_extra_config`; without one, it is drawn from the settings that the connector declares.

    Raises:
        Unbuildable: there is no such connector; the text says why.
    """
    try:
        cls, claimed = features.class_of(connector), features.claimed(connector, config or {})
    except (AttributeError, ImportError) as missing:
        raise Unbuildable(str(missing)) from missing
    driven, not_driven = features.profiles(connector, config, claimed)
    if level == Level.CORE:
        driven = tuple(each for each in driven if each not in features.NEEDS)
        not_driven = dict.fromkeys(features.NEEDS, OTHER_LEVEL)
    most = STEPS if steps is None else steps
    return Asked(connector, config, level, most, seed, cls, claimed, driven, not_driven, datetime.now(UTC))


def run(
    asked: Asked,
    *,
    shrink_tries: int | None = SHRINK_TRIES,
    known: Known = NONE_KNOWN,
    on_progress: Callable[[Checked, str], None] = lambda checked, doing: None,
) -> Checked:
    """Run the session of `check`.

    Args:
        known: small scenarios of earlier sessions, by the ids of the failures that they show.

    Raises:
        Unbuildable: the connector cannot be built; the text says why.
        NothingRecorded: it is not traced.
    """
    return check(
        asked.connector,
        config=None if asked.config is None else dict(asked.config),
        profiles=asked.driven,
        seed=asked.seed,
        steps=asked.steps,
        shrink_tries=shrink_tries,
        known=known,
        on_progress=on_progress,
    )
