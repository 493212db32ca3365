"""Two engines with vLLM's own NIXL connector, one of which hands over to the other: nothing is found where all is right, and
each planted fault is named by its rule. The settings are kvtrail's defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from history import judge

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

from kvtrail.connector.faults import OF_PAIRS
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.pair_scenario import Mistake, PairScenario, Point, Request, drawn
from kvtrail.connector.simulate.pairs import DECODE, PREFILL, PlayedPair, play_pair
from kvtrail.tracer.events.events import Handoff
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.handoff_clocks import ahead

NIXL = configuration("NixlConnector", {})
LONG = pytest.mark.long


def played(seed: int, **planted: float | bool | tuple[Mistake, ...]) -> PlayedPair:
    return play_pair(drawn(seed, **planted), NIXL)  # type: ignore[arg-type]


def kinds(pair: PlayedPair, engine: str) -> Counter[str]:
    return Counter(event.kind for event in pair.recorded[engine])


def reported(pair: PlayedPair, messages: Iterable[bytes]) -> set[str]:
    """The clients' ids of the requests whose readers' reports these are."""
    return {pair.names[message.decode().rpartition(":")[0]] for message in messages}


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 60), marks=LONG)], ids=str)
def test_nothing_is_found_where_both_engines_and_the_router_do_what_they_should(seeds: range) -> None:
    """Messages are late and out of order, engines are busy and preempt, and clients disconnect at every point."""
    points: set[Point] = set()
    total: Counter[str] = Counter()
    for seed in seeds:
        pair = played(seed)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        points |= set(pair.disconnected.values())
        total += kinds(pair, PREFILL) + kinds(pair, DECODE)
        total["loads"] += pair.loads_read
    assert points == set(Point)
    assert total["loads"] > 6 * len(seeds)
    assert total[Kind.PREEMPT]
    assert total[Kind.FREE], "leases of what nobody reads run out"
    assert total[Kind.LEASE], "and those of what waits are extended"


def test_the_requests_of_a_hand_off_are_in_one_trace_on_both_engines() -> None:
    """With all that either engine's workers and scheduler record of them, but for the rows of steps, which belong to no
    request; and requests of different hand-offs are not."""
    pair = played(0)
    known = judge(pair.events).handoffs
    traces: dict[str, set[str]] = {}
    for taken in (each for each in pair.recorded[DECODE] if isinstance(each, Handoff)):
        of = known.pair(taken)
        assert of is not None
        assert of.given is not None
        requests = {of.given.request, taken.request}
        traces[taken.request or ""] = {
            each.trace_id for each in pair.events if each.request in requests and each.kind != Kind.SCHEDULE
        }
    assert {len(each) for each in traces.values()} == {1}
    assert len(set().union(*traces.values())) == len(traces) > 5


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=LONG)], ids=str)
def test_the_messages_of_every_pair_allow_what_the_clocks_really_are(seeds: range) -> None:
    """Both engines have one clock here: it is ahead by 0, whatever is late, failed or read twice."""
    bounded = 0
    for seed in seeds:
        pair = played(seed, failing=0.2, mistakes=(Mistake.TWICE, Mistake.OVERDUE))
        known = judge(pair.events).handoffs
        for taken in (each for each in pair.recorded[DECODE] if isinstance(each, Handoff)):
            of = known.pair(taken)
            if of is None or of.given is None:
                continue
            sides = [
                [each for each in pair.recorded[engine] if each.request == request]
                for engine, request in ((PREFILL, of.given.request), (DECODE, taken.request))
            ]
            least, most = bounds = ahead(*sides, is_only_taker=len(of.takers) == 1)
            assert (least or 0) <= 0 <= (most or 0), (seed, taken.request)
            assert bounds.likely_ns == 0
            bounded += least is not None and most is not None
    assert bounded > 5 * len(seeds)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 30), marks=LONG)], ids=str)
def test_nothing_is_found_where_an_offload_stands_beside_it(seeds: range) -> None:
    offload = configuration("OffloadConnector", {"chunk_size": 64, "cpu_bytes_to_use": 50_000_000})
    both = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [NIXL, offload]}}
    stored = 0
    for seed in seeds:
        pair = play_pair(drawn(seed), both)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        assert pair.loads_read, seed
        stored += kinds(pair, PREFILL)[Kind.STORE]
    assert stored


def test_a_prompt_of_one_token_is_loaded_and_computed_all_the_same() -> None:
    """vLLM computes the last token again, so that none counts as computed, and asks the connector a second time."""
    pair = play_pair(PairScenario(requests=(Request("r-0", (("one", 1),)),)), NIXL)
    assert (pair.loads_read, sorted(pair.answered)) == (1, ["r-0"])
    assert not pair.findings, [each.explanation for each in pair.findings]


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 30), marks=LONG)], ids=str)
def test_a_load_that_fails_is_computed_again_or_its_request_fails(seeds: range) -> None:
    failed = 0
    for seed in seeds:
        pair = played(seed, failing=0.3)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        failed += len(pair.network.failed)
    assert failed > len(seeds)


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 40), marks=LONG)], ids=str)
def test_who_decodes_outlives_who_prefilled(seeds: range) -> None:
    """What it was to read fails, and is computed again or fails its request; nothing is left of it, and nobody is accused."""
    died = 0
    for seed in seeds:
        pair = played(seed, dies=True)
        assert pair.errors.keys() <= {PREFILL}, (seed, pair.errors)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert not pair.wrong, (seed, pair.wrong)
        assert DECODE not in pair.left, (seed, pair.left)
        assert not pair.remembered, (seed, pair.remembered)
        died += bool(pair.errors)
    assert died == len(seeds)


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        (Mistake.EXCHANGED, "crossed-handoff"),
        (Mistake.TWICE, "second-handoff"),
        (Mistake.SHORT, "short-handoff"),
        (Mistake.OVERDUE, "stale-handoff"),
    ],
)
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 30), marks=LONG)], ids=str)
def test_a_routers_mistake_is_named(mistake: Mistake, rule: str, seeds: range) -> None:
    """Whoever has loaded what is not its own is named, and so is every other request with the mistake; none is named without
    it. Who then finds such a load in vLLM's prefix cache is not named."""
    assert OF_PAIRS[rule] == mistake
    planted = wrong = 0
    for seed in seeds:
        pair = played(seed, mistakes=(mistake,))
        assert pair.planted <= pair.found(rule), seed
        loaded = {name for name, text in pair.wrong.items() if "reported the load" in text}
        assert loaded <= pair.planted, seed
        assert pair.found() - {""} <= pair.planted, seed  # a call that killed the engine is no request's
        planted += len(pair.planted)
        wrong += len(loaded)
    assert planted > len(seeds)
    assert wrong or mistake is Mistake.TWICE, "only of the second reader most are in time"


def test_an_engine_that_dies_of_too_few_blocks_is_explained() -> None:
    """vLLM asserts that there are as many as it allocated."""
    for seed in range(2):
        pair = played(seed, mistakes=(Mistake.CUT,))
        assert "_apply_prefix_caching" in pair.errors[DECODE], seed
        assert PREFILL not in pair.errors, seed
        assert pair.found("short-handoff") & pair.planted, seed
        assert pair.found("failed-call"), seed


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=LONG)], ids=str)
def test_a_report_that_is_lost_is_named(seeds: range) -> None:
    lost = 0
    for seed in seeds:
        pair = played(seed, lost=0.3)
        served = reported(pair, pair.network.lost) & pair.answered
        assert served <= pair.found("unacknowledged-handoff"), seed
        assert pair.found() <= reported(pair, pair.network.lost), seed
        assert not pair.wrong, seed
        lost += len(served)
    assert lost > 5


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=LONG)], ids=str)
def test_a_report_that_arrives_twice_is_no_second_reader(seeds: range) -> None:
    """The engine that prefills cannot distinguish the two, and nobody is accused."""
    repeated = 0
    for seed in seeds:
        pair = played(seed, repeated=0.3)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        repeated += len(pair.network.repeated)
    assert repeated > 5
