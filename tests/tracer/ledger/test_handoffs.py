"""A pair is judged once, whichever side is heard first, and a report that is late is no report that is lost."""

from __future__ import annotations

import itertools

import pytest
from history import heartbeats, history, judge, rules_found
from msgspec import structs
from pair_stories import EXPIRED, GIVES
from pair_stories import TAKES as DECODE

from kvtrail.dashboard.content.request.account import handoff_text
from kvtrail.tracer.detect.retained_blocks import KeptFor, retained_handoffs
from kvtrail.tracer.events.events import Event, Free, Handoff, Heartbeat, RequestEnd
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.handoff_sums import NOBODY
from kvtrail.tracer.ledger.handoffs import HandOffs
from kvtrail.tracer.model.findings import Severity
from kvtrail.tracer.serve.api.requests import handoffs_of

PREFILL = GIVES + EXPIRED


def sides(text: str) -> list[list[Event]]:
    """The events of each engine."""
    events = history(text, connector="NixlConnector")
    return [[each for each in events if (each.engine == "d") is is_decode] for is_decode in (False, True)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
@pytest.mark.parametrize(
    ("digest", "after", "rules"),
    [
        ("b", "read", ["handoff-mismatch", "stale-handoff", "stale-handoff"]),
        ("a", "read", ["stale-handoff", "stale-handoff"]),
        ("a", "wait 1", ["unacknowledged-handoff"]),
    ],
)
def test_a_pair_is_judged_once_whichever_side_is_heard_first(
    digest: str, after: str, rules: list[str], order: tuple[int, int]
) -> None:
    both = sides(PREFILL.format(digest=digest) + DECODE + after)
    detector = judge([event for side in order for event in both[side]], later_s=30)
    assert rules_found(detector) == rules


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
@pytest.mark.parametrize("healed", [True, False])
def test_blocks_that_are_computed_again_are_healed_whichever_side_is_heard_first(
    healed: bool, order: tuple[int, int]
) -> None:
    error = "<d> error [1 2]\n    <d> R"
    text = PREFILL.format(digest="a") + (DECODE.replace("<d> R", error) if healed else DECODE)
    both = sides(text + "read")
    detector = judge([event for side in order for event in both[side]], later_s=30)
    (stale,) = [f for of in detector.findings.values() for f in of.values() if f.numbers.get("where") == "taken"]
    assert stale.healed == healed


def test_a_report_that_comes_long_after_the_lease_is_late_and_not_lost() -> None:
    detector = judge(
        history(PREFILL.format(digest="a") + "wait 60\n" + DECODE + "wait 8\nread\nwait 60", connector="NixlConnector")
    )
    assert rules_found(detector) == ["stale-handoff", "stale-handoff"]


def test_what_a_worker_reports_before_the_scheduler_counts_once_the_hand_off_is_known() -> None:
    """The two are different processes of the engine that prefills, and either may be heard first."""
    events = history(PREFILL.format(digest="a") + DECODE + "wait 60", connector="NixlConnector")
    expired = next(each for each in events if isinstance(each, Free))
    of_worker = structs.replace(expired, role="worker", recorder="worker", sequence=0, request_sequence=0)
    beats = [each for each in events if isinstance(each, Heartbeat) and each.recorder == expired.recorder]
    beats = [
        structs.replace(each, recorder="worker", sequence=number)
        for number, each in enumerate((each for each in beats if each.end_ns > expired.end_ns), start=1)
    ]
    numbered = [
        structs.replace(each, sequence=each.sequence - (each.engine != "d" and each.sequence > expired.sequence))
        for each in events
        if each is not expired
    ]
    assert rules_found(judge([of_worker, *numbered, *beats])) == ["unacknowledged-handoff"]
    assert rules_found(judge([*numbered, of_worker, *beats])) == ["unacknowledged-handoff"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_read_that_failed_needs_no_report_in_whatever_order_its_recorders_are_heard(order: tuple[int, ...]) -> None:
    text = PREFILL.format(digest="a") + DECODE.replace(
        "<d> R", "<d> end aborted\n    <d> xfer read failed !ERR\n    <d> R"
    )
    prefill, decode = sides(text + "wait 60")
    worker = [each for each in decode if each.kind == Kind.XFER]
    parts = [prefill, [each for each in decode if each not in worker], worker]
    assert len(worker) == 1
    assert rules_found(judge([event for part in order for event in parts[part]], later_s=30)) == []


def test_what_an_engine_keeps_for_whom() -> None:
    text = GIVES.format(digest="a")
    for more, taker, state in (
        ("", NOBODY, KeptFor.UNCLAIMED),
        (DECODE.replace("<d> R", ""), "d", KeptFor.WAITING),
        (DECODE, "d", KeptFor.LOADED),
        (DECODE.replace("<d> R", "<d> R failed\n<d> end aborted"), "d", KeptFor.ABANDONED),
        ("<d> start 600\n<d> takes h1 600/600 of a\n<d> end aborted", "d", KeptFor.ABANDONED),
    ):
        (kept,) = retained_handoffs(judge(history(text + more, connector="NixlConnector")))
        assert (kept.engine, kept.tokens, kept.taker, kept.state) == ("engine", 600, taker, state), more
    assert not list(retained_handoffs(judge(history(text + "read\nsent", connector="NixlConnector"))))


def test_a_connector_that_pushes_cannot_distinguish_two_requests_with_one_id_of_the_clients() -> None:
    one, other = (
        f"{name}start 600\n{name}gives {key} 600/600 of a in MODE\n{name}end delayed lease 30\n"
        for name, key in (("", "h1"), ("b: ", "h2"))
    )
    for mode, between, rules in (
        ("push", "", ["ambiguous-handoff"]),
        ("push", "sent\n", []),
        ("pull", "", []),
    ):
        text = (one + between + other).replace("MODE", mode)
        events = [structs.replace(each, external="cmpl-1") for each in history(text, connector="NixlPushConnector")]
        assert rules_found(judge(events)) == rules, (mode, between)


def test_a_name_that_two_hand_offs_have_joins_nothing() -> None:
    """Which of them a request takes is not known then, so that no request is accused of taking another's."""
    prefill = "start 600\ngives h1 600/600 of DIGEST\nend delayed lease 30\n"
    two = prefill.replace("DIGEST", "a") + "".join(
        f"b: {line}\n" for line in prefill.replace("DIGEST", "b").splitlines()
    )
    detector = judge(history(two + DECODE.replace("of a", "of b"), connector="MooncakeConnector"))
    assert rules_found(detector) == ["ambiguous-handoff"]


@pytest.mark.parametrize(
    ("between", "given_out"),
    [
        ("", False),
        ("b: L 64 c0 -> 0\nb: A 0 [40 41]", False),
        ("b: L 64 c0 -> 0\nb: A 0 [3 4]", True),
        ("b: L 96 c64 -> 0\nb: A 0 [3 4 40]", False),  # a hit in the prefix cache overwrites nothing
        ("b: L 64 c0 -> 0\nb: A 0 [40 41]\nb: S 0+64 [40 41]\nb: S 64+32 [5]", True),
    ],
)
def test_whether_the_blocks_of_a_late_read_were_given_to_somebody_else(between: str, given_out: bool) -> None:
    text = PREFILL.format(digest="a").replace("of a", "of a [1-19]") + DECODE
    events = history(f"{text}{between}\nread\nb: L 64 c0 -> 0\nb: A 0 [1-2]", connector="NixlConnector")
    sides = [[each for each in events if (each.engine == "d") is is_decode] for is_decode in (False, True)]
    for heard in (events, [*sides[0], *sides[1]], [*sides[1], *sides[0]]):
        found = {each.numbers["where"]: each for held in judge(heard).findings.values() for each in held.values()}
        assert found["taken"].numbers["given_out"] is given_out
        severity = Severity.WRONG_OUTPUT if given_out else Severity.BROKEN_CONTRACT
        assert [each.severity for _, each in sorted(found.items())] == [severity, severity]
        assert ("was given some of them" in found["taken"].explanation) is given_out
    release = next(each for each in events if isinstance(each, Free))
    lost = next(each for each in events if each.recorder == release.recorder and each.sequence == release.sequence + 1)
    found = judge([each for each in events if each is not lost]).findings["d", "cmpl-1-0-0123abcd"]
    (of_lost,) = [each for each in found.values() if each.rule == "stale-handoff"]
    assert (of_lost.numbers["given_out"], of_lost.severity) == (None, Severity.BROKEN_CONTRACT)


def test_a_late_read_of_blocks_that_were_given_out_is_severe_although_an_earlier_one_was_not() -> None:
    """Of two reports of one request the worse one counts; a request that has the id again has nothing to do with it."""
    gives = PREFILL.format(digest="a").replace("of a", "of a [1-19]")
    read = "b: L 64 c0 -> 0\nb: A 0 [3 4]\nread"
    for text, severities in (
        (f"{gives}read", [Severity.BROKEN_CONTRACT]),
        (f"{gives}{read}", [Severity.WRONG_OUTPUT]),
        (f"{gives}{read}\nread", [Severity.WRONG_OUTPUT]),
        (f"{gives}start 600\nread", []),
    ):
        findings = judge(history(text, connector="NixlConnector")).findings.values()
        assert [each.severity for held in findings for each in held.values()] == severities, text


def test_each_side_leads_to_the_other_as_far_as_it_is_known() -> None:
    events = history(PREFILL.format(digest="a") + DECODE, connector="NixlConnector")
    known = judge(events).handoffs
    given = [each for each in events if each.engine != "d"]
    taken = [each for each in events if each.engine == "d"]
    for side, words in ((given, "Handed over to cmpl-1-0"), (taken, "Prefilled as cmpl-1-0")):
        (link,) = handoffs_of(side, known)
        assert link.request == "cmpl-1-0-0123abcd"
        assert handoff_text(link.model_dump()) == words
        (alone,) = handoffs_of(side, HandOffs())
        assert handoff_text(alone.model_dump()) == "Handed over as h1; the other engine has reported nothing of it"


WRITTEN = """
    gives h1 600/600 of a
    end delayed length_capped handoff computed 600 lease 30
    xfer write posted 19 peer d for b
"""
TAKES_ANOTHER = """
    <d> b: start 600
    <d> b: takes h2 600/600 of {digest}
    <d> b: sent registration peer p
"""


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(("digest", "rules"), [("b", ["handoff-mismatch"]), ("a", [])])
def test_a_write_to_a_request_of_another_prompt_is_found_whichever_side_is_heard_first(
    digest: str, rules: list[str], order: tuple[int, ...]
) -> None:
    """The one that writes is heard in two parts: its worker has a recorder of its own."""
    events = history(WRITTEN + TAKES_ANOTHER.format(digest=digest), connector="NixlPushConnector")
    parts: list[list[Event]] = [[], [], []]
    for event in events:
        parts[0 if event.engine == "d" else 1 if event.kind == Kind.XFER else 2].append(event)
    for event in parts[1]:
        event.recorder, event.sequence, event.request_sequence = "worker", 0, 0
    detector = judge([event for part in order for event in parts[part]])
    assert rules_found(detector) == rules
    if rules:
        (finding,) = next(iter(detector.findings.values())).values()
        assert (finding.request, finding.numbers["other"]) == ("b-cmpl-1-0-0123abcd", "cmpl-1-0-0123abcd")
        assert "it wrote that into the blocks of this request" in finding.explanation


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ("<w> read by d-0 of 2\n<w> read by d-1 of 2", ["unacknowledged-handoff"]),
        ("<w> read by d-0 of 2", ["unacknowledged-handoff"]),
        ("<w> read by d-0 of 2\n<w> read by d-0 of 2", []),
        ("<w> read by d-0\n<w> read by d-1", []),
        ("<v> read by d-0 of 1", ["unacknowledged-handoff"]),
    ],
)
def test_a_rank_that_keeps_its_blocks_needs_the_reports_of_its_own_readers(
    said: str, rules: list[str], order: tuple[int, ...]
) -> None:
    """All of them have come, or one is missing of a request that has loaded. One that reports twice is counted by the engine
    twice; without a number of readers it is not known how many there are; and those of another rank do not count."""
    text = f"{GIVES.format(digest='a')}{DECODE}{said}\nwait 30\n<w> freed expired\nsent\nwait 30"
    workers = {"w": 0, "v": 1}
    events = [
        structs.replace(each, engine="engine", role="worker", rank=workers[each.engine])
        if each.engine in workers
        else each
        for each in history(text, connector="NixlConnector")
    ]
    beats = heartbeats([each for each in events if each.recorder == "w"], later_s=30)[-8:]
    parts = [[each for each in events if each.recorder in names] for names in (("recorder",), ("d",), ("w", "v"))]
    detector = judge([event for part in order for event in parts[part]] + beats)
    assert rules_found(detector) == rules


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ("xfer write done peer d for -", ["unacknowledged-handoff"]),
        ("", []),
        ("xfer write failed peer d for - !ERR", []),
    ],
)
def test_blocks_that_have_been_written_are_kept_for_nobody(said: str, rules: list[str]) -> None:
    given = PREFILL.format(digest="a").partition("wait")[0] + f"xfer write posted 19 peer d for -\n{said}\n"
    events = history(f"{given}wait 30\nfreed expired\nsent\nwait 60", connector="NixlPushConnector")
    found = judge(events)
    assert rules_found(found) == rules
    if rules:
        (finding,) = next(iter(found.findings.values())).values()
        assert "the last write by which the request was handed over ended" in finding.explanation
        lost = next(each for each in events if isinstance(each, RequestEnd))
        assert rules_found(judge([each for each in events if each is not lost])) == []


@pytest.mark.parametrize(
    ("after", "rules"),
    [
        ("xfer write done peer d for -\nwait 60", []),
        ("wait 30\nfreed expired\nsent\nwait 60", []),
        ("xfer write failed peer d for - !ERR\nwait 30\nfreed expired\nsent\nwait 60", []),
        ("wait 30\nfreed expired\nsent\nxfer write done peer d for -\nwait 60", ["stale-handoff", "stale-handoff"]),
        ("sent\nxfer write done peer d for -\nwait 60", ["stale-handoff", "stale-handoff"]),
        ("wait 30\nfreed expired\nsent\nxfer write failed peer d for - !ERR\nwait 60", ["stale-handoff"]),
        ("wait 30\nfreed expired\nsent\nxfer write failed by 1 peer d for - !ERR\nwait 60", []),
    ],
)
def test_who_writes_itself_needs_no_report(after: str, rules: list[str]) -> None:
    """The write has ended before the blocks are given back, or it is known that it failed, or not how it ended; only one that
    is known to have ended later may have written what is another's. A failure of one that was not posted ends nothing."""
    given = PREFILL.format(digest="a").partition("wait")[0] + "xfer write posted 19 peer d for -\n"
    detector = judge(history(given + DECODE + after, connector="NixlPushConnector"))
    assert rules_found(detector) == rules
    found = [finding for held in detector.findings.values() for finding in held.values()]
    said = {finding.numbers["where"]: finding.explanation for finding in found}
    if len(rules) == 2:
        assert "its own write of them to the other engine ended" in said["taken"]
    if rules:
        assert "its own write of them to the other engine ended" in said["given"]


@pytest.mark.parametrize(("given_out", "harm"), [("b: L 64 c0 -> 0\nb: A 0 [3 4]\n", True), ("", False)])
def test_an_engine_that_writes_what_it_has_given_back_is_named_by_itself(given_out: str, harm: bool) -> None:
    """Whatever the other engine does, and why ever the blocks were given back."""
    given = PREFILL.format(digest="a").partition("wait")[0].replace("of a", "of a [1-19]")
    write = "xfer write posted 19 peer d for -\nSAIDxfer write done peer d for -\nwait 60"
    found = judge(history((given + write).replace("SAID", f"sent\n{given_out}"), connector="MooncakeConnector"))
    ((finding,),) = [held.values() for held in found.findings.values()]
    assert (finding.rule, finding.severity == Severity.WRONG_OUTPUT) == ("stale-handoff", harm)
    assert (finding.numbers["expired"], finding.numbers["state"]) == (False, "done")
    assert ("was given some of them" in finding.explanation) is harm
    assert not rules_found(judge(history((given + write).replace("SAID", ""), connector="MooncakeConnector")))
    by_another = (given + write).replace("SAID", "<w> sent\n")
    events = [
        structs.replace(each, engine="engine") if each.engine == "w" else each
        for each in history(by_another, connector="MooncakeConnector")
    ]
    assert not rules_found(judge(events))


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
@pytest.mark.parametrize(("launch", "rules"), [("second", ["stale-handoff"]), ("first", []), (None, [])])
def test_who_reads_from_a_later_launch_of_the_engine_is_named(
    launch: str | None, rules: list[str], order: tuple[int, int]
) -> None:
    """An engine that is started again with its id answers for blocks that it never had. Without a launch nothing is known."""
    given = PREFILL.format(digest="a").partition("wait")[0]
    both = sides(given + DECODE + "read by d-0 of 1")
    for event in both[0]:
        event.launch = "first"
    both[0][-1].launch, both[0][-1].recorder = launch, "worker"
    both[0][-1].sequence = both[0][-1].request_sequence = 0
    detector = judge([event for side in order for event in both[side]])
    assert rules_found(detector) == rules
    if rules:
        (finding,) = next(iter(detector.findings.values())).values()
        assert (finding.numbers["expired"], finding.engine) == (False, "d")
        assert "a reader reported to its new launch" in finding.explanation


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("said", ["read by d", "xfer write done"])
def test_why_blocks_were_given_back_does_not_depend_on_which_process_is_heard_first(
    said: str, order: tuple[int, ...]
) -> None:
    """The worker that hears the reader, the scheduler that gives the blocks back, and the engine that reads."""
    text = GIVES.format(digest="a") + DECODE + f"<w> {said}\nsent"
    events = [
        structs.replace(each, engine="engine", role="worker") if each.engine == "w" else each
        for each in history(text, connector="NixlConnector")
    ]
    parts = [[each for each in events if each.recorder == name] for name in ("recorder", "w", "d")]
    detector = judge([event for part in order for event in parts[part]])
    ((engines, flow),) = [(engines, flow) for engines, flow in detector.handoffs.flows.items() if flow.handoffs]
    assert engines == ("engine", "d")
    assert flow.as_dict()["outcomes"] == {"read": 1, "loaded": 1}


def test_a_report_that_may_be_among_the_lost_events_is_not_missed() -> None:
    """An event of the engine that gives is missing after it gave: it may have been the reader's report."""
    events = history(PREFILL.format(digest="a") + DECODE + "wait 60", connector="NixlConnector")
    assert rules_found(judge(events, later_s=30)) == ["unacknowledged-handoff"]
    given = next(each for each in events if isinstance(each, Handoff) and each.engine != "d")
    lost = next(each for each in events if isinstance(each, Heartbeat) and each.sequence > given.sequence)
    assert lost.recorder == given.recorder
    assert rules_found(judge([each for each in events if each is not lost], later_s=60)) == []
