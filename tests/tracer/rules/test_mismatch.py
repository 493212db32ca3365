"""What a finding about bytes says of blocks, in sentences that a person can check."""

from __future__ import annotations

import pytest
from history import history, judge

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.findings import Finding, Unknown, Verdict


def only(text: str, *, block: int = 16) -> Finding:
    (finding,) = (f for held in judge(history(text, block=block)).findings.values() for f in held.values())
    return finding


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        ("drift 12@256 holds r@9", "Block 12, this request's tokens 256 to 272, holds the KV of request r's tokens 9 to 25."),
        ("drift 12@256 holds a@b@0", "holds the KV of request a@b's tokens 0 to 16."),
        ("drift 3@0 holds zeros", "holds zeros."),
        ("drift 3@0 holds poison", "holds what was computed after a wrong block."),
        ("drift 3@0 holds unknown", "holds other content, of unknown origin."),
        ("drift 3@0 holds odd", "holds other content, of unknown origin."),
        ("drift 3@0 holds zeros from r-9", "holds zeros; request r-9 left it so."),
    ],
)  # fmt: skip
def test_a_wrong_block_and_what_it_holds(check: str, sentence: str) -> None:
    assert sentence in only(f"check admitted 9 wrong {check}").explanation


@pytest.mark.parametrize(
    ("holds", "sentence"),
    [
        ("r@9", "Block 12 of KV cache group 0, at this request's token 256, holds what request r computed at token 9."),
        ("r@256/1", "holds what request r computed for KV cache group 1 at token 256."),
        ("a/b@0/12", "holds what request a/b computed for KV cache group 12 at token 0."),
        ("zeros", "Block 12 of KV cache group 0, at this request's token 256, holds zeros."),
    ],
)
def test_where_there_are_groups_a_block_is_named_by_its_group_and_token(holds: str, sentence: str) -> None:
    """Groups differ in the tokens of a block, and a recurrent state has none."""
    assert sentence in only(f"check admitted 9 group 0 wrong drift 12@256 holds {holds}").explanation


def test_a_stream_of_one_group_that_names_another_is_read() -> None:
    """A recorder that is newer than the sidecar, or a forged one."""
    assert (
        "holds the KV of request r's tokens 16 to 32."
        in only("check admitted 9 wrong drift 1@0 holds r@16/1").explanation
    )


def test_blocks_that_are_not_named_are_counted() -> None:
    wrong = " ".join(f"wrong drift {n}@{16 * n}" for n in range(1, 7))
    text = only(f"check loaded 300 {wrong} more 40").explanation
    assert "300 blocks were compared" in text
    assert "They were loaded for this request. Block 1, " in text
    assert "1 block was compared" in only("check loaded 1 wrong drift 1@0").explanation
    assert "This request holds them. Block 1, " in only("check held 900 wrong rot 1@0").explanation
    assert "and 6 did not match. " in text
    assert "Block 4, " in text
    assert "Block 5, " not in text
    assert text.endswith("Not named here: 42 of the wrong blocks.")
    assert only("check loaded 0 wrong drift 1@0").numbers["looked"] == 1


def test_a_finding_names_the_blocks_of_its_own_kind() -> None:
    detector = judge(history("check held 3 wrong rot 1@0 wrong drift 2@32 wrong early 3@64"))
    found = {f.numbers["where"]: f.numbers["blocks"] for held in detector.findings.values() for f in held.values()}
    assert found == {"changed": [1], "differs": [2], "early": [3]}


def test_without_a_block_size_only_the_first_token_is_named() -> None:
    events = history("check held 1 wrong rot 1@0 holds b@64")
    for event in events:
        event.block_size = None
    ((finding,),) = (held.values() for held in judge(events).findings.values())
    assert "this request's tokens from 0 on, holds the KV of request b's tokens from 64 on." in finding.explanation


@pytest.mark.parametrize("kind", ["drift", "rot", "early"])
def test_a_finding_is_healed_where_vllm_had_to_compute_the_blocks_again(kind: str) -> None:
    check = f"check loaded 2 wrong {kind} 1@0"
    assert [only(f"{check}{end}").healed for end in (" healed", "")] == [1, 0]


def test_what_several_ranks_find_counts_in_one_finding() -> None:
    finding = only("check loaded 2 wrong drift 1@0\ncheck loaded 2 wrong drift 1@0 rank 1")
    assert (finding.count, finding.numbers["rank"], len(finding.witness)) == (2, 0, 1)
    assert finding.witness[0].kind == Kind.BLOCK_CHECK


@pytest.mark.parametrize(("look", "judged"), [("computed", 0), ("loaded", 1), ("admitted", 1), ("held", 1)])
def test_blocks_that_a_request_takes_or_holds_are_judged(look: str, judged: int) -> None:
    right, unknown = judge(history(f"check {look} 3 unknown 1")), judge(history(f"check {look} 3 unknown 3"))
    assert right.verdicts["byte-drift", Verdict.OK] == judged
    assert unknown.unknown["byte-drift", Unknown.CONTENT] == judged
