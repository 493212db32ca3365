"""The real vLLM engine on the CPU: KV that was offloaded and loaded again gives the very same tokens."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from checking import JOBS, Engine, Tokens
from engines import Engines

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.offload.host_memory import HostMemory
from kvtrail.connector.offload.plan import Copy

pytest_plugins = ["engines"]
CHUNK_BYTES = 256 * 2 * 2 * 64 * 4  # tokens, layers, heads, K and V of a head, float32


@pytest.fixture
def engine(engines: Engines) -> Engine:
    """One OffloadConnector for several tests in a row, with an empty store."""
    engine = engines.offload()
    engine.forget()
    return engine


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


@pytest.mark.parametrize("name", ["OffloadConnector", "UntracedOffloadConnector"])
def test_tokens_are_the_same_over_several_rounds(
    engines: Engines, expected: Tokens, copied: dict[str, list[Copy]], name: str
) -> None:
    engine = engines.offload(name=name)
    assert engine.round() == expected
    stored_first = len(copied["store"])
    copied["load"].clear()
    assert engine.round() == expected
    prefixes = 3 * 512  # the round must load at least these: vLLM itself has forgotten them
    assert sum(copy.count for copy in copied["load"]) >= prefixes
    assert len(copied["store"]) < 2 * stored_first, "what is there is not stored again"


def test_a_small_budget_evicts_and_stays_right(
    engines: Engines, expected: Tokens, copied: dict[str, list[Copy]]
) -> None:
    engine = engines.offload(cpu_bytes_to_use=4 * CHUNK_BYTES + 1)
    assert [engine.round(), engine.round()] == [expected, expected]
    assert {copy.slot for copy in copied["store"]} == {0, 1, 2, 3}
    assert len(copied["store"]) > 4


def test_small_chunks_are_loaded_in_parts(engines: Engines, expected: Tokens, copied: dict[str, list[Copy]]) -> None:
    """Loads begin in the middle of a chunk where vLLM holds its first blocks itself."""
    engine = engines.offload(chunk_size=64)
    assert [engine.round(), engine.round(), engine.round()] == [expected] * 3
    assert any(copy.count < 64 for copy in copied["load"])


def test_this_comparison_can_fail(engine: Engine, expected: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the signs of what is stored flipped, the tokens differ: the comparison would see wrong KV, not only absurd KV."""
    plain = HostMemory.store

    def flipping(self: HostMemory, copies: list[Copy]) -> None:
        plain(self, copies)
        for copy in copies:
            for part in self._parts:
                rows = torch.as_tensor(part._slots)
                per_chunk = len(rows) // self._config.slots
                rows[copy.slot * per_chunk :][:per_chunk].view(torch.float32).neg_()

    monkeypatch.setattr(HostMemory, "store", flipping)
    engine.round()
    assert engine.round() != expected


def test_chunks_are_saved_during_prefill_and_decode(engine: Engine, copied: dict[str, list[Copy]]) -> None:
    """A prompt of 200 tokens and 120 generated: the chunk of 256 fills during decode, and is stored then."""
    job = DemoRequest("decode", tuple(range(3, 203)), 120)
    first = engine.round([job])
    assert [(c.start, c.count) for c in copied["store"]] == [(0, 256)]
    longer = DemoRequest("longer", (*job.prompt, *first["decode"][:80]), 8)
    copied["load"].clear()
    engine.round([longer])
    assert [(c.start, c.count) for c in copied["load"]] == [(0, 256)]


def test_a_full_hit_leaves_the_last_token_to_be_computed(engine: Engine, copied: dict[str, list[Copy]]) -> None:
    job = DemoRequest("full", tuple(3 + n % 500 for n in range(512)), 10)
    assert engine.round([job]) == engine.round([job])
    assert [(c.start, c.count) for c in copied["load"]] == [(0, 256), (256, 255)]


def test_a_reset_of_the_connector_forgets_everything(engine: Engine, copied: dict[str, list[Copy]]) -> None:
    """So nothing of an earlier test is left for the tests that share an engine."""
    first = engine.round(JOBS[:3])
    stored = [(copy.start, copy.count, copy.key) for copy in copied["store"]]
    assert stored
    engine.forget()
    for log in copied.values():
        log.clear()
    assert engine.round(JOBS[:3]) == first
    assert [(copy.start, copy.count, copy.key) for copy in copied["store"]] == stored
    assert copied["load"] == []


def test_cache_salts_are_kept_apart(engine: Engine, copied: dict[str, list[Copy]]) -> None:
    """Keys are vLLM's own block hashes, so another salt is another prefix."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False)
    prompt = list(range(3, 503))
    for salt in ("a", "b", "a"):
        engine.llm.reset_prefix_cache()
        before = len(copied["load"])
        engine.llm.generate([{"prompt_token_ids": prompt, "cache_salt": salt}], params, use_tqdm=False)
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
def test_bad_configuration_is_refused_at_start_up(engines: Engines, extra: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        engines.offload(**extra)


def test_the_stale_lookup_kills_the_engine_as_reported(engines: Engines) -> None:
    """LMCache #2158: 'Mismatch in tokens to load: 256 vs 256 - 336 - 0', with this run's numbers."""
    engine = engines.offload(name="Faulty:stale-lookup:OffloadConnector")
    mismatch = r"Mismatch in tokens to load: (\d+) vs (\d+) \(tokens in the cache\) - (\d+) \(tokens in vllm\) - 0 \("
    with pytest.raises(AssertionError, match=mismatch) as died:
        workload.run(engine.llm, workload.stale_lookup())
    found = re.search(mismatch, str(died.value))
    assert found is not None
    asked, held, computed = map(int, found.groups())
    assert asked == held == 256
    assert computed > 256


def test_healed_it_finishes_with_the_same_tokens(engines: Engines) -> None:
    plain = workload.run(engines.plain().llm, workload.stale_lookup())
    healed = engines.offload({"guard": "heal"}, name="Faulty:stale-lookup:OffloadConnector")
    assert workload.run(healed.llm, workload.stale_lookup()) == plain


def test_raise_stops_the_engine_at_the_first_breach(engines: Engines) -> None:
    from kvtrail.connector.tracing.scheduler_side import ContractBreach

    engine = engines.offload({"guard": "raise"}, name="Faulty:stale-lookup:OffloadConnector")
    with pytest.raises(ContractBreach, match="at most 0 can be new"):
        workload.run(engine.llm, workload.stale_lookup())
