"""A history that is judged while it is read: the same verdicts as with all of it in memory, whatever the order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from history import history, judge
from hypothesis import given
from hypothesis import strategies as st
from wire import encoded, to_json_line

from kvtrail.tracer.detect.detector import GRACE_NS
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.offline import OfflineDetector, TooLate
from kvtrail.tracer.ledger.ordering import SeenNumbers
from kvtrail.tracer.model.findings import Verdict

OK = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nend"
DRIFT = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nA 256\nend"
KEPT = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nend delayed\nwait 700\nsent"
LEAK = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nend delayed"


def requests(*texts: str) -> list[Event]:
    """The requests of one engine, one after the other, half a minute apart, and a heartbeat an hour later."""
    lines = "\n".join(
        f"r{number}: {line}" if not line.startswith("wait") else line
        for number, text in enumerate(texts)
        for line in [*text.splitlines(), "wait 30"]
    )
    return history(lines + "\nwait 3600\nlast: L 5 c0 -> 0\nlast: end")


@pytest.fixture(autouse=True)
def _always_tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.history.offline.TIDY_EVERY", 1)


def judged(events: Sequence[Event], *, patience_ns: int | None = GRACE_NS) -> OfflineDetector:
    detector = OfflineDetector(patience_ns=patience_ns)
    for event in events:
        detector.feed([event])
    detector.close()
    return detector


def results(detector: OfflineDetector) -> dict[str, object]:
    findings = {(f.rule, f.request, f.epoch, f.count, f.explanation) for f in detector.findings.values()}
    counts = (detector.tally.events, detector.tally.repeated, detector.detector.missing)
    return {
        "verdicts": detector.tally.verdicts,
        "checks": detector.detector.verdicts,
        "findings": findings,
        "counts": counts,
    }


def test_what_has_ended_is_forgotten_and_its_verdict_stays() -> None:
    events = requests(*[OK, DRIFT] * 30)
    detector = OfflineDetector(patience_ns=GRACE_NS)
    most = 0
    for event in events:
        detector.feed([event])
        most = max(most, len(detector.detector.accounts))
    detector.close()
    assert most <= 2, "the one that runs, and the one before it"
    assert detector.tally.verdicts == {Verdict.OK: 31, Verdict.DRIFT: 30}
    assert len(detector.findings) == 30


@pytest.mark.parametrize("texts", [[OK, DRIFT, OK], [KEPT, OK, DRIFT], [LEAK, OK, LEAK], [DRIFT] * 4])
@pytest.mark.parametrize("lost", [None, 0, 3, 4, 9])
def test_the_verdicts_are_those_of_a_detector_that_forgets_nothing(texts: list[str], lost: int | None) -> None:
    events = [event for number, event in enumerate(requests(*texts)) if number != lost]
    patient = judged(events, patience_ns=None)
    assert results(judged(events)) == results(patient)
    everything = judge(events)
    assert {f.id for held in everything.findings.values() for f in held.values()} >= set(patient.findings)


def test_a_request_with_kept_blocks_is_not_forgotten() -> None:
    detector = judged(requests(LEAK, OK, OK))
    assert [finding.rule for finding in detector.findings.values()] == ["late-free"]


def test_what_comes_of_a_request_that_was_forgotten_came_too_late() -> None:
    events = requests(OK, OK, OK)
    late = [*events[:2], *events[3:], events[2]]
    with pytest.raises(TooLate):
        judged([*events, *history("L 9 c0 -> 0", request=f"r0-{events[0].request}"[3:], recorder="worker")])
    with pytest.raises(TooLate):
        judged(late)  # its number was given up
    assert results(judged(late, patience_ns=None)) == results(judged(events))


def test_a_number_that_was_given_up_and_comes_after_all_came_too_late() -> None:
    events = history("L 749 c0 h256 -> 256\nA 256\nwait 30\nS 256+48\nwait 30\nS 304+1\nwait 30\nS 305+1\nend")
    first, second, *_ = [number for number, event in enumerate(events) if event.kind == "kv.schedule"]
    late = [*events[:first], *events[first + 1 : second], events[first], *events[second:]]
    with pytest.raises(TooLate):
        judged(late)
    assert results(judged(late, patience_ns=None)) == results(judged(events))
    in_time = [events[0], events[2], events[1], *events[3:]]
    assert results(judged(in_time)) == results(judged(events))


def test_what_comes_again_of_a_request_that_was_forgotten_counts_once() -> None:
    events = requests(OK, DRIFT, OK)
    detector = OfflineDetector(patience_ns=GRACE_NS)
    for event in [*events, *events]:
        detector.feed([event])
    detector.close()
    assert (detector.tally.events, detector.tally.repeated) == (len(events), len(events))
    assert detector.tally.verdicts == judged(events).tally.verdicts


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 15))])
def test_an_audit_is_the_same_for_any_order_of_lines_and_files(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    events = requests(OK, DRIFT, KEPT, OK, LEAK)
    workers = history(
        "load 256/256 rank 1\nwait 30\nload 9/9 rank 1", request=events[0].request or "", recorder="worker"
    )[1:]
    workers = [event for event in workers if event.request is not None]
    for number, event in enumerate(workers):
        event.sequence = event.request_sequence = number
    lost = rng.randrange(len(events)) if seed % 3 == 0 else None
    remaining = [event for number, event in enumerate([*events, *workers]) if number != lost]
    lines = [to_json_line(encoded([event])) for event in remaining]
    paths = [tmp_path / name for name in "abc"]
    paths[0].write_text("\n".join(lines))
    in_order = audit(paths[:1]).as_dict()
    again = lines + rng.sample(lines, 7)
    if seed % 2:
        rng.shuffle(again)
    for number, path in enumerate(paths):
        path.write_text("\n".join(again[number::3]))
    rng.shuffle(paths)
    mixed = audit(paths).as_dict()
    assert mixed["repeated"] == 7
    assert {**mixed, "repeated": 0} == in_order


def test_the_same_file_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    events = requests(OK, DRIFT, OK)
    path.write_text("\n".join(to_json_line(encoded([event])) for event in events))
    once, twice = audit([path]), audit([path, path])
    assert (twice.events, twice.repeated, twice.missing) == (len(events), len(events), 0)
    assert (twice.verdicts, twice.checks) == (once.verdicts, once.checks)


def test_one_number_on_two_spans_makes_the_request_unknown() -> None:
    events = history(OK)
    other = history(OK)
    other[2].span_id = "00000000000000ff"
    detector = judged([*events[:3], other[2], *events[3:]])
    assert detector.tally.verdicts == {Verdict.UNKNOWN: 1}


@given(st.lists(st.integers(0, 40), max_size=60))
def test_numbers_are_a_set_of_numbers(added: list[int]) -> None:
    numbers, known = SeenNumbers(), set[int]()
    for number in added:
        assert numbers.add(number) == (number not in known)
        known.add(number)
        assert numbers.last == max(known)
    gaps = sum(1 for number in known if number + 1 not in known)
    assert len(numbers._starts) <= gaps + 1
