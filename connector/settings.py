"""The settings of a traced connector: `kv_connector_extra_config["kvtrail"]`, or `KVTRAIL_<NAME>` in the environment.

OpenTelemetry's own variables set the destination of the spans: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_PROTOCOL`,
`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, `OTEL_SDK_DISABLED`, `OTEL_BSP_*` and so on.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvtrail.tracer.events.semconv import Level

logger = logging.getLogger("vllm.kvtrail")


class Guard(StrEnum):
    """What to do when a lookup's answer breaks the contract of `kvtrail.tracer.events.contract`."""

    OBSERVE = "observe"
    """Record it; the scheduler gets the connector's answer."""
    HEAL = "heal"
    """Record it; the scheduler gets 0 new tokens, which is always safe: vLLM computes them itself."""
    RAISE = "raise"
    """Record it and stop the engine at once; for tests."""


class Unsampled(StrEnum):
    """What to do with requests that OpenTelemetry's sampler does not sample."""

    RECORD = "record"
    """Record them, marked as not sampled: they store, evict and hold blocks like all other requests."""
    DROP = "drop"
    """Do not record them. The engine as a whole cannot be judged then."""


class Heartbeats(StrEnum):
    """Whether a recorder sends heartbeats."""

    AUTO = "auto"
    """Only to a receiver that identifies itself as kvtrail, since other receivers do not use them. The end record is sent to
    any receiver: the sidecar may be behind it."""
    SPANS = "spans"
    """To any receiver, since the sidecar is behind it."""
    OFF = "off"
    """Never, and no end record either."""


class FingerprintStore(StrEnum):
    """The writers to the connector's store besides this engine."""

    AUTO = "auto"
    """None, unless the configuration has a role other than `kv_both`, or a location outside of the engine."""
    OWN = "own"
    """None: a block is wrong if it does not hold what this engine computed for its hash."""
    SHARED = "shared"
    """Other engines, or an earlier one: a block is wrong only if the origin of its content is known."""


class Fingerprints(StrEnum):
    """How many bytes of each KV block are compared with the bytes that were computed for its hash."""

    OFF = "off"
    SOME = "some"
    """16 words of 8 bytes."""
    ALL = "all"


class Switch(StrEnum):
    """Whether something is recorded."""

    ON = "on"
    OFF = "off"


QUEUE_MIB = 64
"""The default for the MiB of events that wait in an engine's process."""
FINGERPRINTS = {Level.BASIC: Fingerprints.OFF, Level.DETAILED: Fingerprints.SOME}
"""The default by level."""


CHOICES: Mapping[str, type[StrEnum]] = {
    "guard": Guard,
    "level": Level,
    "unsampled": Unsampled,
    "heartbeats": Heartbeats,
    "block_hashes": Switch,
    "fingerprints": Fingerprints,
    "fingerprint_store": FingerprintStore,
}
"""The settings with a fixed set of values."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one traced connector. `docs/reference.py` makes the table of docs/settings.md from this.

    Attributes:
        guard: What to do with an answer that breaks the lookup contract: record it (`observe`); record it and give the
            scheduler 0 instead (`heal`); or record it and stop the engine (`raise`). `heal` also makes vLLM recompute wrong
            bytes, and adds checksums to hand-offs between engines.
        level: How much is recorded. `basic`: every lookup, allocation, first step, preemption, plan, transfer and end, with
            their counts. `detailed`: also later steps with new information, block ids and hashes, and the keys that lookups
            claim. Eight rules need it, most of them for wrong output.
        level_file: The path of a file with a level. It is read every five seconds, so the level can change while the engine
            runs. A request keeps the level at which its blocks were allocated.
        unsampled: Whether requests that OpenTelemetry's sampler does not sample are recorded. The first connector of an
            engine decides for its process.
        heartbeats: Whether heartbeats are sent: to a receiver that identifies itself as kvtrail (`auto`), to any receiver
            (`spans`), or to none. The first connector of an engine decides for its process.
        block_hashes: Whether block hashes are recorded at level `detailed`, as the last 8 bytes of vLLM's hashes. A request's
            hash is sent once, and again after ten minutes or a loss. Stores and evictions of vLLM's own prefix cache and
            of LMCache's local CPU backend are recorded in order with lookups (`kv.cache`); this needs no KV events from vLLM.
            Without block hashes, causes of misses and the benefit of more memory are unknown, and a replay guesses which
            prompts share prefixes.
        fingerprints: How many bytes of each KV block are checked: 16 words of 8 bytes (`some`), or all. The default is `some`
            at level `detailed`, and `off` at `basic`.
        fingerprint_store: Who writes to the connector's store: only this engine (`own`), or others or an earlier engine as
            well (`shared`). `auto`: only this one, unless its role is not `kv_both`, a setting names a place outside the
            engine, or the connector is known to receive hand-offs from another engine.
        queue_mib: MiB for waiting events in each process of the engine, including the batch that is being sent: 1 to 4096.
            Half is for the events themselves, three eighths for their lists of blocks and hashes; when a part is full, the
            oldest events are dropped and counted. The first connector of an engine decides for its process.
    """

    guard: Guard = Guard.OBSERVE
    level: Level = Level.DETAILED
    level_file: str | None = None
    unsampled: Unsampled = Unsampled.RECORD
    heartbeats: Heartbeats = Heartbeats.AUTO
    block_hashes: Switch = Switch.ON
    fingerprints: Fingerprints | None = None
    fingerprint_store: FingerprintStore = FingerprintStore.AUTO
    queue_mib: int = QUEUE_MIB

    @property
    def checked_bytes(self) -> Fingerprints:
        """How many bytes of each KV block are checked."""
        return FINGERPRINTS[self.level] if self.fingerprints is None else self.fingerprints

    @classmethod
    def read(cls, given: object, environ: Mapping[str, str] = os.environ) -> Settings:
        """Settings from the configuration, then from the environment, then the defaults.

        Raises:
            ValueError: an unknown name, or an invalid value of a setting; the text has the name and the valid values.
        """
        known = [field.name for field in fields(cls)]
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise ValueError(f"kvtrail: 'kvtrail' in kv_connector_extra_config must be a mapping, not {given!r}")
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"kvtrail: unknown setting {unknown[0]!r}; known: {', '.join(known)}")
        values: dict[str, Any] = {
            name: value
            for name in known
            if (value := given.get(name, environ.get(f"KVTRAIL_{name.upper()}") or None)) is not None
        }
        for name, choices in CHOICES.items():
            if name in values:
                values[name] = _choice(name, values[name], choices)
        if not isinstance(values.get("level_file", ""), str):
            raise ValueError(f"kvtrail: level_file is {values['level_file']!r}; it must be a path")
        if "queue_mib" in values:
            values["queue_mib"] = _mebibytes(values["queue_mib"])
        return cls(**values)


def _choice(name: str, value: Any, choices: type[StrEnum]) -> StrEnum:
    try:
        return choices(value)
    except ValueError:
        raise ValueError(f"kvtrail: {name} is {value!r}; it can be {', '.join(choices)}") from None


def _mebibytes(value: Any) -> int:
    """1 to 4096."""
    with contextlib.suppress(ValueError, TypeError):
        if 1 <= int(value) <= 4096 and not isinstance(value, bool | float):
            return int(value)
    raise ValueError(f"kvtrail: queue_mib is {value!r}; it can be 1 to 4096")


class LevelSwitch:
    """The recording level of a process, which can change while the engine runs.

    Attributes:
        level: the current level.
        detailed: whether requests are recorded in detail from their next epoch on.
        any_detailed: whether any request may be recorded in detail: the level is `detailed`, or was when an epoch began.
    """

    def __init__(self) -> None:
        self.detailed = self.any_detailed = False
        self.level = Level.BASIC
        self._file: Path | None = None

    def set(self, level: Level, file: str | None) -> None:
        """Start with the level in the file, or else with this one, and follow the file if there is one."""
        self._file = None if file is None else Path(file)
        self._change(self._level_in_file() or level)

    def read(self) -> None:
        """Read the file again. A file that is absent, or holds no level, changes nothing."""
        level = self._level_in_file()
        if level is not None and level is not self.level:
            logger.info("kvtrail: level %s from now on (%s)", level, self._file)
            self._change(level)

    def _level_in_file(self) -> Level | None:
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                return Level(self._file.read_text().strip())
        return None

    def _change(self, level: Level) -> None:
        self.level, self.detailed = level, level is Level.DETAILED
        self.any_detailed = self.any_detailed or self.detailed
