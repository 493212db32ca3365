"""What is noted of LMCache's local CPU backend; the real ones are in tests/e2e/test_lmcache_causes.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.known.lmcache.contents import BACKEND, Contents
from kvtrail.connector.known.lmcache.probe import LMCacheProbe
from kvtrail.connector.known.probe import Change

BLOCK, CHUNK = 32, 64


class Backend:
    """LMCache's local CPU backend, as far as chunks come and go."""

    use_hot = True

    def __init__(self, most: int) -> None:
        self.hot_cache: dict[Any, object] = {}
        self.in_use: Any = None
        self._most = most

    def allocate(self) -> None:
        while len(self.hot_cache) >= self._most:
            self.remove(next(iter(self.hot_cache)), force=False)

    def submit_put_task(self, key: Any, chunk: object) -> None:
        self.hot_cache.setdefault(key, chunk)

    def remove(self, key: Any, force: bool = True) -> bool:
        return self.hot_cache.pop(key, None) is not None

    def clear(self) -> int:
        return sum(self.remove(key) for key in list(self.hot_cache) if key != self.in_use)


class Engine:
    """LMCache's engine: its keys are the numbers of chunks, counted from a request's first token."""

    def __init__(self, most: int = 9, **config: bool) -> None:
        off = {"use_layerwise": False, "save_unfull_chunk": False, "enable_blending": False}
        self.config = SimpleNamespace(**off | config)
        self.metadata = SimpleNamespace(world_size=1)
        self.token_database = SimpleNamespace(process_tokens=self._process)
        self.backend = Backend(most)
        self.storage_manager = SimpleNamespace(storage_backends={BACKEND: self.backend})

    def store(self, tokens: list[int], **named: Any) -> None:
        keys = [key for _, _, key in self.token_database.process_tokens(tokens)]
        for _ in keys:
            self.backend.allocate()
        for key in keys:
            self.backend.submit_put_task(key, object())

    def _process(self, tokens: list[int]) -> Iterator[tuple[int, int, Any]]:
        for end in range(CHUNK, len(tokens) + 1, CHUNK):
            yield end - CHUNK, end, (tokens[0], end)


class Request:
    """vLLM's request."""

    def __init__(self, name: int, tokens: int) -> None:
        self.request_id, self.tokens = f"r{name}", [name] * tokens
        self.block_hashes = [bytes(24) + name.to_bytes(4) + n.to_bytes(4) for n in range(tokens // BLOCK)]

    def chunk(self, number: int) -> bytes:
        return bytes(self.block_hashes[(number + 1) * CHUNK // BLOCK - 1][-8:])


def connector(role: str, engine_id: str, engine: Any = None) -> Any:
    metadata = SimpleNamespace(requests=[])
    parent = SimpleNamespace(_connector_metadata=metadata)
    impl = type("Impl", (), {})()
    impl.lmcache_engine, impl._block_size, impl._parent, impl.load_specs = engine, BLOCK, parent, {}
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id=engine_id))
    return SimpleNamespace(role=SimpleNamespace(name=role), _vllm_config=config, _lmcache_engine=impl)


@pytest.fixture
def both(request: pytest.FixtureRequest) -> Callable[[Engine], tuple[Any, Any, Any]]:
    """The two sides of a connector with this engine: the scheduler's probe and connector, and the worker's connector."""
    kept: list[object] = []

    def make(engine: Engine) -> tuple[Any, Any, Any]:
        worker = connector("WORKER", request.node.name, engine)
        scheduler = connector("SCHEDULER", request.node.name)
        probes = LMCacheProbe(), LMCacheProbe()
        probes[0].made(worker)
        probes[1].made(scheduler)
        kept.extend((worker, scheduler, *probes))
        return probes[1], scheduler, worker

    return make


def stored(probe: Any, scheduler: Any, engine: Engine, request: Request) -> list[tuple[Change, str | None]]:
    """Look a request up and store it; what has changed."""
    probe.lookup(scheduler, request)
    contents = probe.contents(scheduler)
    engine.store(request.tokens, req_id=request.request_id)
    return list(contents.changed())


def test_chunks_come_and_go_under_the_hashes_of_their_last_blocks(both: Any) -> None:
    engine = Engine(most=3)
    probe, scheduler, _ = both(engine)
    one, other = Request(1, 150), Request(2, 128)
    assert stored(probe, scheduler, engine, one) == [(one.chunk(0), "r1"), (one.chunk(1), "r1")]
    assert stored(probe, scheduler, engine, one) == [], "what is there is not stored again"
    assert stored(probe, scheduler, engine, other) == [(other.chunk(0), "r2"), (other.chunk(1), "r2")]
    third = Request(3, 64)
    gone = [((one.chunk(0),), "r3"), ((one.chunk(1),), "r3")]
    assert stored(probe, scheduler, engine, third) == [*gone, (third.chunk(0), "r3")], "evicted before it is stored"
    assert set(probe.contents(scheduler).held()) == {other.chunk(0), other.chunk(1), third.chunk(0)}


def test_an_older_lmcache_that_does_not_say_whom_it_stores_is_understood(both: Any) -> None:
    engine, one = Engine(), Request(1, 150)
    probe, scheduler, worker = both(engine)
    for each in (Request(2, 150), one):
        planned = SimpleNamespace(req_id=each.request_id, token_ids=each.tokens)
        worker._lmcache_engine._parent._connector_metadata.requests.append(planned)
    probe.lookup(scheduler, one)
    contents = probe.contents(scheduler)
    engine.store(one.tokens[:128])
    assert contents.changed() == [(one.chunk(0), "r1"), (one.chunk(1), "r1")]


def test_chunks_with_one_hash_come_with_the_first_and_go_with_the_last(both: Any) -> None:
    """LMCache may distinguish chunks that vLLM does not: by tags that a request brings along."""
    engine = Engine()
    probe, scheduler, _ = both(engine)
    one, tagged = Request(1, 64), Request(2, 64)
    tagged.block_hashes = one.block_hashes
    assert stored(probe, scheduler, engine, one) == [(one.chunk(0), "r1")]
    assert stored(probe, scheduler, engine, tagged) == []
    engine.backend.remove((1, 64))
    assert probe.contents(scheduler).changed() == []
    engine.backend.remove((2, 64))
    assert probe.contents(scheduler).changed() == [((one.chunk(0),), None)]


def test_a_store_that_was_emptied_says_so(both: Any) -> None:
    engine, one = Engine(), Request(1, 64)
    probe, scheduler, _ = both(engine)
    stored(probe, scheduler, engine, one)
    assert engine.backend.clear() == 1
    assert probe.contents(scheduler).changed() == [(None, None)]
    assert engine.backend.clear() == 0
    assert probe.contents(scheduler).changed() == [], "it was empty"


def test_a_store_that_keeps_what_is_in_use_says_what_has_gone(both: Any) -> None:
    engine, one = Engine(), Request(1, 128)
    probe, scheduler, _ = both(engine)
    engine.backend.in_use = (1, 64)
    stored(probe, scheduler, engine, one)
    assert engine.backend.clear() == 1
    assert probe.contents(scheduler).changed() == [((one.chunk(1),), None)]


@pytest.mark.parametrize("name", ["use_layerwise", "save_unfull_chunk", "enable_blending"])
def test_what_cannot_be_reported_completely_is_not_reported(both: Any, name: str) -> None:
    probe, scheduler, _ = both(Engine(**{name: True}))
    assert probe.contents(scheduler) is None


def test_other_tiers_other_ranks_and_a_store_that_is_not_empty_are_not_reported(both: Any) -> None:
    engine = Engine()
    engine.storage_manager.storage_backends["LocalDiskBackend"] = object()
    probe, scheduler, _ = both(engine)
    assert probe.contents(scheduler) is None
    del engine.storage_manager.storage_backends["LocalDiskBackend"]
    engine.metadata.world_size = 2
    assert probe.contents(scheduler) is None
    engine.metadata.world_size, engine.backend.use_hot = 1, False
    assert probe.contents(scheduler) is None
    engine.backend.use_hot = True
    engine.backend.submit_put_task("before", object())
    assert probe.contents(scheduler) is None
    engine.backend.clear()
    assert probe.contents(scheduler) is not None


def test_a_worker_in_another_process_is_not_reported(request: pytest.FixtureRequest) -> None:
    probe, scheduler = LMCacheProbe(), connector("SCHEDULER", request.node.name)
    assert probe.contents(scheduler) is None
    probe.made(scheduler)
    assert probe.contents(scheduler) is None


def test_a_chunk_that_cannot_be_named_is_a_failure_and_lmcache_goes_on(both: Any) -> None:
    engine, one = Engine(), Request(1, 64)
    probe, scheduler, _ = both(engine)
    contents: Contents = probe.contents(scheduler)
    engine.store(one.tokens, req_id="somebody")
    assert len(engine.backend.hot_cache) == 1
    with pytest.raises(KeyError):
        contents.changed()
