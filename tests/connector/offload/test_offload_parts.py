"""The OffloadConnector's parts that need no engine: configuration, settings."""

from __future__ import annotations

import pytest

from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.settings import Guard, Settings, Unsampled
from kvtrail.tracer.events.semconv import Level


def test_the_defaults() -> None:
    config = OffloadConfig.read({}, hash_size=16, groups=[Group(16, 1024)])
    assert (config.chunk_size, config.rows, config.chunk_bytes) == (256, (16,), 16_384)
    assert config.slots == 4 * 1024**3 // 16_384


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"chunk": 256}, "unknown key 'chunk'; known: chunk_size, cpu_bytes_to_use, kvtrail"),
        ({"chunk_size": 100}, "chunk_size is 100, which is not a multiple of vLLM's block size 32"),
        ({"chunk_size": "256"}, "chunk_size is '256'; it must be a whole number above 0"),
        ({"chunk_size": True}, "chunk_size is True; it must be a whole number above 0"),
        ({"cpu_bytes_to_use": 0}, "cpu_bytes_to_use is 0; it must be a whole number above 0"),
        (
            {"cpu_bytes_to_use": 8191},
            r"cpu_bytes_to_use is 8191, which is less than one chunk of 256 tokens \(8192 bytes",
        ),
    ],
)
def test_bad_configuration_is_refused_in_one_sentence(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        OffloadConfig.read(given, hash_size=32, groups=[Group(32, 1024)])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gaurd": "heal"}, "unknown setting 'gaurd'; known: guard"),
        ({"guard": "mend"}, "guard is 'mend'; it can be observe, heal, raise"),
        ("heal", "must be a mapping, not 'heal'"),
    ],
)
def test_bad_settings_are_refused(given: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.read(given)


def test_settings_come_from_the_configuration_then_the_environment() -> None:
    environ = {"KVTRAIL_GUARD": "heal"}
    assert Settings.read(None, {}).guard is Guard.OBSERVE
    assert Settings.read(None, environ).guard is Guard.HEAL
    assert Settings.read({"guard": "raise"}, environ).guard is Guard.RAISE
    assert Settings.read(None, {}).level is Level.DETAILED
    assert Settings.read(None, {"KVTRAIL_LEVEL": "basic"}).level is Level.BASIC
    assert Settings.read(None, {}).unsampled is Unsampled.RECORD
    assert Settings.read(None, {"KVTRAIL_UNSAMPLED": "drop"}).unsampled is Unsampled.DROP
