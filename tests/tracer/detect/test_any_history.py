"""Histories of random calls, of several requests: order, repetition and loss change no verdict for the worse."""

from __future__ import annotations

import random
from collections.abc import Sequence

from history import history, judge
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.model.findings import Verdict

MANY = 5 if settings.get_current_profile_name() == "random" else 1
"""`make test-all` tries so many times as many histories."""
TOKENS = st.sampled_from([0, 32, 64, 100, 256, 300, 512])
BLOCKS = st.sampled_from(["", " [1-10]", " [1-4 7-12]", " [3-9]", " []"])
NUMBER = st.integers(1, 3)


def _line(form: str, **parts: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(parts).map(lambda values: form.format(**values))


LINES = st.one_of(
    _line(
        "L {n} c{c} h{h} -> {e}{more}",
        n=st.sampled_from([300, 512, 749]),
        c=TOKENS,
        h=TOKENS,
        e=TOKENS,
        more=st.sampled_from(["", " async", " cached", " keys a", " keys a,b"]),
    ),
    _line("L 749 c{c} -> later", c=TOKENS),
    _line("A {x}{b}", x=TOKENS, b=BLOCKS),
    _line("S {n}+{s}{b}", n=TOKENS, s=TOKENS, b=BLOCKS),
    _line("P free {f}", f=st.integers(0, 1)),
    _line("plan {what} {s}+{n}{b} keys {k} #{j}", what=st.sampled_from(["load", "store"]), s=TOKENS, n=TOKENS, b=BLOCKS,
          k=st.sampled_from("ab"), j=NUMBER),
    _line("plan store {s}+{n} keys {k}", s=TOKENS, n=TOKENS, k=st.sampled_from("ab")),
    _line("done #{j}", j=NUMBER),
    _line("load {n}/{of}", n=TOKENS, of=TOKENS),
    _line("store {s}+{n}", s=TOKENS, n=TOKENS),
    _line("error [{b}]", b=st.integers(1, 12)),
    _line("prefetch 0+{n}", n=TOKENS),
    _line("stats {n} cached {c} external {x} queried {q}", n=TOKENS, c=TOKENS, x=TOKENS, q=TOKENS),
    _line("rank {r} h{h}", r=st.integers(0, 1), h=TOKENS),
    _line("evict {k}", k=st.sampled_from("ab")),
    _line("check computed 1 tells {h}:{h}{v}@0 as plain", h=NUMBER, v=NUMBER),
    _line("check loaded 2 unknown {u} tells {h}:{f}{v}@0 as plain", u=NUMBER, h=NUMBER, f=NUMBER, v=NUMBER),
    _line("check held {n} unknown {u}", n=NUMBER, u=NUMBER),
    _line("check {l} 3 wrong {w} 4@64", l=st.sampled_from(["loaded", "held"]), w=st.sampled_from(["drift", "rot", "early"])),
    st.sampled_from(["R", "R failed", "reset", "read", "freed", "freed expired", "end", "end delayed", "sent", "refs -1"]),
)  # fmt: skip
WAIT = _line("wait {s}", s=st.sampled_from([1, 130, 700]))
CALL = st.tuples(st.sampled_from(["", "b: ", "c: "]), LINES).map("".join)
HISTORIES = st.lists(st.one_of(CALL, CALL, CALL, WAIT), max_size=25).map(
    lambda lines: history(
        "\n".join(["L 300 c0 h0 -> 0", *lines]), connector="OffloadConnector", chunk=64, cache_identity="c"
    )
)


def report(detector: Detector) -> tuple[object, ...]:
    """Findings, verdicts and accounts."""
    found = [finding.as_dict() for held in detector.findings.values() for finding in held.values()]
    accounts = {key: account.as_dict() for key, account in detector.accounts.items()}
    verdicts = {key: detector.verdict(account) for key, account in detector.accounts.items()}
    return sorted(found, key=lambda finding: finding["id"]), accounts, verdicts


def after_all(events: Sequence[Event], whole: Sequence[Event]) -> Detector:
    """What is made of the events when it is as late as it would be after the whole history."""
    last_ns = max(event.end_ns for event in whole)
    return judge(events, later_s=700 + (last_ns - max((event.end_ns for event in events), default=last_ns)) / 1e9)


TWO_WAITS = "L 300 c0 h0 -> 0\nwait 700\nA 0\nL 300 c0 h0 -> 0\nwait 800"


@given(HISTORIES, st.randoms(use_true_random=False))
@example(history(TWO_WAITS), random.Random(3))
@example(history(TWO_WAITS), random.Random(5))
@settings(max_examples=40 * MANY)
def test_the_order_of_arrival_and_repetitions_change_nothing(events: list[Event], rng: random.Random) -> None:
    shuffled = [*events, *rng.choices(events, k=5)]
    rng.shuffle(shuffled)
    assert report(judge(shuffled, later_s=700)) == report(judge(events, later_s=700))


@given(HISTORIES, st.data())
@settings(max_examples=60 * MANY)
def test_no_loss_makes_a_drift(events: list[Event], data: st.DataObject) -> None:
    """Where the whole history has no finding, what is left of it has none; the last event is always heard, since a recorder
    repeats its number in every heartbeat."""
    innocent = {event.request for event in events} - {key[1] for key in after_all(events, events).findings}
    kept = [event for event in events[:-1] if data.draw(st.booleans())]
    kept = data.draw(st.permutations(kept)) + events[-1:]
    assert not innocent & {key[1] for key in after_all(kept, events).findings}


@given(HISTORIES, st.randoms(use_true_random=False))
@settings(max_examples=20 * MANY)
def test_epochs_never_go_down_and_a_drift_stays_one(events: list[Event], rng: random.Random) -> None:
    rng.shuffle(events)
    detector = Detector()
    epochs: dict[tuple[str, str], int] = {}
    drifted: set[tuple[str, str]] = set()
    for event in events:
        detector.feed([event])
        for key, account in detector.accounts.items():
            assert account.epoch >= epochs.get(key, 0)
            epochs[key] = account.epoch
            if detector.verdict(account) is Verdict.DRIFT:
                drifted.add(key)
            assert key not in drifted or detector.verdict(account) is Verdict.DRIFT
