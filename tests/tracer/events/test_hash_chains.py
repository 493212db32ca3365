"""Chains of block hashes: reported once, referred to by others, and never made up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvtrail.tracer.events.events import Lookup, RequestEnd, RequestStart
from kvtrail.tracer.events.hash_chains import Chain, Chains, split_hashes


def hashes(*blocks: int) -> bytes:
    return b"".join(_each(*blocks))


def _each(*blocks: int) -> list[bytes]:
    return [block.to_bytes(8, "big") for block in blocks]


def start(*blocks: int, first: int | None = None, after: int | None = None) -> RequestStart:
    return RequestStart(
        engine="e",
        recorder="r",
        sequence=0,
        start_ns=1,
        end_ns=1,
        block_hashes=hashes(*blocks) or None,
        block_first=first,
        block_after=None if after is None else hashes(after),
    )


def lookup(*blocks: int, first: int) -> Lookup:
    asked = Lookup(engine="e", recorder="r", sequence=0, start_ns=1, end_ns=1, total=99, computed=0)
    return replace(asked, block_hashes=hashes(*blocks), block_first=first)


def end(*blocks: int, first: int) -> RequestEnd:
    ended = RequestEnd(engine="e", recorder="r", sequence=0, start_ns=1, end_ns=1)
    return replace(ended, block_hashes=hashes(*blocks), block_first=first)


def chain_of(chains: Chains, *events: RequestStart | Lookup | RequestEnd) -> Chain:
    chain = Chain()
    for event in events:
        chains.add(chain, event)
    return chain


def test_hashes_are_split_and_a_damaged_rest_is_none() -> None:
    assert split_hashes(hashes(1, 2) + b"odd") == _each(1, 2)
    assert split_hashes(None) == []


def test_a_request_refers_to_what_others_have_reported() -> None:
    chains = Chains()
    first = chain_of(chains, start(1, 2, 3), lookup(4, first=3), end(5, 6, first=4))
    assert (first.first, first.hashes, first.is_whole) == (0, _each(1, 2, 3, 4, 5, 6), True)
    second = chain_of(chains, start(17, 18, first=5, after=5), end(19, first=7))
    assert second.hashes == _each(1, 2, 3, 4, 5, 17, 18, 19)
    wholly_known = chain_of(chains, start(first=6, after=6))
    assert wholly_known.hashes == first.hashes
    assert (wholly_known.of(5), wholly_known.of(6)) == (*_each(6), None)


def test_a_reused_id_starts_a_new_chain() -> None:
    assert chain_of(Chains(), start(1, 2), start(3)).hashes == _each(3)


def test_without_hashes_nothing_is_known() -> None:
    chain = chain_of(Chains(), start())
    assert (chain.hashes, chain.is_whole, chain.of(0)) == ([], False, None)


@pytest.mark.parametrize(
    "events",
    [
        [start(17, first=3, after=3)],
        [start(17, first=3, after=3), end(18, first=4)],
        [lookup(17, first=3)],
    ],
)
def test_where_a_telling_was_lost_the_beginning_is_unknown(events: list[RequestStart | Lookup]) -> None:
    chain = chain_of(Chains(), *events)
    assert not chain.is_whole
    assert chain.of(0) is chain.of(1) is None
    assert chain.of(3) == hashes(17)


def test_what_follows_a_hole_is_left_out() -> None:
    assert chain_of(Chains(), start(1, 2), end(5, first=4)).hashes == _each(1, 2)


def test_a_request_with_a_lost_start_is_known_by_others() -> None:
    chains = Chains()
    chain_of(chains, start(1, 2, 3))
    assert chain_of(chains, lookup(3, first=2)).hashes == _each(1, 2, 3)


def test_as_many_are_remembered_as_a_recorder_refers_to_and_not_twice_as_many_more() -> None:
    chains = Chains(most=100)
    chain_of(chains, start(1, 2, 3))
    chain_of(chains, start(*range(1000, 1097)))
    assert chain_of(chains, start(7, first=3, after=3)).hashes == _each(1, 2, 3, 7)
    chain_of(chains, start(*range(2000, 2200)))
    assert not chain_of(chains, start(8, first=3, after=3)).is_whole
    assert len(chains._runs) + len(chains._older) <= 200
