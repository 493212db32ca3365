"""The real engine on the CPU: blocks that hold what was computed are all right, and those that do not are all found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from checking import (
    ALL,
    CHUNK_BYTES,
    FAULTS,
    FULL_HIT,
    JOBS,
    Corrupt,
    Engine,
    Injected,
    Tokens,
    exchanged,
    flipped,
    its_last_block_is_named,
    last_block_is_wrong,
    layer_of_zeros,
    one_bit,
    wrong,
)
from engines import Engines

from kvtrail.connector.fingerprints.plan import HELD
from kvtrail.connector.fingerprints.result import Origin
from kvtrail.connector.fingerprints.worker import CheckWorker
from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.simulate import tiny_model

pytest_plugins = ["engines"]


@pytest.fixture
def engine(engines: Engines, expected: Tokens) -> Engine:
    """One engine for several tests in a row, which has computed and stored `JOBS` and knows their contents."""
    engine = engines.offload(ALL, chunk_size=64)
    engine.rewind(expected, 2)
    return engine


@pytest.fixture
def fresh(engines: Engines) -> Engine:
    """It, knowing nothing yet, with an empty store."""
    engine = engines.offload(ALL, chunk_size=64)
    engine.forget()
    return engine


def test_a_correct_connector_has_nothing_wrong_also_after_a_test_with_a_fault(
    engine: Engine, expected: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With preemptions, chunked prefill and prefix hits. What is checked is the same before and after: nothing is left."""
    assert engine.round(prefix="1") == expected
    counts = engine.counted()
    assert not engine.named()
    assert min(counts[look] for look in ("loaded", "admitted")) > 5, counts
    assert counts["held"] > 40
    assert counts["unknown"] == 0
    with monkeypatch.context() as patch:
        injected = Injected(patch, flipped)
        assert engine.round(prefix="2") != expected
    assert injected.touched
    engine.rewind(expected, 2)
    assert engine.round(prefix="1") == expected
    again = engine.counted()
    assert {**again, "held": 0} == {**counts, "held": 0}, "which blocks are held and checked is random"
    assert not engine.named()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_wrong_request_is_named_and_every_named_one_has_other_bytes(
    engine: Engine, expected: Tokens, monkeypatch: pytest.MonkeyPatch, fault: Corrupt
) -> None:
    injected = Injected(monkeypatch, fault)
    tokens = engine.round(prefix="1")
    assert injected.touched
    assert injected.touched <= engine.named(), "each block that was touched is found"
    assert wrong(tokens, expected) <= engine.named()
    if fault not in (one_bit,):
        assert wrong(tokens, expected), "a fault that changes nothing would prove nothing"
    kinds = {each.kind for result in engine.results for each in result.mismatches}
    assert kinds == {"drift"}


def test_a_finding_says_what_a_block_holds_instead(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        Injected(patch, layer_of_zeros)
        engine.round(prefix="2")
    (first, *_) = [each for result in engine.results if result.kind == "loaded" for each in result.mismatches]
    assert first.holds == "unknown"
    engine.results.clear()
    with monkeypatch.context() as patch:
        Injected(patch, exchanged)
        engine.round(prefix="3")
    places = [each.holds for result in engine.results if result.kind == "loaded" for each in result.mismatches]
    origins = [each for each in places if isinstance(each, Origin)]
    assert origins
    assert {*places} <= {*origins, "unknown"}, "a last block has a token of its own"
    for each in origins:
        assert each.request_id.startswith("0-demo-"), each
        assert each.token % tiny_model.BLOCK_SIZE == 0


HEALED = (exchanged, layer_of_zeros)


@pytest.mark.parametrize(
    "fault",
    [fault if fault in HEALED else pytest.param(fault, marks=pytest.mark.long) for fault in FAULTS],
    ids=lambda fault: fault.__name__,
)
def test_healing_gives_the_right_tokens(
    engine: Engine, expected: Tokens, monkeypatch: pytest.MonkeyPatch, fault: Corrupt
) -> None:
    engine.checks._judge.heals = True
    with monkeypatch.context() as patch:
        injected = Injected(patch, fault)
        assert engine.round(prefix="1") == expected
    assert injected.touched
    assert injected.touched <= engine.named()
    assert any(each.healed for each in engine.results)
    assert engine.round(prefix="2") == expected, "what was healed was stored, too"


def test_a_wrong_block_is_found_when_its_last_token_is_computed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it held before the step is what was wrong."""
    for number in range(2):
        engine.round([FULL_HIT], prefix=str(number))
    assert not engine.named()
    last_block_is_wrong(monkeypatch)
    engine.round([FULL_HIT], prefix="2")
    its_last_block_is_named(engine)


def test_a_load_that_ends_too_late_is_early(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied only when the step is over was read before it was there."""
    plain, begin, late = HostMemory.load, CheckWorker.begin, []
    monkeypatch.setattr(HostMemory, "load", lambda memory, copies: late.append((memory, copies)))

    def load_late(checks: CheckWorker, orders: Any) -> bool:
        while late:
            plain(*late.pop())
        return begin(checks, orders)

    monkeypatch.setattr(CheckWorker, "begin", load_late)
    engine.round(JOBS[:1], prefix="1")
    kinds = Counter(each.kind for result in engine.results if result.kind == "loaded" for each in result.mismatches)
    assert set(kinds) == {"early"}


def test_a_block_that_changes_while_it_is_held_is_rot(fresh: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CheckWorker.begin

    def stray(checks: CheckWorker, plan: Any) -> bool:
        """An unplanned write into a block that a request holds."""
        held = [check for check in plan.before if check.kind == HELD] if plan else []
        if held and not strays:
            strays.extend(held[0].blocks)
            checks._fill_with_zeros(strays)
        return plain(checks, plan)

    strays: list[int] = []
    monkeypatch.setattr(CheckWorker, "begin", stray)
    fresh.round(JOBS[:1], prefix="0")
    found = [each for result in fresh.results for each in result.mismatches]
    assert {(each.kind, each.block, each.holds) for each in found} == {("rot", strays[0], "zeros")}


def test_a_pause_in_which_weights_may_be_replaced_forgets_what_was_computed(fresh: Engine) -> None:
    """vLLM resets the connector then, as it does before it sleeps."""
    fresh.round(JOBS[:1], prefix="0")
    known = len(fresh.checks._judge._references)
    core = fresh.llm.llm_engine.engine_core.engine_core
    core.pause_scheduler()
    core.resume_scheduler()
    fresh.round([], prefix="1")
    assert known > 10 > len(fresh.checks._judge._references)


def test_nothing_is_in_the_way_of_steps_without_a_load(fresh: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector = get_kv_transfer_group()
    calls = {name for name in dir(type(connector)) if not name.startswith("_")}
    seen: dict[str, set[str]] = {}

    def watch(name: str) -> None:
        plain = getattr(HostMemory, name)

        def copy(memory: HostMemory, copies: Any) -> None:
            seen[name] = vars(connector).keys() & calls
            plain(memory, copies)

        monkeypatch.setattr(HostMemory, name, copy)

    watch("load")
    watch("store")
    for number in range(2):
        fresh.round(JOBS[:1], prefix=str(number))
    assert seen["store"] == {"bind_connector_metadata", "register_kv_caches", "shutdown"}
    assert seen["load"] > seen["store"]


def all_is_right(engine: Engine, expected: Tokens) -> Counter[str]:
    """Over two rounds; the second loads what the first has stored. Returns what was checked."""
    engine.forget()
    for number in range(2):
        assert engine.round(prefix=str(number)) == expected
    counts = engine.counted()
    assert not [each for each in engine.results if each.mismatches]
    assert min(counts[look] for look in ("computed", "loaded", "admitted")) > 5, counts
    assert counts["unknown"] == 0
    return counts


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "large chunks": ({}, {}),
    "a small host": ({}, {"cpu_bytes_to_use": 24 * CHUNK_BYTES, "chunk_size": 64}),
    "asynchronous scheduling": ({"async_scheduling": True}, {"chunk_size": 64}),
}


@pytest.mark.long  # `test_engine.py` has such chunks, `test_some_bytes_on_engines.py` such a host
@pytest.mark.parametrize("run", RUNS)
def test_a_correct_connector_has_nothing_wrong(engines: Engines, expected: Tokens, run: str) -> None:
    overrides, extra = RUNS[run]
    assert all_is_right(engines.offload(ALL, overrides, **extra), expected)["held"] > 80


def test_blocks_that_are_loaded_layer_by_layer_are_right(engines: Engines, expected: Tokens) -> None:
    engine = engines.offload(ALL, name="Traced:other_offload:LayerwiseOffloadConnector", chunk_size=64)
    all_is_right(engine, expected)
    for number in range(2, 5):
        engine.round([FULL_HIT], prefix=str(number))
    assert not engine.named()
    assert engine.counted()["unknown"] == 0
