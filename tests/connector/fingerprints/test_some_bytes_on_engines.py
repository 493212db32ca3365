"""Default settings on the real engine on the CPU: every wrong whole block is found, and nothing that is right is accused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checking import (
    CHUNK_BYTES,
    FULL_HIT,
    JOBS,
    Engine,
    Injected,
    Tokens,
    anothers,
    exchanged,
    its_last_block_is_named,
    last_block_is_wrong,
    wrong,
)
from engines import Engines

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.fingerprints import references
from kvtrail.connector.fingerprints.result import Origin

pytest_plugins = ["engines"]
Layers = list[np.ndarray[Any, Any]]
DEFAULT: dict[str, Any] = {}


def shifted(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    """Each block of the load holds what the one before it should."""
    if len(blocks) > 1:
        for layer in layers:
            layer[blocks[1:]] = layer[blocks[:-1]]


def emptied(rng: random.Random, layers: Layers, blocks: list[int]) -> None:
    block = rng.choice(blocks)
    for layer in layers:
        layer[block] = 0


class Stale:
    """Blocks that hold what some block held in an earlier load: of another prompt, or of another part of this one."""

    def __init__(self) -> None:
        self._before: list[Layers] = []

    def __call__(self, rng: random.Random, layers: Layers, blocks: list[int]) -> None:
        kept = [layer[blocks[0]].copy() for layer in layers]
        if self._before:
            block = rng.choice(blocks)
            for layer, old in zip(layers, rng.choice(self._before), strict=True):
                layer[block] = old
        self._before.append(kept)


WHOLE: dict[str, Callable[[], Any]] = {
    "exchanged": lambda: exchanged,
    "another's": lambda: anothers,
    "shifted": lambda: shifted,
    "empty": lambda: emptied,
    "stale": Stale,
}


@pytest.fixture
def engine(engines: Engines, expected: Tokens) -> Engine:
    """One engine for several tests in a row: it has computed and stored `JOBS`, and then loaded what it computed."""
    engine = engines.offload(DEFAULT, chunk_size=64)
    engine.rewind(expected, 2)
    return engine


def test_a_correct_connector_is_looked_at_and_not_accused_also_after_a_test_with_a_fault(
    engine: Engine, expected: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded and checked is the same before and after: nothing is left."""
    assert engine.round(prefix="2") == expected
    counts = engine.counted()
    assert not engine.named()
    assert min(counts[look] for look in ("loaded", "admitted")) > 5, counts
    assert counts["unknown"] == 0
    assert len(engine.checks._judge._references) > 50
    with monkeypatch.context() as patch:
        injected = Injected(patch, exchanged)
        assert engine.round(prefix="3") != expected
    assert injected.touched
    engine.rewind(expected, 2)
    assert engine.round(prefix="2") == expected
    again = engine.counted()
    assert (again["loaded"], again["unknown"], engine.named()) == (counts["loaded"], 0, set())


@pytest.mark.parametrize("fault", WHOLE)
def test_every_wrong_whole_block_is_found(
    engine: Engine,
    expected: Tokens,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    with monkeypatch.context() as patch:
        injected = Injected(patch, WHOLE[fault]())
        tokens = engine.round(prefix="2")
    assert injected.touched
    assert injected.touched <= engine.named()
    assert wrong(tokens, expected) <= engine.named()
    kinds = {each.kind for result in engine.results for each in result.mismatches}
    assert kinds == {"drift"}
    holds = {each.holds for result in engine.results if result.kind == "loaded" for each in result.mismatches}
    if fault == "empty":
        assert "zeros" in holds
    else:
        assert any(isinstance(each, Origin) and each.request_id.startswith("0-demo-") for each in holds), holds


@pytest.mark.parametrize("fault", ["exchanged", "empty"])
def test_healing_gives_the_right_tokens(
    engine: Engine,
    expected: Tokens,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    engine.checks._judge.heals = True
    with monkeypatch.context() as patch:
        injected = Injected(patch, WHOLE[fault]())
        assert engine.round(prefix="2") == expected
    assert injected.touched <= engine.named()
    assert any(each.healed for each in engine.results)
    engine.results.clear()
    assert engine.round(prefix="3") == expected
    assert not engine.named()


def test_a_wrong_last_block_of_a_full_hit_is_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last token is computed: the others are as they were loaded."""
    for number in range(3):
        engine.round([FULL_HIT], prefix=str(number))
    assert not engine.named()
    with monkeypatch.context() as patch:
        last_block_is_wrong(patch)
        engine.round([FULL_HIT], prefix="3")
    its_last_block_is_named(engine)


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a small host": (DEFAULT, {}, {"cpu_bytes_to_use": 24 * CHUNK_BYTES, "chunk_size": 64}),
    "asynchronous scheduling": (DEFAULT, {"async_scheduling": True}, {"chunk_size": 64}),
    "a shared store": ({**DEFAULT, "fingerprint_store": "shared"}, {}, {"chunk_size": 64}),
    "layer by layer": (DEFAULT, {}, {"name": "Traced:other_offload:LayerwiseOffloadConnector", "chunk_size": 64}),
}
LONG = ("asynchronous scheduling", "layer by layer")
"""`test_block_checks.py` has these."""


@pytest.mark.parametrize("run", [pytest.param(r, marks=pytest.mark.long) if r in LONG else r for r in RUNS])
def test_every_block_that_is_computed_or_loaded_is_looked_at_and_none_is_accused(
    engines: Engines,
    expected: Tokens,
    run: str,
) -> None:
    settings, overrides, extra = RUNS[run]
    engine = engines.offload(settings, overrides, **extra)
    engine.forget()
    for number in range(2):
        assert engine.round(prefix=str(number)) == expected
        engine.round([FULL_HIT], prefix=f"full{number}")
    counts = engine.counted()
    assert not [each for each in engine.results if each.mismatches]
    assert min(counts[look] for look in ("computed", "loaded", "admitted")) > 5, counts
    assert counts["unknown"] == 0
    assert 50 < len(engine.checks._judge._references) <= counts["computed"]
    reported = [each for each in engine.results if each.fingerprints]
    assert bool(reported) == (run == "a shared store")


@pytest.mark.parametrize("hashes", [None, 32])
def test_no_change_is_reported_when_the_reference_is_forgotten(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, hashes: int | None
) -> None:
    """All at once, as after a reset that leaves blocks of running requests in place, or where the table is too small."""
    if hashes:
        monkeypatch.setattr(references, "HASHES", hashes)
        monkeypatch.setattr(references, "DROPPED", 1)
    engine = engines.offload(DEFAULT, chunk_size=64)
    engine.forget()  # makes another table
    engine.round(JOBS[:4], "0")
    if not hashes:
        engine.checks._judge._references.clear()
    workload.run(engine.llm, [*JOBS[4:], DemoRequest("after", (5, 6, 7), 1)])
    counted = engine.counted()
    assert counted["admitted"] > 10
    assert counted["unknown"] or len(engine.checks._judge._references) <= (hashes or 0)
    assert not engine.named()
