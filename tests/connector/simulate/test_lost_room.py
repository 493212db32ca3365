"""A store that has lost room is found by what it can still hold, and one that is only full is not accused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
sys.path.insert(0, str(Path(__file__).parent / "check"))

from kvtrail.connector.offload import UntracedOffloadConnector
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.check.profiles import scenario_of
from kvtrail.connector.simulate.check.session import check
from kvtrail.connector.simulate.judges import capacity
from kvtrail.connector.simulate.run import play, run_more
from kvtrail.connector.simulate.scenario import Arrival, Scenario, Workers

NOTHING = Scenario(arrivals=(), settings={"max_num_batched_tokens": 512}, workers=Workers(latest_steps=0))
SLOTS, CHUNK = 20, 64
BLOCK_BYTES = 2 * 16384
SMALL = {"chunk_size": CHUNK, "cpu_bytes_to_use": SLOTS * 2 * BLOCK_BYTES}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., BareScheduler]]:
    made: list[BareScheduler] = []

    def one(settings: dict[str, int], workers: Workers = NOTHING.workers) -> BareScheduler:
        connector = configuration("UntracedOffloadConnector", settings)
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(BareScheduler(folder, connector, own_workers=True, workers=workers, **NOTHING.settings))
        return made[-1]

    with in_memory.exporters():  # other tests of this process may have left recorders that cannot send
        yield one
        for each in made:
            each.close()


def runs(stage: BareScheduler) -> capacity.Run:
    return partial(run_more, stage, NOTHING)


def test_the_room_of_a_store_is_what_it_holds(make: Callable[..., BareScheduler]) -> None:
    small, large = make(SMALL), make({"chunk_size": CHUNK})
    assert capacity.measured(small, runs(small), "a") == capacity.Capacity(SLOTS * CHUNK, is_full=True)
    assert capacity.measured(small, runs(small), "b") == capacity.Capacity(SLOTS * CHUNK, is_full=True), (
        "others were evicted for them"
    )
    whole = (capacity.TOKENS - 1) * capacity.PROMPTS
    assert capacity.measured(large, runs(large), "a") == capacity.Capacity(whole, is_full=False)


def test_a_slot_that_is_not_given_back_is_missed(make: Callable[..., BareScheduler]) -> None:
    stage = make(SMALL)
    runs(stage)([Arrival("first", (("first", 700),), 1)])
    asked: list[capacity.Capacity] = []

    def when_new(at_once: bool) -> capacity.Capacity:
        new = make(SMALL)
        asked.append(capacity.measured_when_new(new, runs(new), at_once=at_once))
        return asked[-1]

    assert capacity.lost(stage, runs(stage), when_new) is None
    index = stage.connectors[0]._scheduler._index
    index._slot.pop(next(iter(index._slot)))
    text = capacity.lost(stage, runs(stage), when_new)
    assert text is not None
    assert f"it held {SLOTS * CHUNK} tokens or more" in text
    assert f"it now holds {(SLOTS - 1) * CHUNK} tokens at the most, in 3 tries: room for {CHUNK} tokens is lost" in text
    assert len(asked) == 1 + capacity.TRIES


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (capacity.Capacity(640, is_full=True, came=1000, grown=501), True),
        (capacity.Capacity(640, is_full=True, came=1000, grown=500), False),
        (capacity.Capacity(640, is_full=False, came=1000, grown=1000), False),
        (capacity.Capacity(640, is_full=True), False),
    ],
    ids=["kept", "half of it may be given back later", "it still fills", "not measured"],
)
def test_workers_keep_what_is_evicted_only_if_a_full_store_grows(given: capacity.Capacity, said: bool) -> None:
    text = capacity.not_given_back(given)
    assert (text is not None) is said
    assert text is None or "1,000 bytes of KV" in text


def test_a_room_that_differs_from_time_to_time_causes_no_finding(make: Callable[..., BareScheduler]) -> None:
    stage = make(SMALL)
    rooms = iter([SLOTS * CHUNK + 64, SLOTS * CHUNK + 32, SLOTS * CHUNK])
    assert capacity.lost(stage, runs(stage), lambda _: capacity.Capacity(next(rooms), is_full=True)) is None


def test_loads_that_fail_in_the_run_do_not_fail_while_the_room_is_measured(make: Callable[..., BareScheduler]) -> None:
    """A store drops what failed to load, and so holds more or less by chance."""
    stage = make(SMALL, Workers(latest_steps=0, load_failures=0.6))
    assert capacity.measured(stage, runs(stage), "a", at_once=True) == capacity.Capacity(SLOTS * CHUNK, is_full=True)


def test_a_store_is_not_filled_any_further_when_requests_never_end(
    make: Callable[..., BareScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UntracedOffloadConnector, "get_num_new_matched_tokens", lambda *_: (None, False))
    stage = make(SMALL)
    with pytest.raises(capacity.Unserved):
        capacity.lost(stage, runs(stage), lambda _: pytest.fail("asked"))
    assert stage.steps < 1000, "it gives up with the first ones"


def test_a_store_that_holds_everything_is_not_compared_with_a_new_one(make: Callable[..., BareScheduler]) -> None:
    large = make({"chunk_size": CHUNK})
    assert capacity.lost(large, runs(large), lambda _: pytest.fail("asked")) is None


@pytest.mark.parametrize(("name", "loses"), [("store_bugs:SlotLostByTwins", True), ("chunk_store:ChunkStore", False)])
def test_a_run_shows_it(name: str, loses: bool) -> None:
    connector = configuration(f"planted.{name}", {"chunk": 64, "slots": 10, "apart": False})
    played = play(scenario_of("room", 0), connector, own_workers=True, observed=True)
    assert [each.what for each in played.observations] == ["the store has lost room"] * loses


def test_a_store_with_gaps_after_failed_loads_has_lost_no_room() -> None:
    """Chunks behind a gap got a second slot, and the first one was lost, of the OffloadConnector itself."""
    config = {"chunk_size": 32, "cpu_bytes_to_use": 4_000_000}
    checked = check(
        "OffloadConnector", config=config, profiles=["load-failure"], seed=1003, runs=1, steps=None, shrink_tries=0
    )
    assert [found.failure.id for found in checked.found] == []
    assert checked.reached["load/failed"]
