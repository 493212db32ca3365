"""The connector under test: its configuration, what a check may do to it, and whether its own workers run here."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, permutations
from typing import Any

from kvtrail.connector.known import by_name, has_other_writers, overrides, part_of
from kvtrail.connector.registration import TRACED, configuration, resolve, untraced
from kvtrail.connector.simulate.run import Played, Unbuildable, play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario

BESIDE_BYTES = 256 * 1024
"""Size of our OffloadConnector's store, 256 tokens: the connector beside it loads what this store has evicted."""

NO_BYTES = "what they load changes no byte"
DIED = "they died in a rehearsal"
_TURNS = 4
REHEARSAL = Scenario(
    arrivals=tuple(Arrival(f"turn-{n}", (("head", 640), (f"tail-{n}", 40)), 2, 40 * n) for n in range(_TURNS)),
    resets=tuple(CachesReset(40 * n - 1) for n in range(1, _TURNS)),
    most_steps=400,
)
"""A workload that stores a prefix and loads it again: vLLM's prefix cache is reset between its requests."""


@dataclass(frozen=True, slots=True)
class ConnectorUnderTest:
    """A traced connector.

    Attributes:
        name: its name, as the user gave it: of vLLM's registry, `module:Class`, or `Faulty:<fault>:<connector>`.
        extra: its `kv_connector_extra_config`.
        beside: whether it runs in a MultiConnector, after our OffloadConnector.
        own_workers: whether its own worker side runs, on KV caches in memory, instead of fake workers.
    """

    name: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    beside: bool = False
    own_workers: bool = False

    @property
    def loads_may_fail(self) -> bool:
        """Whether it or one of its children can report failed loads."""
        names = [each["kv_connector"] for each in self.extra.get("connectors", ())] or [self.name]
        return any(overrides(cls, "get_block_ids_with_load_errors") for cls in map(untraced, names) if cls is not None)

    def configuration(self) -> dict[str, Any]:
        """The `kv_transfer_config`."""
        own = configuration(self.name, self.extra)
        if "connectors" in self.extra:
            del own["kv_connector_module_path"]  # its children are traced instead
            return own
        if not self.beside:
            return own
        first = configuration("OffloadConnector", {"chunk_size": 64, "cpu_bytes_to_use": BESIDE_BYTES})
        return {
            "kv_connector": "MultiConnector",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [first, own]},
        }


Choose = Callable[[Sequence[Any]], Any]
"""Chooses one of a setting's values."""


def varied(name: str, choose: Choose, *, full: bool = False) -> dict[str, Any]:
    """Chosen extra configuration for a known connector, from its `check_settings`, or for a class with
    `kvtrail_check_settings`; empty for others. `full`: give a known connector a small store."""
    if own := getattr(untraced(name), "kvtrail_check_settings", {}):
        return _chosen(own, choose)
    known = by_name(name.rpartition(":")[2].removeprefix(TRACED))
    if known is None:
        return {}
    settings = _chosen(known.check_settings, choose) | (_chosen(known.settings_when_full, choose) if full else {})
    if known.check_children:
        children = choose([*permutations(known.check_children, 2)])
        settings["connectors"] = [configuration(each, varied(each, choose)) for each in children]
    return settings


def in_turn(profile: str, turn: int) -> Choose:
    """A function that chooses each of a setting's n values once in n turns, in a new order each time, so that a session of a
    few turns tries all of them."""
    settings = count()

    def choose(values: Sequence[Any]) -> Any:
        round_, place = divmod(turn, len(values))
        order = random.Random(f"{profile}/{next(settings)}/{round_}").sample(range(len(values)), len(values))
        return values[order[place]]

    return choose


def _chosen(settings: Mapping[str, Any], choose: Choose) -> dict[str, Any]:
    """A chosen value for each setting; a setting for which None is chosen is left out."""
    chosen = {
        key: _chosen(values, choose) if isinstance(values, Mapping) else choose(values)
        for key, values in settings.items()
    }
    return {key: value for key, value in chosen.items() if value is not None}


def why_fake(tested: ConnectorUnderTest) -> tuple[str | None, Played | None]:
    """Why fake workers must replace the connector's own, None if its own can run; and the rehearsal, if there was one.

    Raises:
        Unbuildable: the connector cannot be built even with fake workers.
    """
    with suppress(Exception):  # a connector that cannot be imported is reported by the run
        cls = resolve(tested.configuration()["kv_connector"])
        if part_of(cls, "fake") is not None:
            return "kvtrail has a fake for what they talk to", None
        if has_other_writers(cls):
            return "what they load was computed elsewhere", None
    try:
        played = play(REHEARSAL, tested.configuration(), own_workers=True)
    except Unbuildable as refused:
        build(tested)
        return f"they cannot be made here ({str(refused).splitlines()[0]})", None
    if played.loads_read and not played.loads_copied:
        return NO_BYTES, played
    if played.error is not None and not played.loads_copied:
        return f"{DIED} ({played.error.splitlines()[0]})", played
    return None, played


def build(tested: ConnectorUnderTest) -> None:
    """Run it with fake workers and a model of one KV cache group.

    Raises:
        Unbuildable: the connector cannot be built at all.
    """
    play(REHEARSAL, tested.configuration())
