"""What is known of a store's keys is bounded: beyond that it is forgotten, and not guessed."""

from __future__ import annotations

import pytest

from kvtrail.tracer.ledger import chunk_keys
from kvtrail.tracer.ledger.chunk_keys import ChunkKeys
from kvtrail.tracer.model.findings import Unknown


def test_of_too_many_chunks_all_are_forgotten_and_the_next_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_keys, "MAX_KEYS", 4)
    keys = ChunkKeys()
    keys.stored(["a", "b"])
    keys.stored(["c", "d"])
    assert (keys.missing(["a", "x"]), keys.unsure(["a", "x"])) == (["x"], None)
    keys.stored(["e"])
    assert (keys.holds("a"), keys.holds("e"), keys.missing(["a", "x"])) == (None, True, [])
    assert (keys.unsure(["e"]), keys.unsure(["a"])) == (None, Unknown.MANY)
    keys.evicted("e")
    assert keys.holds("e") is False, "what is reported afterwards is known"
    for number in range(20):
        keys.claimed([f"k{number}"])
        assert len(keys._held) <= 4


def test_a_list_of_too_many_chunks_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_keys, "MAX_KEYS", 4)
    keys = ChunkKeys(lost=Unknown.LATE)
    for number in range(10):
        keys.listed([f"k{number}"], first=number == 0, last=number == 9)
    assert (keys.holds("k9"), keys.holds("x"), keys.unsure(["x"])) == (True, None, Unknown.MANY)
