"""Several ranks of vLLM's own NIXL connector read from one, which counts their reports: what becomes of a report that arrives
twice or never, of a number that is too small or too large, and of an engine that heeds none. The settings are kvtrail's
defaults."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

from faulty_pairs import DECODE, PREFILL, Mistake, PlayedPair, drawn, play_pair, with_pair
from recorded_runs import play_pair_once
from vllm.distributed.kv_transfer.kv_connector.utils import TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from kvtrail.connector.registration import configuration
from kvtrail.tracer.events.events import Free, Read, Xfer

NIXL = configuration("NixlConnector", {})
LONG = pytest.mark.long
RULE = "miscounted-readers"
KEPT = "unacknowledged-handoff"


def played(
    seed: int,
    *,
    repeated: float = 0.0,
    lost: float = 0.0,
    mistakes: tuple[Mistake, ...] = (),
    ranks: tuple[int, int] = (1, 2),
) -> PlayedPair:
    scenario = drawn(seed, repeated=repeated, lost=lost, mistakes=mistakes)
    return play_pair_once(with_pair(scenario, prefill_ranks=ranks[0], decode_ranks=ranks[1]), NIXL)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 40), marks=LONG)], ids=str)
def test_a_report_that_arrives_twice_is_taken_for_two_readers(seeds: range) -> None:
    """Exactly those are named that another rank was still reading; a report that is repeated once all others have come, or in
    the same step, is harmless."""
    named = repeated = 0
    for seed in seeds:
        pair = played(seed, repeated=0.3)
        assert pair.found() == pair.found(RULE) == pair.given_back_early, seed
        named += len(pair.found())
        repeated += len(pair.network.repeated)
    assert len(seeds) // 2 < named < repeated


def test_a_report_that_arrives_twice_is_harmless_where_one_rank_reads_from_each() -> None:
    for seed, ranks in enumerate(((2, 1), (2, 2))):
        pair = played(seed, repeated=0.3, ranks=ranks)
        assert pair.network.repeated
        assert not pair.findings, [each.explanation for each in pair.findings]


def test_two_requests_that_share_a_hand_off_report_for_each_other() -> None:
    """No report comes twice: one rank has read for both requests before the other rank has read for either."""
    for seed in (20, 26):
        pair = played(seed, mistakes=(Mistake.TWICE,))
        assert len(pair.given_back_early) == 1, seed
        assert pair.found(RULE) == pair.given_back_early, seed
        assert pair.given_back_early < pair.planted == pair.found("duplicate-load"), seed


def test_a_number_of_readers_that_lacks_a_dimension_is_named_where_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report says that it is the only one, as if both engines had as many ranks: all that read are named."""
    monkeypatch.setattr(TransferTopology, "dcp_consumer_count", lambda *_: 1)
    pair = play_pair(with_pair(drawn(0), prefill_ranks=1, decode_ranks=2), NIXL)
    reads = [each for each in pair.recorded[DECODE] if isinstance(each, Xfer) and each.xfer_state == "posted"]
    assert {each.rank for each in reads} == {0, 1}
    assert pair.found() == pair.found(RULE) == {pair.names[each.request or ""] for each in reads}
    assert len(pair.found()) > 5
    assert {(each.numbers["readers"], each.numbers["expected"]) for each in pair.findings} == {(2, 1)}


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 20), marks=LONG)], ids=str)
def test_a_report_of_one_rank_that_is_lost_is_named(seeds: range, ranks: tuple[int, int]) -> None:
    """Also if all others have come."""
    partly = 0
    for seed in seeds:
        pair = played(seed, lost=0.15, ranks=ranks)
        lost = {pair.names[message.decode().rpartition(":")[0]] for message in pair.network.lost}
        assert pair.found() == pair.found(KEPT) == lost, seed
        partly += len(
            lost & {pair.names[each.request or ""] for each in pair.recorded[PREFILL] if isinstance(each, Read)}
        )
    assert partly > len(seeds)


@pytest.mark.parametrize("ranks", [(1, 1), (1, 2)])
def test_an_engine_that_heeds_no_report_is_named(ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts each reader, and never arrives at their number."""
    made = NixlPullConnectorWorker.__init__

    def miscounts(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.consumer_notification_counts_by_req = defaultdict(lambda: 10)

    monkeypatch.setattr(NixlPullConnectorWorker, "__init__", miscounts)
    pair = play_pair(with_pair(drawn(0), prefill_ranks=ranks[0], decode_ranks=ranks[1]), NIXL)
    reports = Counter(each.request for each in pair.recorded[PREFILL] if isinstance(each, Read))
    kept = {each.request for each in pair.recorded[PREFILL] if isinstance(each, Free) and each.lease_expired}
    reported = {pair.names[name or ""] for name, number in reports.items() if number == ranks[1] and name in kept}
    assert pair.found() == pair.found(KEPT) == reported
    assert len(reported) > 5
    assert all("its blocks were kept until the lease ran out" in each.explanation for each in pair.findings)


def test_a_number_of_readers_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that prefills waits for a reader that there is not."""
    monkeypatch.setattr(TransferTopology, "dcp_consumer_count", lambda *_: 2)
    pair = play_pair(drawn(0), NIXL)
    assert pair.found() == pair.found(KEPT)
    assert len(pair.found()) > 5
    assert {(each.numbers["reports"], each.numbers["expected"]) for each in pair.findings} == {(1, 2)}
