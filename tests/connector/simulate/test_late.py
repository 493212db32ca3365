"""Of a load that brought something wrong it is known who had computed it, and whether it came later."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
sys.path.insert(0, str(Path(__file__).parent / "check"))

from planted.chunk_store import ChunkStore
from planted.store_bugs import SaidTooEarly

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario, Workers

HEAD = ("head", 256)
SCENARIO = Scenario(
    arrivals=(
        Arrival("first", (HEAD,), 1),
        Arrival("second", (HEAD, ("x", 9)), 2, at_step=1),
        Arrival("third", (HEAD, ("y", 9)), 1, at_step=20),
    ),
    resets=(CachesReset(1), CachesReset(19)),
    settings={"max_num_batched_tokens": 512},
    workers=Workers(latest_steps=0),
)


class StoresLate(ChunkStore):
    """Its copies are made two steps late."""

    def run_writes(self, before: int) -> None:
        super().run_writes(before - 2)


class NeverStores(ChunkStore):
    def run_writes(self, before: int) -> None:
        pass


class LosesTheFirst(ChunkStore):
    """It makes no copies in its first five steps."""

    steps = 0

    def run_writes(self, before: int) -> None:
        self.steps += 1
        if self.steps > 5:
            super().run_writes(before)


STORED_AGAIN = replace(
    SCENARIO,
    arrivals=(*SCENARIO.arrivals, Arrival("fourth", (HEAD,), 1, at_step=11)),
    resets=(*SCENARIO.resets, CachesReset(10, connector=True)),
)


def read_wrongly(bug: type, scenario: Scenario = SCENARIO) -> str:
    connector = configuration(f"{bug.__module__}:{bug.__name__}", {"chunk": 64, "slots": 24, "apart": False, "lag": 0})
    played = play(scenario, connector, own_workers=True, observed=True)
    assert played.error is None, played.traceback
    (text,) = (each.text for each in played.observations if each.kind == "bytes")
    return text


def test_a_store_that_came_too_late_is_named() -> None:
    text = read_wrongly(StoresLate)
    assert "it holds zeros" in text
    assert text.endswith(
        "first had computed it in step 0, and third loaded the right KV of the same prefix in step 20: it was stored, so"
        " the store came too late, or this load was not made."
    )


def test_a_load_that_came_too_late_is_named() -> None:
    text = read_wrongly(SaidTooEarly)
    assert "it holds nothing, since nobody had written there by then" in text
    assert (
        "first had computed it in step 0, and the right KV was there in step 3, 2 steps after it was read: the copy was made"
        in text
    )


def test_a_copy_that_is_never_made_is_not_called_late() -> None:
    text = read_wrongly(NeverStores)
    assert text.endswith(
        "first had computed it in step 0; no later load of it was right, and that block never held it."
    )


def test_what_was_stored_again_since_then_is_not_called_late() -> None:
    text = read_wrongly(LosesTheFirst, STORED_AGAIN)
    assert text.endswith(
        "first had computed it in step 0. fourth computed it again in step 11, and third loaded the right KV of the same"
        " prefix in step 20: at first it was gone, or had not been stored."
    )
