"""The real engine on the CPU: blocks that hold what was computed are all right, and those that do not are all found."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from memory import MemoryTransport

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.fingerprints.checks import Checks, Told
from kvtrail.connector.fingerprints.truth import Place, Truth
from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.recording import exporter
from kvtrail.connector.simulate import tiny_model

Tokens = dict[str, list[int]]
JOBS = workload.shared_prefixes(requests=9)
ALL = {"fingerprints": "all", "fingerprint_held": "all"}
CHUNK_BYTES = 64 * 2 * 2 * 64 * 4  # tokens, layers, heads, K and V of a head, float32
Corrupt = Callable[[random.Random, list[np.ndarray[Any, Any]], list[int]], None]


@dataclass
class Engine:
    """A real engine, and what its looks have told."""

    llm: Any
    told: list[Told] = field(default_factory=list)

    def round(self, jobs: list[DemoRequest] = JOBS, prefix: str = "r") -> Tokens:
        """Run the jobs, with vLLM's own prefix cache empty at first; their names have this prefix."""
        assert self.llm.reset_prefix_cache()
        named = [DemoRequest(f"{prefix}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
        tokens = workload.run(self.llm, named)
        after = DemoRequest(f"{prefix}-after", (5, 6, 7), 1)
        workload.run(self.llm, [after])  # the looks after the last step
        return {name.removeprefix(f"{prefix}-"): made for name, made in tokens.items()}

    def counted(self) -> Counter[str]:
        """Blocks looked at, by look; and those that nobody could judge."""
        counts: Counter[str] = Counter()
        for each in self.told:
            counts[each.look] += each.blocks
            counts["unknown"] += each.unknown
        return counts

    def named(self) -> set[str]:
        """The jobs of which wrong blocks were told."""
        return {each.request_id.partition("-")[2].rpartition("-")[0] for each in self.told if each.wrong}

    @property
    def checks(self) -> Checks:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector: Any = get_kv_transfer_group()
        checks: Checks = connector._kvtrail_checks._checks
        return checks


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Builds engines, one at a time: the next ends the one before. What they record goes nowhere."""
    patch = pytest.MonkeyPatch()
    engines: list[Any] = []

    def end() -> None:
        while engines:
            engines.pop().llm_engine.engine_core.shutdown()
        gc.collect()

    patch.setattr(exporter, "from_environment", lambda: exporter.InProcessExporter(MemoryTransport()))

    def build(
        kvtrail: dict[str, Any] | None = None,
        overrides: dict[str, Any] | None = None,
        name: str = "OffloadConnector",
        **extra: Any,
    ) -> Engine:
        end()
        connector = None
        if kvtrail is not None:
            connector = {
                "kv_connector": name,
                "kv_connector_module_path": "kvtrail.connector",
                "kv_connector_extra_config": {"kvtrail": kvtrail, **extra},
                "kv_load_failure_policy": "recompute",
            }
        llm = tiny_model.build(tmp_path_factory.mktemp("model"), connector, **(overrides or {}))
        engine = Engine(llm)
        engines.append(llm)
        if kvtrail is not None:
            engine.checks._tell = engine.told.append
        return engine

    yield build
    end()
    patch.undo()


@pytest.fixture(scope="module")
def expected(built: Callable[..., Engine]) -> Tokens:
    """The tokens of an engine without any connector."""
    return built().round()


@pytest.fixture(scope="module")
def shared(built: Callable[..., Engine], expected: Tokens) -> Engine:
    """One engine for several tests in a row."""
    return built(ALL, chunk_size=64)


@pytest.fixture
def engine(shared: Engine) -> Engine:
    """It, knowing nothing yet, with an empty store."""
    assert shared.llm.reset_prefix_cache(reset_connector=True)
    shared.round([], "before")  # the reset is told with the next step
    shared.checks._truth, shared.checks._heals = Truth(own=True), False
    shared.told.clear()
    return shared


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "preemption, chunked prefill, prefix hits": ({}, {}),
    "a small host": ({}, {"cpu_bytes_to_use": 24 * CHUNK_BYTES, "chunk_size": 64}),
    "asynchronous scheduling": ({"async_scheduling": True}, {"chunk_size": 64}),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_correct_connector_has_nothing_wrong(built: Callable[..., Engine], expected: Tokens, run: str) -> None:
    overrides, extra = RUNS[run]
    all_is_right(built(ALL, overrides, **extra), expected)


def all_is_right(engine: Engine, expected: Tokens) -> None:
    """Over two rounds of which the second loads what the first has stored."""
    for number in range(2):
        assert engine.round(prefix=str(number)) == expected
    counts = engine.counted()
    assert not [each for each in engine.told if each.wrong]
    assert min(counts[look] for look in ("computed", "loaded", "admitted")) > 5, counts
    assert counts["held"] > 3_000
    assert counts["unknown"] == 0


def flipped(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """The signs of a token's keys in one layer: what a flipped bit of each number is."""
    numbers = rng.choice(layers)[rng.choice(blocks)].view(np.float32)
    numbers[: len(numbers) // 4] *= -1


def one_bit(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """Too little to change a token, most of the time."""
    row = rng.choice(layers)[rng.choice(blocks)]
    row[rng.randrange(len(row))] ^= 1 << rng.randrange(8)


def exchanged(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """Two blocks of the load, in all layers."""
    if len(blocks) > 1:
        one, other = rng.sample(blocks, 2)
        for layer in layers:
            layer[[one, other]] = layer[[other, one]]


def anothers(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    """Another block's content, whoever's that is."""
    block = rng.choice(blocks)
    other = rng.choice([n for n in range(len(layers[0])) if n != block])
    for layer in layers:
        layer[block] = layer[other]


def layer_of_zeros(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    rng.choice(layers)[rng.choice(blocks)] = 0


def layers_exchanged(rng: random.Random, layers: list[np.ndarray[Any, Any]], blocks: list[int]) -> None:
    block = rng.choice(blocks)
    layers[0][block], layers[1][block] = layers[1][block].copy(), layers[0][block].copy()


FAULTS: list[Corrupt] = [flipped, one_bit, exchanged, anothers, layer_of_zeros, layers_exchanged]


class Injected:
    """Corrupts some of the blocks that HostMemory has just loaded.

    Attributes:
        touched: the jobs into whose blocks it has put something else.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: Corrupt, *, seed: int = 0) -> None:
        self.touched: set[str] = set()
        rng, plain = random.Random(seed), HostMemory.load

        def load(memory: HostMemory, copies: Any) -> None:
            plain(memory, copies)
            layers: list[np.ndarray[Any, Any]] = [part._cache for part in memory._parts]  # type: ignore[misc]
            for copy in copies:
                if rng.random() < 0.3:
                    before = [layer[list(copy.blocks)].copy() for layer in layers]
                    fault(rng, layers, list(copy.blocks))
                    changed = (layer[list(copy.blocks)] for layer in layers)
                    if any((one != other).any() for one, other in zip(before, changed, strict=True)):
                        self.touched.add(copy.request_id.partition("-")[2].rpartition("-")[0])

        monkeypatch.setattr(HostMemory, "load", load)


def wrong(tokens: Tokens, expected: Tokens) -> set[str]:
    return {name for name, made in tokens.items() if made != expected[name]}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_wrong_request_is_named_and_every_named_one_has_other_bytes(
    engine: Engine, expected: Tokens, monkeypatch: pytest.MonkeyPatch, fault: Corrupt
) -> None:
    assert engine.round(prefix="0") == expected
    injected = Injected(monkeypatch, fault)
    tokens = engine.round(prefix="1")
    assert injected.touched
    assert injected.touched <= engine.named(), "each block that was touched is found"
    assert wrong(tokens, expected) <= engine.named()
    if fault not in (one_bit,):
        assert wrong(tokens, expected), "a fault that changes nothing would prove nothing"
    kinds = {each.kind for told in engine.told for each in told.wrong}
    assert kinds == {"drift"}


def test_what_a_block_holds_instead_and_in_which_layers_is_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.round(prefix="0")
    with monkeypatch.context() as patch:
        Injected(patch, layer_of_zeros)
        engine.round(prefix="1")
    (first, *_) = [each for told in engine.told if told.look == "loaded" for each in told.wrong]
    assert len(first.wrong.layers) == 1
    assert first.wrong.holds == "unknown"
    engine.told.clear()
    with monkeypatch.context() as patch:
        Injected(patch, exchanged)
        engine.round(prefix="2")
    places = [each.wrong.holds for told in engine.told if told.look == "loaded" for each in told.wrong]
    assert places
    for each in places:
        assert isinstance(each, Place)
        assert each.request_id.startswith("0-demo-"), each
        assert each.token % tiny_model.BLOCK_SIZE == 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_healing_gives_the_right_tokens(
    engine: Engine, expected: Tokens, monkeypatch: pytest.MonkeyPatch, fault: Corrupt
) -> None:
    assert engine.round(prefix="0") == expected
    engine.checks._heals = True
    injected = Injected(monkeypatch, fault)
    assert engine.round(prefix="1") == expected
    assert injected.touched <= engine.named()
    assert any(each.healed for each in engine.told)
    with monkeypatch.context() as patch:
        patch.undo()
        assert engine.round(prefix="2") == expected, "what was healed was stored, too"


FULL_HIT = DemoRequest("full", tuple(range(5, 133)), 4)
"""Its last block is loaded, and the last token of it computed."""


def last_block_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads put the first block's content into the last block, too."""
    plain = HostMemory.load

    def load(memory: HostMemory, copies: Any) -> None:
        plain(memory, copies)
        first, last = copies[0].blocks[0], copies[-1].blocks[-1]
        for part in memory._parts:
            part._cache[last] = part._cache[first]

    monkeypatch.setattr(HostMemory, "load", load)


def it_holds_the_first_block(engine: Engine) -> None:
    ((told, found),) = [(told, each) for told in engine.told for each in told.wrong]
    assert (told.look, found.kind, found.token) == ("loaded", "drift", 96)
    assert isinstance(found.wrong.holds, Place)
    assert found.wrong.holds.token == 0


def test_a_wrong_block_whose_last_token_is_computed_is_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it held before the step is what was wrong."""
    for number in range(2):
        engine.round([FULL_HIT], prefix=str(number))
    assert not engine.named()
    last_block_is_wrong(monkeypatch)
    engine.round([FULL_HIT], prefix="2")
    it_holds_the_first_block(engine)


def test_a_block_that_changes_while_it_is_held_is_rot(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Checks.loads_started

    def stray(checks: Checks) -> None:
        """A write into a block that a request holds, by nobody's plan."""
        plain(checks)
        held = [block for block, last in checks._last.items() if last.is_right and last.of.startswith("0-demo-03")]
        if held and not strays:
            strays.append(held[-1][1])
            checks._groups[0].fill_with_zeros(strays)

    strays: list[int] = []
    monkeypatch.setattr(Checks, "loads_started", stray)
    engine.round(prefix="0")
    found = [each for told in engine.told for each in told.wrong]
    assert {(each.kind, each.block, each.wrong.holds) for each in found} == {("rot", strays[0], "zeros")}


def test_a_load_that_ends_too_late_is_early(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied only when the step is over was read before it was there."""
    engine.round(JOBS[:1], prefix="0")
    plain, begin, late = HostMemory.load, Checks.begin, []
    monkeypatch.setattr(HostMemory, "load", lambda memory, copies: late.append((memory, copies)))

    def load_late(checks: Checks, orders: Any) -> bool:
        while late:
            plain(*late.pop())
        return begin(checks, orders)

    monkeypatch.setattr(Checks, "begin", load_late)
    engine.round(JOBS[:1], prefix="1")
    kinds = Counter(each.kind for told in engine.told if told.look == "loaded" for each in told.wrong)
    assert set(kinds) == {"early"}


def test_a_pause_in_which_weights_may_be_replaced_forgets_what_was_computed(engine: Engine) -> None:
    """vLLM resets the connector then, as it does before it sleeps."""
    engine.round(JOBS[:1], prefix="0")
    known = len(engine.checks._truth)
    core = engine.llm.llm_engine.engine_core.engine_core
    core.pause_scheduler()
    core.resume_scheduler()
    engine.round([], prefix="1")
    assert known > 10 > len(engine.checks._truth)


def test_nothing_is_in_the_way_of_steps_without_a_load(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
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
        engine.round(JOBS[:1], prefix=str(number))
    assert seen["store"] == {"bind_connector_metadata", "register_kv_caches", "shutdown"}
    assert seen["load"] > seen["store"]


def test_a_share_of_the_hashes_is_looked_at_and_accuses_nobody(built: Callable[..., Engine], expected: Tokens) -> None:
    engine = built({"fingerprints": 0.3, "fingerprint_held": "all"}, chunk_size=64)
    for number in range(2):
        assert engine.round(prefix=str(number)) == expected
    counts = engine.counted()
    assert not [each for each in engine.told if each.wrong]
    assert 0 < counts["held"] < 20_000
    assert counts["unknown"] == 0


def test_blocks_are_looked_at_layer_by_layer_where_they_are_loaded_so(
    built: Callable[..., Engine], expected: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    engine = built(ALL, name="Traced:other_offload:LayerwiseOffloadConnector", chunk_size=64)
    all_is_right(engine, expected)
    engine.round([FULL_HIT], prefix="2")
    with monkeypatch.context() as patch:
        last_block_is_wrong(patch)
        engine.round([FULL_HIT], prefix="3")
    it_holds_the_first_block(engine)
    engine.told.clear()
    engine.checks._truth = Truth(own=True)
    engine.checks._groups[0].fill_with_zeros(range(64))
    engine.round([FULL_HIT], prefix="4")
    assert not engine.named(), "what blocks hold before their load is nobody's fault"
    assert "wait_for_layer_load" not in vars(get_kv_transfer_group()), "nothing is in the way of other steps"
