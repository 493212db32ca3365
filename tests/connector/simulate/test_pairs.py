"""Two engines with vLLM's own NIXL connector, a prefill engine and a decode engine: nothing is found where all is right, and
each planted fault is named by its rule. The settings are kvtrail's defaults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from history import judge

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

from faults import OF_PAIRS
from faulty_pairs import DECODE, PREFILL, Mistake, PlayedPair, Request, drawn, paired, play_pair, with_pair
from recorded_runs import play_pair_once

from kvtrail.connector.fingerprints import checksums
from kvtrail.connector.known.nixl.stand_in.network import Network, Schedule, Transfer
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.pairs.router import Router
from kvtrail.connector.simulate.scenario import Arrival, Point
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE, LAYERS
from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup
from kvtrail.tracer.events.events import BlockCheck, Handoff
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.clock_offset import ahead
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.rules.contents.reference_hashes import SharedReferences

NIXL = configuration("NixlConnector", {})
HEALED = configuration("NixlConnector", {"kvtrail": {"guard": "heal"}})
LONG = pytest.mark.long
LOOKS = ("loaded", "admitted")


def played(seed: int, **planted: float | bool | tuple[Mistake, ...]) -> PlayedPair:
    return play_pair_once(drawn(seed, **planted), NIXL)  # type: ignore[arg-type]


def kinds(pair: PlayedPair, engine: str) -> Counter[str]:
    return Counter(event.kind for event in pair.recorded[engine])


def reported(pair: PlayedPair, messages: Iterable[bytes]) -> set[str]:
    """The clients' ids of the requests that these reports of readers are about."""
    return {pair.names[message.decode().rpartition(":")[0]] for message in messages}


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=LONG)], ids=str)
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
    assert total[Kind.FREE], "leases of unread requests run out"
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


RANKS = (1, 2), (2, 1), (2, 2)
"""Tensor-parallel ranks of the engine that prefills, and of the other one."""


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 45), marks=LONG)], ids=str)
def test_nothing_is_found_whatever_the_tensor_parallel_sizes(seeds: range) -> None:
    loads = 0
    for seed in seeds:
        prefill, decode = RANKS[seed % len(RANKS)]
        scenario = with_pair(drawn(seed, failing=0.2 * (seed % 2)), prefill_ranks=prefill, decode_ranks=decode)
        pair = play_pair_once(scenario, NIXL)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        loads += pair.loads_read
    assert loads > 3 * len(seeds)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 30), marks=LONG)], ids=str)
def test_nothing_is_found_where_an_offload_stands_beside_it(seeds: range) -> None:
    offload = configuration("OffloadConnector", {"chunk_size": 64, "cpu_bytes_to_use": 50_000_000})
    both = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [NIXL, offload]}}
    stored = 0
    for seed in seeds:
        pair = play_pair_once(drawn(seed), both)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        assert pair.loads_read, seed
        stored += kinds(pair, PREFILL)[Kind.STORE]
    assert stored


def test_a_prompt_of_one_token_is_loaded_and_computed_all_the_same() -> None:
    """vLLM computes the last token again, so that none counts as computed, and asks the connector a second time."""
    pair = play_pair_once(paired(requests=(Request("r-0", (("one", 1),)),)), NIXL)
    assert (pair.loads_read, sorted(pair.answered)) == (1, ["r-0"])
    assert not pair.findings, [each.explanation for each in pair.findings]


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=LONG)], ids=str)
def test_a_load_that_fails_is_computed_again_or_its_request_fails(seeds: range) -> None:
    failed = 0
    for seed in seeds:
        pair = played(seed, failing=0.3)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        failed += len(pair.network.failed)
    assert failed > len(seeds)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 40), marks=LONG)], ids=str)
def test_who_decodes_outlives_who_prefilled(seeds: range) -> None:
    """What it was to read fails, and is computed again or fails its request; nothing is left of it; there are no findings."""
    died = 0
    for seed in seeds:
        pair = played(seed, dies=True)
        assert pair.errors.keys() <= {PREFILL}, (seed, pair.errors)
        accused = pair.found() - pair.found("peer-always-failing")
        assert not accused, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert not pair.wrong, (seed, pair.wrong)
        assert DECODE not in pair.left, (seed, pair.left)
        assert not pair.remembered, (seed, pair.remembered)
        died += bool(pair.errors)
    assert died == len(seeds)


def is_last_token(wrong: str) -> bool:
    """Whether a load is wrong in its last token alone, which vLLM computes again, as it needs a token to compute."""
    said = re.search(r"its first (\d+) tokens\. 1 of them .* the first of them token (\d+) in block", wrong)
    return said is not None and int(said[1]) == int(said[2]) + 1


def in_whole_blocks(wrong: str) -> bool:
    """Whether a load is wrong in more than its last block, if that is not full."""
    said = re.search(r"its first (\d+) tokens.* the first of them token (\d+) in block", wrong)
    assert said is not None, wrong
    tokens, first = map(int, said.groups())
    return first < tokens // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        (Mistake.ALTERED, "handoff-mismatch"),
        (Mistake.EXCHANGED, "handoff-mismatch"),
        (Mistake.TWICE, "duplicate-load"),
        (Mistake.SHORT, "handoff-mismatch"),
        (Mistake.OVERDUE, "stale-handoff"),
    ],
)
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=LONG)], ids=str)
def test_a_routers_mistake_is_named(mistake: Mistake, rule: str, seeds: range) -> None:
    """Whoever has loaded what is not its own is named, and so is every other request with the mistake; none is named without
    it, but those that find such a load in vLLM's prefix cache. The bytes of whole blocks name exactly the wrong loads."""
    assert OF_PAIRS[mistake] == rule
    planted = wrong = 0
    for seed in seeds:
        pair = played(seed, mistakes=(mistake,))
        assert pair.planted <= pair.found(rule), seed
        loaded = {name for name, text in pair.wrong.items() if "reported the load" in text}
        assert loaded <= pair.planted, seed
        stale = {pair.names[each.request]: each for each in pair.findings if each.numbers.get("where") == "taken"}
        harmed = loaded if mistake is Mistake.OVERDUE else set()
        assert harmed <= {name for name, each in stale.items() if each.numbers["given_out"]}, seed
        drifts = [each for each in pair.findings if each.rule == "byte-drift"]
        found = {look: {pair.names[each.request] for each in drifts if each.numbers["look"] == look} for look in LOOKS}
        # a call that killed the engine is no request's
        assert pair.found() - {""} <= pair.planted | found["admitted"], seed
        if mistake in (Mistake.EXCHANGED, Mistake.OVERDUE):
            assert {name for name in loaded if in_whole_blocks(pair.wrong[name])} <= found["loaded"] <= loaded, seed
        planted += len(pair.planted)
        wrong += len(loaded)
    assert planted > len(seeds)
    assert wrong or mistake is Mistake.TWICE, "only of the second reader most are in time"


def one_by_one(count: int) -> tuple[Request, ...]:
    """Requests that are handed over one by one: the one before must have ended."""
    return tuple(Request(f"r-{n}", ((f"own {n}", 70),), at_tick=n * 40, kept_ticks=5) for n in range(count))


def test_a_pair_with_only_failed_loads_is_found_once() -> None:
    scenario = paired(requests=one_by_one(11), network=Schedule(failing=1.0))
    pair = play_pair_once(scenario, NIXL)
    (found,) = pair.findings
    assert (found.rule, found.numbers["failed"], found.numbers["gone"]) == ("peer-always-failing", 8, None)
    assert found.numbers["peer"] == pair.recorded[PREFILL][0].engine
    assert pair.names[found.request] == "r-7"


def test_a_pair_with_one_good_load_is_not_dead() -> None:
    pair = play_pair_once(paired(requests=one_by_one(20), network=Schedule(failing=0.6, seed=1)), NIXL)
    assert len(pair.network.failed) >= 8
    assert not pair.findings, [each.explanation for each in pair.findings]


def test_what_is_to_be_read_from_an_engine_that_was_killed_fails_and_is_found_once() -> None:
    requests = tuple(Request(f"r-{n}", ((f"own {n}", 70),), at_tick=n * 4, kept_ticks=100 + n * 40) for n in range(10))
    pair = play_pair_once(paired(requests=requests, prefill_dies_at=90, num_blocks=96), NIXL)
    assert pair.found("peer-always-failing") == {"r-7"}
    assert pair.found() == {"r-7"}


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 20), marks=LONG)], ids=str)
def test_two_hand_offs_with_one_name_are_named(seeds: range) -> None:
    """The second one is, with the first in its numbers. NIXL does not use the name, so all goes well."""
    assert OF_PAIRS[Mistake.NAMED_ALIKE] == "ambiguous-handoff"
    found = 0
    for seed in seeds:
        pair = played(seed, mistakes=(Mistake.NAMED_ALIKE,))
        both = [{each.request, each.numbers["other"]} for each in pair.findings if each.rule == "ambiguous-handoff"]
        assert [{pair.names[name] for name in each} for each in both] == [pair.planted], seed
        assert pair.found() <= pair.planted, seed
        assert not pair.wrong, seed
        found += len(both)
    assert found == len(seeds)


@pytest.mark.parametrize("mistake", [Mistake.OVERDUE, Mistake.EXCHANGED, Mistake.SHORT, Mistake.CUT])
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 30), marks=LONG)], ids=str)
def test_healed_a_routers_mistake_gives_no_wrong_answer(mistake: Mistake, seeds: range) -> None:
    """Not even where vLLM would die of it. Blocks that are not what was handed over are computed again, and what belongs to
    another prompt, or to less of it, is not loaded."""
    harmed = 0
    for seed in seeds:
        scenario = replace(drawn(seed, mistakes=(mistake,)), recompute=True)
        observed, healed = play_pair_once(scenario, NIXL), play_pair_once(scenario, HEALED)
        read = {name: wrong for name, wrong in healed.wrong.items() if not is_last_token(wrong)}
        assert (read, dict(healed.errors), dict(healed.left)) == ({}, {}, {}), seed
        assert healed.planted <= healed.answered, seed
        harmed += len(observed.wrong) + len(observed.errors)
        if mistake is Mistake.OVERDUE:
            loaded = {name for name, text in observed.wrong.items() if "reported the load" in text}
            assert healed.found("byte-drift") == loaded, seed
            late = [each for each in healed.findings if each.numbers.get("given_out")]
            of_it = [each for each in healed.findings if each.rule == "byte-drift"] + late
            assert all(each.healed == each.count for each in of_it), seed
    assert harmed >= len(seeds)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=LONG) for seed in range(1, 20))])
@pytest.mark.parametrize("mistake", [Mistake.OVERDUE, None], ids=str)
def test_healed_beside_an_offload(mistake: Mistake | None, seed: int) -> None:
    """What the other child has stored itself is not compared with what was handed over."""
    offload = configuration("OffloadConnector", {"chunk_size": 64, "cpu_bytes_to_use": 50_000_000})
    both = configuration("MultiConnector", {"connectors": [NIXL, offload], "kvtrail": {"guard": "heal"}})
    healed = play_pair_once(replace(drawn(seed, mistakes=(mistake,) if mistake else ()), recompute=True), both)
    assert (dict(healed.wrong), dict(healed.errors), dict(healed.left)) == ({}, {}, {})
    assert healed.found() == healed.planted
    assert healed.found("byte-drift") == healed.planted


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 40), marks=LONG)], ids=str)
def test_healing_changes_nothing_where_all_is_right(seeds: range) -> None:
    """As much is loaded as without it."""
    loaded = 0
    for seed in seeds:
        healed = play_pair_once(drawn(seed), HEALED)
        assert not healed.findings, (seed, [(each.rule, each.explanation) for each in healed.findings])
        assert (dict(healed.wrong), dict(healed.errors), dict(healed.left)) == ({}, {}, {}), seed
        assert healed.loads_read == played(seed).loads_read, seed
        loaded += healed.loads_read
    assert loaded > 6 * len(seeds)


def test_without_a_guard_an_engine_adds_nothing_to_what_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, Any]] = []
    ask = Router._ask_to_decode

    def spied(self: Router, served: Any, returned: Mapping[str, Any] | None) -> None:
        seen.append(returned or {})
        ask(self, served, returned)

    monkeypatch.setattr(Router, "_ask_to_decode", spied)
    for connector in (NIXL, HEALED):
        seen.clear()
        play_pair(drawn(0), connector)
        assert {checksums.KEY in each for each in seen if each} == {connector is HEALED}


def exchanged(*decodes: Arrival, groups: tuple[CacheGroup, ...] = (), ranks: tuple[int, int] = (1, 1)) -> PlayedPair:
    """Two requests get each other's KV; beside them the engine that decodes is asked for these."""
    requests = tuple(Request(f"r-{n}", ((text, 150),), mistake=Mistake.EXCHANGED) for n, text in enumerate("ab"))
    scenario = paired(requests=requests, decodes=decodes, groups=groups, prefill_ranks=ranks[0], decode_ranks=ranks[1])
    return play_pair(scenario, NIXL)


def drifts(pair: PlayedPair) -> dict[str, Finding]:
    return {pair.names.get(each.request, each.request): each for each in pair.findings if each.rule == "byte-drift"}


AGAIN = Arrival("again", (("a", 150), ("more", 40)), 4, at_step=100)
OTHERS = tuple(Arrival(f"other-{n}", ((f"other-{n}", 300),), 2, at_step=50 + 5 * n) for n in range(6))
"""They take all blocks of the engine that decodes."""


def test_a_finding_names_the_owner_of_the_kv_and_the_receiver() -> None:
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
        assert f"That request was handed over to {taken[mine]} (H1 (" in found[mine].explanation


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
    sound = play_pair(paired(requests=requests, prefill_ranks=2, decode_ranks=2), NIXL)
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
    pair = play_pair(paired(requests=requests, prefill_ranks=2, decode_ranks=2), NIXL)
    found = drifts(pair)
    assert found.keys() == pair.wrong.keys() == {"r-0", "r-1", "r-2"}
    for name, finding in found.items():
        assert (finding.count, finding.numbers["rank"], finding.numbers["wrong"]) == (1, 1, 2)
        assert (finding.numbers["token"], finding.numbers["owner_token"]) == (0, BLOCK_SIZE)
        assert pair.names[finding.numbers["owner"]] == name, "its own KV, of other tokens"


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)], ids=str)
def test_engines_of_different_tensor_parallel_sizes_are_compared_by_a_head(ranks: tuple[int, int]) -> None:
    requests = tuple(Request(f"r-{n}", ((f"{n}", 150),), at_tick=20 * n) for n in range(3))
    scenario = paired(requests=requests, prefill_ranks=ranks[0], decode_ranks=ranks[1])
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


@pytest.mark.parametrize("ranks", [(1, 1), (1, 2)], ids=str)
def test_a_network_that_reads_every_address_off_by_some_bytes_is_named(
    ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read belongs to no block, and differs in all of them from what the other engine has computed."""
    move = Network._move

    def shifted(network: Network, transfer: Transfer) -> None:
        transfer.copies = [(target, source + 4, length) for target, source, length in transfer.copies]
        move(network, transfer)

    monkeypatch.setattr(Network, "_move", shifted)
    requests = tuple(Request(f"r-{n}", ((f"{n}", 150),), at_tick=20 * n) for n in range(10))
    pair = play_pair(paired(requests=requests, prefill_ranks=ranks[0], decode_ranks=ranks[1]), NIXL)
    found = drifts(pair)
    assert found.keys() == pair.wrong.keys() == {each.id for each in requests} == pair.found()
    for name, each in found.items():
        assert (each.numbers["wrong"], pair.names[each.numbers["given"]]) == (4, name)
        assert "All 4 that can be compared differ" in each.explanation
    # whichever of the two processes is heard first
    giver = pair.recorded[PREFILL][0].engine
    late = sorted(pair.events, key=lambda event: isinstance(event, BlockCheck) and event.engine == giver)
    again = [f for held in judge(late).findings.values() for f in held.values()]
    assert {pair.names[each.request] for each in again if each.rule == "byte-drift"} == found.keys()


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
    pair = played(0, mistakes=(Mistake.CUT,))
    assert "_apply_prefix_caching" in pair.errors[DECODE]
    assert PREFILL not in pair.errors
    assert pair.found("handoff-mismatch") & pair.planted
    assert pair.found("failed-call")


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=LONG)], ids=str)
def test_a_report_that_is_lost_is_named(seeds: range) -> None:
    lost = unread = 0
    for seed in seeds:
        pair = played(seed, lost=0.3)
        lost_reports = reported(pair, pair.network.lost)
        assert pair.found() == pair.found("unacknowledged-handoff") == lost_reports, seed
        assert not pair.wrong, seed
        lost += len(lost_reports)
        unread += len(lost_reports - pair.answered)
    assert lost > len(seeds)
    assert unread, "also that of a request which needs nothing any more"


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 40), marks=LONG)], ids=str)
def test_a_report_that_arrives_twice_is_no_second_reader(seeds: range) -> None:
    """The engine that prefills cannot distinguish the two, and there are no findings."""
    repeated = 0
    for seed in seeds:
        pair = played(seed, repeated=0.3)
        assert not pair.findings, (seed, [(each.rule, each.explanation) for each in pair.findings])
        assert (dict(pair.wrong), dict(pair.errors), dict(pair.left)) == ({}, {}, {}), seed
        repeated += len(pair.network.repeated)
    assert repeated > len(seeds)
