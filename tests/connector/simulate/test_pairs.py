"""Two engines with vLLM's own NIXL connector, one of which hands over to the other: nothing is found where all is right, and
each planted fault is named by its rule. The settings are kvtrail's defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

from kvtrail.connector.faults import OF_PAIRS
from kvtrail.connector.known.nixl.stand_in.network import Network, Transfer
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.pair_scenario import Mistake, PairScenario, Point, Request, drawn
from kvtrail.connector.simulate.pairs import DECODE, PREFILL, PlayedPair, play_pair
from kvtrail.connector.simulate.scenario import Arrival
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE, LAYERS
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup
from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.reference_hashes import SharedReferences
from kvtrail.tracer.model.findings import Finding

NIXL = configuration("NixlConnector", {})
LONG = pytest.mark.long
LOOKS = ("loaded", "admitted")


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


RANKS = (1, 2), (2, 1), (2, 2)
"""Tensor-parallel ranks of the engine that prefills, and of the other one."""


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 45), marks=LONG)], ids=str)
def test_nothing_is_found_whatever_the_tensor_parallel_sizes(seeds: range) -> None:
    loads = 0
    for seed in seeds:
        prefill, decode = RANKS[seed % len(RANKS)]
        scenario = replace(drawn(seed, failing=0.2 * (seed % 2)), prefill_ranks=prefill, decode_ranks=decode)
        pair = play_pair(scenario, NIXL)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        loads += pair.loads_read
    assert loads > 3 * len(seeds)


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
    it, but those that find such a load in vLLM's prefix cache. The bytes of whole blocks name exactly the wrong loads."""
    assert OF_PAIRS[rule] == mistake
    planted = wrong = 0
    for seed in seeds:
        pair = played(seed, mistakes=(mistake,))
        assert pair.planted <= pair.found(rule), seed
        loaded = {name for name, text in pair.wrong.items() if "reported the load" in text}
        assert loaded <= pair.planted, seed
        drifts = [each for each in pair.findings if each.rule == "byte-drift"]
        found = {look: {pair.names[each.request] for each in drifts if each.numbers["look"] == look} for look in LOOKS}
        # a call that killed the engine is no request's
        assert pair.found() - {""} <= pair.planted | found["admitted"], seed
        if mistake in (Mistake.EXCHANGED, Mistake.OVERDUE):
            assert found["loaded"] == loaded, seed
        planted += len(pair.planted)
        wrong += len(loaded)
    assert planted > len(seeds)
    assert wrong or mistake is Mistake.TWICE, "only of the second reader most are in time"


def exchanged(*decodes: Arrival, groups: tuple[CacheGroup, ...] = (), ranks: tuple[int, int] = (1, 1)) -> PlayedPair:
    """Two requests get each other's KV; beside them the engine that decodes is asked for these."""
    requests = tuple(Request(f"r-{n}", ((text, 150),), mistake=Mistake.EXCHANGED) for n, text in enumerate("ab"))
    scenario = PairScenario(
        requests=requests, decodes=decodes, groups=groups, prefill_ranks=ranks[0], decode_ranks=ranks[1]
    )
    return play_pair(scenario, NIXL)


def drifts(pair: PlayedPair) -> dict[str, Finding]:
    return {pair.names.get(each.request, each.request): each for each in pair.findings if each.rule == "byte-drift"}


AGAIN = Arrival("again", (("a", 150), ("more", 40)), 4, at_step=100)
OTHERS = tuple(Arrival(f"other-{n}", ((f"other-{n}", 300),), 2, at_step=50 + 5 * n) for n in range(6))
"""They take all blocks of the engine that decodes."""


def test_a_finding_says_whose_kv_it_is_and_to_whom_it_was_handed_over() -> None:
    pair = exchanged()
    found = drifts(pair)
    given = {
        pair.names[each.request or ""]: each.request for each in pair.recorded[PREFILL] if each.kind == Kind.HANDOFF
    }
    taken = {
        pair.names[each.request or ""]: each.request for each in pair.recorded[DECODE] if each.kind == Kind.HANDOFF
    }
    assert found.keys() == pair.wrong.keys() == {"r-0", "r-1"}
    for mine, other in (("r-0", "r-1"), ("r-1", "r-0")):
        numbers = found[mine].numbers
        assert (numbers["looked"], numbers["wrong"], numbers["token"], numbers["owner_token"]) == (4, 4, 0, 0)
        assert (numbers["owner"], numbers["takers"]) == (given[other], [taken[mine]])
        assert "That request was handed over at H1 (" in found[mine].explanation
        assert "), to this request at H2 (" in found[mine].explanation


def test_who_takes_over_a_wrong_load_is_named_with_who_loaded_it() -> None:
    pair = exchanged(AGAIN)
    found = drifts(pair)
    assert found.keys() == {"r-0", "r-1", "again"}
    numbers = found["again"].numbers
    assert (numbers["look"], numbers["wrong"], pair.names[numbers["source"]]) == ("admitted", 4, "r-0")
    assert (pair.names[numbers["owner"]], [pair.names[each] for each in numbers["takers"]]) == ("r-1", ["r-0"])


@pytest.mark.parametrize(
    "between",
    [(), (Arrival("fresh", (("a", 150),), 2, at_step=90),)],
    ids=["computes it", "takes over what was computed"],
)
def test_who_comes_when_others_have_written_the_blocks_is_not_named(between: tuple[Arrival, ...]) -> None:
    pair = exchanged(*OTHERS, *between, AGAIN)
    assert drifts(pair).keys() == {"r-0", "r-1"}
    assert kinds(pair, DECODE)[Kind.REQUEST] == 3 + len(OTHERS) + len(between), "all have run to their ends"


def test_each_rank_is_compared_with_the_same_rank_of_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank of the engine that decodes reads the first two blocks of each transfer into each other's places."""
    requests = tuple(Request(f"r-{n}", ((f"{n}", 150),), at_tick=20 * n) for n in range(3))
    sound = play_pair(PairScenario(requests=requests, prefill_ranks=2, decode_ranks=2), NIXL)
    assert not sound.findings, [each.explanation for each in sound.findings]
    checked = Counter(
        each.rank for each in sound.events if isinstance(each, BlockCheck) and each.check_look == "loaded"
    )
    assert checked == {0: 3, 1: 3}

    move = Network._move

    def exchange(network: Network, transfer: Transfer) -> None:
        if transfer.reader == [*network.agents][3]:  # those that prefill are made first
            copies = transfer.copies
            for first in range(0, len(copies), len(copies) // LAYERS):
                (one, of_one, size), (other, of_other, _) = copies[first : first + 2]
                copies[first : first + 2] = (one, of_other, size), (other, of_one, size)
        move(network, transfer)

    monkeypatch.setattr(Network, "_move", exchange)
    pair = play_pair(PairScenario(requests=requests, prefill_ranks=2, decode_ranks=2), NIXL)
    found = drifts(pair)
    assert found.keys() == pair.wrong.keys() == {"r-0", "r-1", "r-2"}
    for name, finding in found.items():
        assert (finding.count, finding.numbers["rank"], finding.numbers["wrong"]) == (1, 1, 2)
        assert (finding.numbers["token"], finding.numbers["owner_token"]) == (0, BLOCK_SIZE)
        assert pair.names[finding.numbers["owner"]] == name, "its own KV, of other tokens"


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)], ids=str)
def test_engines_of_different_tensor_parallel_sizes_are_compared_by_a_head(ranks: tuple[int, int]) -> None:
    requests = tuple(Request(f"r-{n}", ((f"{n}", 150),), at_tick=20 * n) for n in range(3))
    scenario = PairScenario(requests=requests, prefill_ranks=ranks[0], decode_ranks=ranks[1])
    sound = play_pair(scenario, NIXL)
    assert (sound.findings, dict(sound.wrong), sound.loads_read) == ([], {}, 3)
    first = SharedReferences()
    for event in sound.events:
        if isinstance(event, BlockCheck):
            first.enter(event)
    loads = [each for each in sound.events if isinstance(each, BlockCheck) and each.check_look == "loaded"]
    assert {each.rank for each in loads if first.is_any_right(each)} == {0}, "the other rank's first head is on none"

    pair = exchanged(ranks=ranks)
    assert drifts(pair).keys() == pair.wrong.keys() == {"r-0", "r-1"}
    assert {(each.numbers["rank"], each.numbers["wrong"]) for each in drifts(pair).values()} == {(0, 4)}


def test_groups_are_compared_each() -> None:
    pair = exchanged(groups=(CacheGroup(FULL), CacheGroup(SLIDING, window=64)))
    loads = [each for each in pair.recorded[DECODE] if isinstance(each, BlockCheck) and each.check_look == "loaded"]
    assert {each.group for each in loads} == {0, 1}
    found = drifts(pair)
    assert found.keys() == pair.wrong.keys() == {"r-0", "r-1"}
    assert {each.count for each in found.values()} == {2}, "one for each group"
    for each in found.values():
        assert each.numbers["group"] == each.numbers["owner_group"]


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
