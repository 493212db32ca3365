"""The real vLLM engine on the CPU: KV that was offloaded and loaded again gives the very same tokens."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from memory import MemoryTransport

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy
from kvtrail.connector.recording import exporter
from kvtrail.connector.simulate import tiny_model

Tokens = dict[str, list[int]]
JOBS = workload.shared_prefixes(requests=12)
CHUNK_BYTES = 256 * 2 * 2 * 64 * 4  # tokens, layers, heads, K and V of a head, float32


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Builds real engines, one at a time; what they record goes nowhere."""
    monkeypatch.setattr(exporter, "from_environment", lambda: exporter.InProcessExporter(MemoryTransport()))
    built: list[Any] = []

    def build(name: str | None = None, overrides: dict[str, Any] | None = None, **extra: Any) -> Any:
        connector = None
        if name is not None:
            connector = {"kv_connector": name, "kv_connector_extra_config": extra}
            if ":" in name:
                connector["kv_connector_module_path"] = "kvtrail.connector"
        built.append(tiny_model.build(tmp_path / "model", connector, **(overrides or {})))
        return built[-1]

    yield build
    for llm in built:
        llm.llm_engine.engine_core.shutdown()
    built.clear()
    gc.collect()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Copy]]:
    """What the host memory loaded and stored."""
    log: dict[str, list[Copy]] = {"load": [], "store": []}
    for what in ("load", "store"):
        plain = getattr(HostMemory, what)

        def spy(self: HostMemory, copies: list[Copy], plain: Any = plain, what: str = what) -> None:
            log[what] += copies
            plain(self, copies)

        monkeypatch.setattr(HostMemory, what, spy)
    return log


def rounds(llm: Any, jobs: list[DemoRequest] = JOBS, count: int = 2, **reset: bool) -> list[Tokens]:
    """Several rounds with vLLM's own prefix cache emptied before each."""
    tokens_by_pass = []
    for number in range(count):
        assert llm.reset_prefix_cache(**reset)
        named = [DemoRequest(f"{number}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
        tokens_by_pass.append({k.partition("-")[2]: v for k, v in workload.run(llm, named).items()})
    return tokens_by_pass


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    """The tokens of an engine without any connector."""
    llm = tiny_model.build(tmp_path_factory.mktemp("plain"))
    first, second = rounds(llm)
    assert first == second
    assert len({tuple(tokens) for tokens in first.values()}) > len(first) // 2, (
        "different prompts must give different tokens"
    )
    llm.llm_engine.engine_core.shutdown()
    return first


@pytest.mark.parametrize("name", ["OffloadConnector", "UntracedOffloadConnector"])
def test_tokens_are_the_same_over_several_rounds(
    engine: Callable[..., Any], expected: Tokens, copied: dict[str, list[Copy]], name: str
) -> None:
    llm = engine(name)
    assert rounds(llm, count=1) == [expected]
    stored_first = len(copied["store"])
    copied["load"].clear()
    assert rounds(llm, count=2) == [expected, expected]
    prefixes = 3 * 512  # each round must load at least these: vLLM itself has forgotten them
    assert sum(copy.count for copy in copied["load"]) >= 2 * prefixes
    assert len(copied["store"]) < 2 * stored_first, "what is there is not stored again"


def test_this_comparison_can_fail(
    engine: Callable[..., Any], expected: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the signs of what is stored flipped, the tokens differ: the comparison would see wrong KV, not only absurd KV."""
    plain = HostMemory.store

    def flipping(self: HostMemory, copies: list[Copy]) -> None:
        plain(self, copies)
        for copy in copies:
            for part in self._parts:
                rows = torch.as_tensor(part._room)
                per_chunk = len(rows) // self._config.slots
                rows[copy.slot * per_chunk :][:per_chunk].view(torch.float32).neg_()

    monkeypatch.setattr(HostMemory, "store", flipping)
    (_, second) = rounds(engine("OffloadConnector"))
    assert second != expected


def test_a_small_budget_evicts_and_stays_right(
    engine: Callable[..., Any], expected: Tokens, copied: dict[str, list[Copy]]
) -> None:
    llm = engine("OffloadConnector", cpu_bytes_to_use=4 * CHUNK_BYTES + 1)
    assert rounds(llm) == [expected, expected]
    assert {copy.slot for copy in copied["store"]} == {0, 1, 2, 3}
    assert len(copied["store"]) > 4


def test_small_chunks_are_loaded_in_parts(
    engine: Callable[..., Any], expected: Tokens, copied: dict[str, list[Copy]]
) -> None:
    """Loads begin in the middle of a chunk where vLLM holds its first blocks itself."""
    llm = engine("OffloadConnector", chunk_size=64)
    assert rounds(llm, count=3) == [expected] * 3
    assert any(copy.count < 64 for copy in copied["load"])


def test_chunks_are_saved_during_prefill_and_decode(engine: Callable[..., Any], copied: dict[str, list[Copy]]) -> None:
    """A prompt of 200 tokens and 120 generated: the chunk of 256 fills during decode, and is stored then."""
    llm = engine("OffloadConnector")
    job = DemoRequest("decode", tuple(range(3, 203)), 120)
    (first,) = rounds(llm, [job], count=1)
    assert [(c.start, c.count) for c in copied["store"]] == [(0, 256)]
    longer = DemoRequest("longer", (*job.prompt, *first["decode"][:80]), 8)
    copied["load"].clear()
    rounds(llm, [longer], count=1)
    assert [(c.start, c.count) for c in copied["load"]] == [(0, 256)]


def test_a_full_hit_leaves_the_last_token_to_be_computed(
    engine: Callable[..., Any], copied: dict[str, list[Copy]]
) -> None:
    llm = engine("OffloadConnector")
    job = DemoRequest("full", tuple(3 + n % 500 for n in range(512)), 10)
    first, second = rounds(llm, [job])
    assert first == second
    assert [(c.start, c.count) for c in copied["load"]] == [(0, 256), (256, 255)]


def test_a_reset_of_the_connector_forgets_everything(engine: Callable[..., Any], copied: dict[str, list[Copy]]) -> None:
    llm = engine("OffloadConnector")
    first, second = rounds(llm, JOBS[:3], reset_connector=True)
    assert first == second
    assert [c for c in copied["load"] if c.request_id.startswith("1-")] == []


def test_cache_salts_are_kept_apart(engine: Callable[..., Any], copied: dict[str, list[Copy]]) -> None:
    """Keys are vLLM's own block hashes, so another salt is another prefix."""
    from vllm import SamplingParams

    llm = engine("OffloadConnector")
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False)
    prompt = list(range(3, 503))
    for salt in ("a", "b", "a"):
        llm.reset_prefix_cache()
        before = len(copied["load"])
        llm.generate([{"prompt_token_ids": prompt, "cache_salt": salt}], params, use_tqdm=False)
        loaded = len(copied["load"]) - before
        assert (loaded > 0) == (salt == "a" and before == 0 and len(copied["store"]) == 2)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"chunk": 256}, "OffloadConnector: unknown key 'chunk'"),
        ({"chunk_size": 100}, "chunk_size is 100, which is not a multiple of vLLM's block size 32"),
        ({"cpu_bytes_to_use": 1000}, "cpu_bytes_to_use is 1000, which is less than one chunk of 256 tokens"),
        ({"kvtrail": {"guard": "mend"}}, "guard is 'mend'"),
    ],
)
def test_bad_configuration_is_refused_at_start_up(engine: Callable[..., Any], extra: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        engine("OffloadConnector", **extra)


def test_the_stale_lookup_kills_the_engine_as_reported(engine: Callable[..., Any]) -> None:
    """LMCache #2158: 'Mismatch in tokens to load: 256 vs 256 - 336 - 0', with this run's numbers."""
    llm = engine("Faulty:stale-lookup:OffloadConnector")
    mismatch = r"Mismatch in tokens to load: (\d+) vs (\d+) \(tokens in the cache\) - (\d+) \(tokens in vllm\) - 0 \("
    with pytest.raises(AssertionError, match=mismatch) as died:
        workload.run(llm, workload.stale_lookup())
    import re

    found = re.search(mismatch, str(died.value))
    assert found is not None
    asked, held, computed = map(int, found.groups())
    assert asked == held == 256
    assert computed > 256


def test_healed_it_finishes_with_the_same_tokens(engine: Callable[..., Any]) -> None:
    plain = workload.run(engine(), workload.stale_lookup())
    healed = engine("Faulty:stale-lookup:OffloadConnector", kvtrail={"guard": "heal"})
    assert workload.run(healed, workload.stale_lookup()) == plain


def test_raise_stops_the_engine_at_the_first_breach(engine: Callable[..., Any]) -> None:
    from kvtrail.connector.tracing.scheduler_side import ContractBreach

    llm = engine("Faulty:stale-lookup:OffloadConnector", kvtrail={"guard": "raise"})
    with pytest.raises(ContractBreach, match="at most 0 can be new"):
        workload.run(llm, workload.stale_lookup())
