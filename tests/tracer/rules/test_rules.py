"""Each rule: what it finds, with which numbers and words, and the legal look-alikes on which it is silent."""

from __future__ import annotations

import inspect
from pathlib import Path

import msgspec
import pytest
from history import history, judge, rules_found
from msgspec.structs import replace

from kvtrail.tracer.events.events import Event, Schedule, Xfer
from kvtrail.tracer.model.findings import WORST_FIRST, Finding, Unknown, Verdict
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.old_names import OLD_NAMES, current
from kvtrail.tracer.rules.rule_set import all_rules


def only_finding(text: str) -> Finding:
    """The finding that is no exception: that is only where a contradiction came to light."""
    detector = judge(history(text))
    (held,) = detector.findings.values()
    (finding,) = (finding for finding in held.values() if finding.rule != "failed-call")
    return finding


def test_the_stale_answer_of_lmcache_2158() -> None:
    """256 stored, 336 computed after the preemption, the remembered 256 handed out: need -80."""
    finding = only_finding("""
        L 10009 c0 h256 -> 256
        A 256
        S 256+80
        P
        L 10009 c336 h256 -> 0
        L 10009 c336 h256 -> 256 cached
        L 10009 c336 h256 -> 256 cached
        A 256 !AssertionError: Mismatch in tokens to load: 256 vs 256 - 336 - 0
    """)
    assert (finding.rule, finding.epoch, finding.count, finding.healed) == ("stale-lookup", 1, 2, 0)
    assert finding.numbers == {
        "total": 10009,
        "matched": 256,
        "computed": 336,
        "returned": 256,
        "at_most": 0,
        "need_to_load": -80,
    }
    assert [w.label for w in finding.witness] == ["L1", "L2"]
    assert "at most max(0, 256 - 336) = 0 can be new" in finding.explanation
    assert "The connector answered 256" in finding.explanation


def test_a_stale_answer_without_a_probe_is_found_by_its_repetition() -> None:
    """The connector hides what it matched; the answer repeats an earlier one, and no longer fits."""
    finding = only_finding("L 500 c0 -> 400\nP\nL 500 c336 -> 400")
    assert finding.rule == "stale-lookup"
    assert finding.numbers["at_most"] == 164


def test_a_remembered_answer_is_stale_even_when_its_source_was_never_seen() -> None:
    finding = only_finding("L 749 c336 h256 -> 256 cached")
    assert finding.rule == "stale-lookup"
    assert [w.label for w in finding.witness] == ["L1"]
    assert "which it had remembered" in finding.explanation


def test_a_recomputed_answer_is_not_stale_even_where_its_number_came_before() -> None:
    """LMCache 0.5.6 with max_tokens_per_load: each answer is the cap, 256, also where the load it plans is of 128."""
    finding = only_finding("L 790 c0 h256 -> 256 fresh\nA 256\nP\nL 790 c384 h512 -> 256 fresh")
    assert finding.rule == "over-report"
    assert finding.numbers["at_most"] == 128


def test_a_healed_answer_is_reported_as_healed() -> None:
    finding = only_finding("L 749 c0 h256 -> 256\nP\nL 749 c336 h256 -> 0 healed 256\nA 0\nS 336+48")
    assert (finding.rule, finding.count, finding.healed) == ("stale-lookup", 1, 1)
    assert finding.numbers["returned"] == 256


@pytest.mark.parametrize(
    ("lookup", "at_most"),
    [("L 100 c64 h? -> 64", 36), ("L 100 c64 h80 -> 32", 16), ("L 100 c64 h? -> -1", 36)],
)
def test_more_than_can_be_new(lookup: str, at_most: int) -> None:
    finding = only_finding(lookup)
    assert finding.rule == "over-report"
    assert finding.numbers["at_most"] == at_most
    assert f"between 0 and {at_most} can be new" in finding.explanation


def test_a_full_hit_must_leave_a_token_to_run() -> None:
    finding = only_finding("L 512 c256 h512 -> 256")
    assert finding.rule == "no-token-left"
    assert "256 + 256 = 512" in finding.explanation


def test_the_allocation_must_be_what_was_answered() -> None:
    finding = only_finding("L 500 c0 h256 -> 256\nA 192")
    assert finding.rule == "alloc-mismatch"
    assert finding.numbers == {"returned": 256, "allocated": 192}
    assert "returned 256 tokens" in finding.explanation


@pytest.mark.parametrize("text", ["A 64", "L 500 c0 h256 -> 256\nP\nA 256"])
def test_an_allocation_without_its_lookup_proves_nothing(text: str) -> None:
    detector = judge(history(text))
    assert rules_found(detector) == []
    assert detector.verdicts["alloc-mismatch", Verdict.UNKNOWN] == 1


def test_the_children_of_a_multiconnector_are_each_held_to_their_own_answers() -> None:
    """Both are asked, one is chosen: 256 was the first child's answer, 288 the second's."""
    events = history("L 400 c0 h256 -> 256\nL 400 c0 h288 -> 288\nA 256\nA 0\nS 256+48")
    for event, child in zip(events[1:5], "abab", strict=True):
        event.connector_id = child
    detector = judge(events)
    assert rules_found(detector) == []
    assert detector.verdicts["alloc-mismatch", Verdict.OK] == 1


def test_one_lookup_that_two_children_of_a_multiconnector_answer_was_not_repeated() -> None:
    """A hole in what one of them stores is a gap, and the request was looked up once."""
    hole = "A 512\nS 512+1024\nstore 1024+512"
    events = history(f"L 2048 c0 h512 -> 512\nL 2048 c0 h512 -> 512\n{hole}", connector="LMCacheMPConnector")
    for event, child in zip(events[1:], "ababa", strict=False):
        event.connector_id = "b" if event.kind != "kv.lookup" else child
    detector = judge(events)
    assert rules_found(detector) == ["store-gap"]
    (account,) = detector.accounts.values()
    assert account.lookups == 1


def test_a_wrong_answer_that_is_right_to_be_the_same_is_not_stale() -> None:
    """Nothing that the answer depends on has changed, only the epoch: it may well have been computed again."""
    twice = judge(history("L 245 c224 -> -32\nA 0\nS 224+21\nP\nL 245 c224 -> -32"))
    assert set(rules_found(twice)) == {"over-report"}
    assert rules_found(judge(history("L 245 c0 -> 192\nP\nL 245 c224 -> 192"))) == ["stale-lookup"]


def test_a_request_that_is_aborted_while_it_loads_frees_its_blocks_when_the_load_ends() -> None:
    """Also where the connector wants to keep them: vLLM asks no further."""
    loading = "L 749 c0 h256 -> 256 async\nA 256 [1-8]\nend delayed\n"
    assert rules_found(judge(history(f"{loading}R"), later_s=3600)) == []
    assert rules_found(judge(history(loading), later_s=3600)) == ["late-free"]


@pytest.mark.parametrize(("reads_in", "found"), [(4, []), (3, ["failed-load-used"])])
def test_a_failed_block_may_be_computed_to_its_end_in_the_step_that_reads_it(reads_in: int, found: list[str]) -> None:
    """Another request has begun the block in an earlier step. vLLM's prefix cache has it as soon as a step is planned that
    computes its end, and a new request of that step, which is recorded first, reads it: a layer writes before it reads."""
    events = history("""
        b: L 106 c0 h96 -> 96
        b: A 96 [1-7]
        b: S 96+10 [1-7]
        b: error [1-3]
        b: S 0+20 []
        b: S 20+15 []
        L 50 c48 -> 0
        A 0 [1-3 9]
        S 48+2 [1-3 9]
        b: S 35+71 []
    """)
    steps = iter((1, 2, 3, reads_in, 4))
    events = [replace(each, scheduler_step=next(steps)) if isinstance(each, Schedule) else each for each in events]
    assert rules_found(judge(events)) == found


@pytest.mark.parametrize(("runs", "found"), [(140, []), (64, ["failed-load-used"])])
def test_a_failed_block_is_computed_in_the_step_that_reads_it_or_is_not(runs: int, found: list[str]) -> None:
    """The request that failed to load it has run since, up to the block 5: it comes to the blocks 6 to 8 in the next step."""
    shared = (
        "step 1\nL 300 c0 h256 -> 256 async\nA 256 [1-8]\nerror [3-8]\nR\nA 0 [1-10]\nstep 2\nS 64+96 [1-10]\nstep 3\n"
        "b: L 300 c256 h0 -> 0\nb: A 0 [1-8 11 12]\nb: S 256+44 [1-8 11 12]\n"
    )
    assert rules_found(judge(history(f"{shared}S 160+{runs} []\nstep 4\nb: S 300+1 []"))) == found


def test_blocks_that_a_step_adds_are_given_out_again() -> None:
    """Whatever failed in them before: a load's blocks are free after it, and its request gets some of them, step by step."""
    failed = "b: L 106 c0 h96 -> 96 async\nb: A 96 [1-6]\nb: error [1-6]\nb: R failed\n"
    given = "b: A 0 [1]\nb: S 0+16 [1]\nb: S 16+20 [2 3]\n"
    assert rules_found(judge(history(f"{failed}{given}L 50 c48 -> 0\nA 0 [1-3 9]\nS 48+2 [1-3 9]"))) == []


def test_a_flush_is_a_flush_for_the_other_children_of_a_multiconnector() -> None:
    """The first child flushes its store, and then the second reports the same step."""
    given = "b: L 65 c0 h0 -> 0\nb: A 0 [1-3]\nb: S 0+65 [1-3]\n"
    stored = "L 64 c0 h0 -> 0\nA 0 [1 2]\nS 0+64 [1 2]\nplan store 0+64 [1 2] #1\nend\n"
    again = "b: @nixl S 0+65 [1-3]\ndone #1"
    assert rules_found(judge(history(f"{stored}{given}flush #1\n{again}"))) == []
    assert rules_found(judge(history(f"{stored}{given}{again}"))) == ["block-reuse"]


@pytest.mark.parametrize("refused", ["", "plan store 256+0\n"])
def test_a_store_that_was_full_once_is_judged_by_its_keys_all_the_same(refused: str) -> None:
    """A plan of 0 tokens says that the store had no room. It names no keys, and stores nothing without naming it."""
    claims = "b: L 900 c0 h512 -> 512 keys a,b"
    assert rules_found(judge(history(f"plan store 0+256 keys a\n{refused}{claims}"))) == ["phantom-hit"]


@pytest.mark.parametrize(
    "text",
    [
        "L 749 c0 -> later\nL 749 c0 -> later\nL 749 c0 h256 -> 256\nA 256\nS 256+48",
        "L 749 c336 h256 -> 0\nA 0\nS 336+48  # the log prints 'need to load: -80', which is no drift",
        "L 749 c0 h256 -> 256\nA 0\nS 0+48  # skip_reading_prefix_cache, or another child was chosen",
        "L 512 c0 h512 -> 512 async\nA 512\nR\nA 0\nS 511+1  # asynchronous: all of it, and a second allocation",
        "L 512 c0 h512 -> 511\nA 511\nS 511+1  # a full hit, the last token left to run",
        "L 749 c0 h512 -> 512\nL 749 c0 h512 -> 512\nL 749 c256 h512 -> 256\nA 256  # asked again and again",
        "L 749 c0 h512 -> 256\nA 256\nS 256+48  # less than it could",
        "L 300 c0 h256 -> 256\nA 256\nS 256+44\nP\nL 340 c0 h256 -> 256\nA 256  # output tokens count after a preemption",
        "L 749 c0 h256 -> 256 cached\nA 256  # remembered, and still right",
    ],
)
def test_legal_look_alikes_cause_no_findings(text: str) -> None:
    detector = judge(history(f"{text}\nend"))
    assert rules_found(detector) == []
    (account,) = detector.accounts.values()
    assert detector.verdict(account) is Verdict.OK


def test_all_is_well_only_with_an_end() -> None:
    detector = judge(history("L 749 c0 h256 -> 256\nA 256\nS 256+48"))
    (account,) = detector.accounts.values()
    assert (detector.verdict(account), detector.why_unknown(account)) == (Verdict.UNKNOWN, Unknown.OPEN)


def test_no_ok_without_a_checked_fact() -> None:
    detector = judge(history("end"))
    (account,) = detector.accounts.values()
    assert detector.verdict(account) is Verdict.UNKNOWN


@pytest.mark.parametrize("rule", pages.files())
def test_every_rule_says_what_it_is(rule: str) -> None:
    """Title, invariant, source, what it needs, severity, hint: what the documentation and a finding are made of."""
    page = pages.page(rule)
    assert page.invariant.startswith("Invariant")
    assert "Source:" in page.invariant
    assert "Needs" in page.invariant
    assert all((page.severities, page.hint, page.title))
    assert sorted(page.severities, key=WORST_FIRST.__getitem__) == [*page.severities]


def test_each_page_has_its_rules_beside_it_and_each_rule_its_page() -> None:
    assert {rule.id for rule in all_rules()} == pages.files().keys()
    for rule in all_rules():
        module = Path(inspect.getfile(type(rule)))
        assert module.with_suffix(".md") == pages.files()[rule.id]


def test_old_names_lead_to_rules_and_are_none() -> None:
    assert {*OLD_NAMES.values()} <= pages.files().keys()
    assert not {*OLD_NAMES} & pages.files().keys()
    assert current("stale-lookup") == "stale-lookup"


def test_an_unknown_field_of_a_page_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "odd.md"
    path.write_text("---\ntitle: A title\nseverities: [crash]\nhint: A hint\nlevle: basic\n---\nText\n")
    monkeypatch.setattr(pages, "files", lambda: {"odd": path})
    with pytest.raises(msgspec.ValidationError, match="levle"):
        pages.page("odd")


def test_two_stretches_of_tokens_in_one_block() -> None:
    """What LMCache 0.5.6 stored of a resumed request: block 23 is twice in its list."""
    finding = only_finding("L 750 c384 h256 -> 0\nA 0\nS 384+47\nstore 256+256 in 7")
    assert (finding.rule, finding.severity) == ("block-shortage", "wrong output")
    assert finding.numbers == {"start": 256, "count": 256, "blocks_count": 7, "block_size": 32, "need_blocks": 8}
    assert "copied 256 tokens from token 256 on, which fill 8 blocks of 32. It named 7 different" in finding.explanation


@pytest.mark.parametrize("legal", ["store 256+256 in 8", "store 250+12 in 2", "store 0+255 in 8", "store 416+96 in 3"])
def test_a_transfer_with_its_blocks_is_ok(legal: str) -> None:
    detector = judge(history(legal))
    assert rules_found(detector) == []


def found_late(text: str, *, later_s: float = 130) -> list[str]:
    return rules_found(judge(history(text), later_s=later_s))


def test_a_load_error_resumes_no_request() -> None:
    """Neither the request that waits for the load's end, nor one that ran, with all its steps known."""
    waiting = "L 749 c0 h512 -> 512 async\nA 512 [1-16]\nerror [9-16]"
    running = "L 749 c0 h512 -> 512\nA 512 [1-24]\nS 512+237 [1-24]\nerror [9-16]"
    assert found_late(waiting) == found_late(running) == ["stuck-load"]
    assert found_late(f"{waiting}\nend", later_s=700) == ["late-free"]
    assert found_late(f"{waiting}\nR failed\nA 0 [1-16]\nS 256+493") == []
    assert found_late(f"{running}\nS 256+493") == found_late(f"{running}\nend error") == []
    assert (
        found_late("L 749 c0 h512 -> 512\nA 512\nS 512+237\nerror [9-16]") == []
    )  # its further steps are not recorded


def test_a_reset_that_answers_nothing_is_a_success_to_vllm() -> None:
    stored = "L 600 c0 h0 -> 0\nA 0\nS 0+600\nplan store 0+512\n"
    finding = only_finding(f"{stored}reset silent\nb: L 600 c0 h512 -> 512")
    assert (finding.rule, finding.numbers["answered"]) == ("reset-hit", None)
    assert "answered nothing, which vLLM takes for success" in finding.explanation
    present = only_finding(f"{stored}reset\nb: L 600 c0 h0 -> 0\nb: A 0\nb: S 0+600\nb: plan store 0+512 present")
    assert (present.rule, present.numbers) == ("reset-hit", {"present": 512, "answered": True})
    assert found_late(f"{stored}reset refused\nb: L 600 c0 h512 -> 512") == []
    assert found_late(f"{stored}reset\nb: plan store 0+512\nc: L 600 c0 h512 -> 512") == []
    assert found_late("reset silent\nb: L 600 c0 h512 -> 512") == []  # what this connector stores is not reported


def test_a_first_step_can_begin_only_within_the_request() -> None:
    assert only_finding("L 600 c512 -> 512\nA 512\nS 599+1").rule == "over-report"


def test_what_vllm_has_computed_need_not_be_loaded() -> None:
    assert found_late("L 600 c16 h24 -> 8\nA 8\nload 8/24\nS 24+576\nend") == []
    finding = only_finding("L 600 c16 h24 -> 8\nA 8\nload 4/24\nS 24+576\nend")
    assert finding.numbers == {"where": "short", "expected": 8, "loaded": 4, "rank": 0}


def test_a_second_end_of_a_transfer_names_the_first() -> None:
    finding = only_finding("L 600 c0 -> 0\nA 0\nS 0+600\nplan store 0+256 #7\ndone #7\nend\ndone #7")
    assert finding.numbers == {"what": "transfer", "repeated": True}
    assert "had been reported at T1 already" in finding.explanation


@pytest.mark.parametrize("call", ["build_connector_meta", "start_load_kv rank 1", "request_finished"])
def test_an_exception_of_any_call_is_a_finding(call: str) -> None:
    detector = judge(history(f"L 600 c0 -> 0\nA 0\nS 0+600\nfailure {call} !KeyError: {{'x'}}"))
    assert rules_found(detector) == ["failed-call"]
    ((finding,),) = (held.values() for held in detector.findings.values())
    assert f"`{call.split()[0]}` raised \"KeyError: {{'x'}}\"." in finding.explanation


def test_an_exception_says_what_happened_to_the_request_before() -> None:
    detector = judge(history("L 600 c0 -> 0\nA 0\nS 0+600\nP\nL 650 c0 h256 -> !KeyError: 'x'"))
    ((finding,),) = (held.values() for held in detector.findings.values())
    assert finding.rule == "failed-call"
    assert [w.kind for w in finding.witness] == ["kv.lookup"]
    alloc = judge(history("L 600 c0 h256 -> 256\nA 256 !AssertionError: 256"))
    ((finding,),) = (held.values() for held in alloc.findings.values())
    assert "The request's last events before it: kv.lookup at L1" in finding.explanation


@pytest.mark.parametrize(
    ("text", "rule", "sentence"),
    [
        ("L 600 c0 -> later\nA 64", "alloc-mismatch", "which answered 'ask me later'. At A1"),
        ("plan store 0+64 keys a\nL 600 c0 -> 64 keys b", "phantom-hit", "claimed 1 chunk. Its store does not hold 1"),
        (
            "L 2000 c0 -> 512\nL 2000 c0 -> 512\nA 512\nS 512+700\nplan store 1024+256",
            "retried-lookup",
            "each time with a hit",
        ),
    ],
)
def test_a_sentence_is_right_where_a_number_is_not_known(text: str, rule: str, sentence: str) -> None:
    detector = judge(history(text, connector="OffloadConnector"))
    (explanation,) = [f.explanation for held in detector.findings.values() for f in held.values() if f.rule == rule]
    assert sentence in explanation
    assert "None" not in explanation


@pytest.mark.parametrize(
    ("table", "end", "numbers"),
    [
        ("[1 2]", "end computed 64", None),
        ("[1 2]", "end computed 65", {"computed": 65, "table_length": 2, "room": 64}),
        ("[1 2]", "end [1 2]", None),
        ("[1 2]", "end [1 2 9]", {"unreported": [9], "table_length": 2}),
        ("[1 2]", "end [0 2]", None),
        ("[1 2 | 7 8]", "end computed 64", None),
        ("[1 2 3 | 7 8]", "end computed 65", {"computed": 65, "table_length": 2, "room": 64, "group": 1}),
        ("[1 2 3 | 7 9 8]", "end [1 2 3 7 0 8]", None),
    ],
)
def test_blocks_that_no_step_reported_show_at_the_end(table: str, end: str, numbers: dict[str, int] | None) -> None:
    """The steps in which they would have been reported say nothing new, and are not recorded."""
    groups = "full 32, window 32 64" if "|" in table else None
    detector = judge(history(f"L 60 c0 h0 -> 0\nA 0 {table}\nS 0+60 {table}\n{end}", groups=groups))
    found = [finding for held in detector.findings.values() for finding in held.values()]
    assert [(finding.rule, finding.numbers) for finding in found] == [("unreported-blocks", numbers)] * (
        numbers is not None
    )
    for finding in found:
        assert "the request ended with" in finding.explanation


def test_saves_without_numbers_that_end_no_more_are_one_finding_of_the_engine() -> None:
    """The connector shows no transfers: blocks of ended requests are kept, and from some moment on none is given back."""
    kept = "".join(f"s{n}: L 600 c0 -> 0\ns{n}: A 0\ns{n}: S 0+600\ns{n}: end delayed\n" for n in range(1, 8))
    detector = judge(history(f"{kept}wait 20 busy\ns1: sent\ns2: sent\ns3: sent\nwait 320 busy"))
    ((finding,),) = (held.values() for held in detector.findings.values())
    assert (finding.rule, finding.request) == ("stalled-connector", "")
    assert finding.numbers | {"steps": 0} == {
        "where": "open transfers", "direction": "save", "ended": 3, "open": 4, "missed_s": 300.0, "steps": 0,
        "longest_s": 20.0,
    }  # fmt: skip
    assert "4 saves are open" in finding.explanation


def test_a_store_that_takes_ten_minutes_is_given_ten_times_as_long() -> None:
    """As long as it was never slower, its silence says something after five minutes; then after a hundred."""
    opened = "".join(
        f"s{n}: L 600 c0 h0 -> 0\ns{n}: A 0\ns{n}: S 0+600\ns{n}: plan store 0+512 #{n}\n" for n in range(1, 8)
    )
    slow = f"{opened}wait 100 busy\ndone #1\nwait 100 busy\ndone #2\nwait 400 idle\ndone #3\n"
    assert rules_found(judge(history(f"{slow}wait 5900 busy"))) == []
    assert rules_found(judge(history(f"{slow}wait 6100 busy"))) == ["stalled-connector"]


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("S 131+1\nerror [3 4]\nS 64+67", []),
        ("S 131+1\nS 132+1", ["incomplete-load"]),
        ("S 131+1\nend", ["incomplete-load"]),
    ],
)
def test_with_asynchronous_scheduling_a_step_may_come_before_the_report_of_a_load(rest: str, found: list[str]) -> None:
    events = history(f"L 131 c0 h128 -> 128\nA 128 [1-5]\nS 128+3 [1-5]\nload 64/128\n{rest}")
    for event in events:
        event.scheduler_async = True
        event.role = "scheduler" if event.role else event.role  # in one process
    assert [rule for rule in rules_found(judge(events)) if rule == "incomplete-load"] == found


OF_BLOCKS = ("blocks_ids", "evidence.blocks", "engine.tables", "BlockTable", "check_wrong_blocks", "mismatch.numbers")
"""How a rule reads block ids."""
COUNTED = {"refused-handoff", "stuck-load"}
"""Rules that count the blocks of all groups, and care for none of them."""


def test_a_rule_that_reads_block_ids_says_what_it_does_with_several_groups() -> None:
    reading = {
        rule.id: rule.page.groups
        for rule in all_rules()
        if any(words in inspect.getsource(inspect.getmodule(type(rule)) or type(rule)) for words in OF_BLOCKS)
    }
    assert len(reading) > 10
    assert {rule for rule, groups in reading.items() if groups == "independent of them"} <= COUNTED


@pytest.mark.parametrize(("stored", "moved"), [("[1 2 | 3 4]", [3]), ("[1 2 | 4]", None), ("[3 | 11]", None)])
def test_a_block_that_a_window_has_left_behind_may_be_another_groups_now(stored: str, moved: list[int] | None) -> None:
    """Seen of vLLM 0.32's OffloadingConnector, which goes on with its copy of the table."""
    steps = "L 200 c0 -> 0\nA 0 [1 2 | 3 4]\nS 0+64 [1 2 | 3 4]\nS 64+64 [5 6 | 7 8]\nS 128+72 [3 9 10 | 11 12 13]\n"
    detector = judge(history(f"{steps}plan store 128+32 {stored} #1", groups="full 32, window 32 64"))
    found = [each for held in detector.findings.values() for each in held.values() if each.rule == "plan-blocks"]
    assert [finding.numbers["moved"] for finding in found] == ([] if moved is None else [moved])
    for finding in found:
        assert finding.numbers["of_group"] == 0
        assert "Of these, 3 are of group 0 now" in finding.explanation


TAKES = "L 600 c0 -> 599 async\nA 599 [1-19]\nxfer read posted 19 rank 0 peer p\n"
DONE_READ = "xfer read done 19 rank 0 peer p\n"
FAILED_READ = "xfer read failed 19 rank 0 peer p !NIXL_ERR_REMOTE_DISCONNECT\n"


def of_two_processes(text: str, connector: str = "Connector") -> list[Event]:
    """A history with reads of a worker in a process of its own, whose recorder numbers them for itself."""
    events = history(text, connector=connector)
    for of_worker in (False, True):
        for number, event in enumerate(each for each in events if (type(each) is Xfer) == of_worker):
            event.sequence = event.request_sequence = number
            event.recorder = "worker" if of_worker else event.recorder
    return events


@pytest.mark.parametrize(
    "text", [f"{FAILED_READ}R\nA 0 [1-19]\nS 599+1 [1-19]", f"R\nA 0 [1-19]\nS 599+1 [1-19]\n{FAILED_READ}"]
)
def test_a_load_that_is_received_although_one_of_its_reads_failed_is_short_in_either_order(text: str) -> None:
    (finding,) = (f for held in judge(of_two_processes(TAKES + text)).findings.values() for f in held.values())
    assert finding.rule == "incomplete-load"
    numbers = {"where": "short", "failed_blocks": 19, "rank": 0, "reason": "NIXL_ERR_REMOTE_DISCONNECT"}
    assert finding.numbers == numbers
    assert "reported as received" in finding.explanation


@pytest.mark.parametrize(
    "text",
    [
        f"{FAILED_READ}R failed\nL 600 c0 -> 0\nA 0 [1-19]\nS 0+600 [1-19]",
        f"{FAILED_READ}error [1-19]\nR\nL 600 c0 -> 0\nA 0 [1-19]\nS 0+600 [1-19]",
        f"{FAILED_READ}R failed\n{TAKES}{DONE_READ}R\nA 0 [1-19]\nS 599+1 [1-19]",
        f"R failed\n{TAKES}{DONE_READ}R\nA 0 [1-19]\nS 599+1 [1-19]\n{FAILED_READ}",
        f"{FAILED_READ}xfer read posted 19 rank 0 peer p\n{DONE_READ}R\nA 0 [1-19]\nS 599+1 [1-19]",
        f"end aborted\n{FAILED_READ}R",
    ],
    ids=["reported", "blocks named", "tried again", "an earlier load's, heard late", "begun again", "aborted"],
)
def test_a_failed_read_of_a_load_that_is_reported_or_not_used_is_no_finding(text: str) -> None:
    assert rules_found(judge(history(TAKES + text))) == []


@pytest.mark.parametrize("failure", ["error [5 6]\nR", "R failed"])
def test_a_request_that_goes_on_behind_a_failed_asynchronous_load_is_found(failure: str) -> None:
    text = f"L 300 c0 h256 -> 256 async\nA 256 [1-8]\n{failure}\nA 0 [1-10]\nS 256+44 [1-10]"
    assert rules_found(judge(history(text))) == ["failed-load-used"]
    assert rules_found(judge(history(text.replace("S 256+44", "S 0+300")))) == []


PREEMPTED_AFTER_A_FAILED_LOAD = """
    L 300 c0 h256 -> 256
    A 256 [1-10]
    S 256+44 [1-10]
    error [5-8]
    P
    L 300 c{cached} h128 -> {loads}
    A {loads} [{blocks}]
    S {begins}+{left} [{blocks}]
"""


@pytest.mark.parametrize(
    ("cached", "loads", "blocks", "found"),
    [
        (256, 0, "1-10", ["failed-load-used"]),
        (128, 0, "1-4 11-16", []),
        (128, 0, "1-10", []),
        (0, 128, "1-10", []),
    ],
)
def test_vllms_cache_offers_what_failed_to_load(cached: int, loads: int, blocks: str, found: list[str]) -> None:
    """With `recompute` vLLM leaves failed blocks in its own cache, since their request is to compute them; one that is
    preempted before finds them there."""
    begins = cached + loads
    text = PREEMPTED_AFTER_A_FAILED_LOAD.format(
        cached=cached, loads=loads, blocks=blocks, begins=begins, left=300 - begins
    )
    assert rules_found(judge(history(text))) == found


def test_what_a_request_computes_in_this_step_another_finds_in_vllms_cache() -> None:
    """vLLM caches a block when it schedules the step that computes it. The step's own event comes after the other's."""
    text = """
        a: L 300 c0 h256 -> 256
        a: A 256 [1-10]
        a: S 256+44 [1-10]
        error [8]
        a: end error
        b: L 256 c0 h0 -> 0
        b: A 0 [11-17]
        b: S 0+224 [11-17]
        c: L 300 c256 h0 -> 0
        c: A 0 [11-17 8 18-19]
        c: S 256+44 [11-17 8 18-19]
        b: S 224+32 [8]
    """
    assert rules_found(judge(history(text))) == []


def test_a_load_that_is_received_before_all_of_its_reads_have_ended_is_found() -> None:
    text = f"{TAKES}xfer read posted 1 rank 1 peer p\n{DONE_READ}R\nxfer read done 1 rank 1 peer p"
    finding = only_finding(text)
    assert (finding.rule, finding.numbers) == (
        "incomplete-load",
        {"where": "unread", "allocated": 599, "reads": 1, "rank": 0},
    )
    assert "of its reads 1 had not ended" in finding.explanation
    assert rules_found(judge(of_two_processes(text))) == [], "which of two processes was first is not known"
    assert rules_found(judge(history(text.replace("R\n", "R failed\n")))) == []


def test_a_load_without_any_read_is_found_where_the_connector_has_recorded_reads() -> None:
    unread = "b: L 600 c0 -> 599 async\nb: A 599\nb: R"
    text = f"{TAKES}{DONE_READ}R\n{unread}"
    held = judge(history(text, connector="NixlConnector")).findings.values()
    (finding,) = (finding for each in held for finding in each.values())
    assert (finding.rule, finding.numbers) == ("incomplete-load", {"where": "unread", "allocated": 599, "reads": 0})
    assert "no read of another engine's blocks had begun" in finding.explanation
    assert rules_found(judge(history(unread, connector="NixlConnector"))) == []
    assert rules_found(judge(history(text))) == [], "it may load from a store of its own, too"
    assert rules_found(judge(of_two_processes(text, connector="NixlConnector"))) == []


def test_a_load_with_lost_events_is_not_said_to_be_unread() -> None:
    text = f"start 600\n{TAKES}{DONE_READ}R\nb: L 600 c0 -> 599 async\nb: A 599\nb: xfer read posted 19 peer p\n"
    events = history(f"{text}b: xfer read done peer p\nb: R", connector="NixlConnector")
    for lost in range(1, len(events) - 1):
        assert rules_found(judge(events[:lost] + events[lost + 1 :])) == [], events[lost]
