"""What the requests of a big store may do, and what a sidecar makes of each: encoded, decoded and judged once.

A story is a shape of `fleet.py` with the times of its steps. After each step it knows the account, the lane and the findings
that kvtrail's own detector had, so that a request that follows it needs only its ids and times put in.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet import Recorder, Request, Shape, Shapes
from msgspec import structs

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.facts import Fact
from kvtrail.tracer.ledger.lanes import Lane, lane_of
from kvtrail.tracer.ledger.measures import measures_of
from kvtrail.tracer.model.findings import Finding, Verdict, clock
from kvtrail.tracer.savings.counter import SavingsCounter

S, MS = 10**9, 10**6
LONG = 10
"""Stories of an engine that last for hours."""
_KEY = 16
"""Characters of a chunk's key."""


@dataclass(frozen=True, slots=True)
class State:
    """What is known after a step. Times count from the request's begin.

    Attributes:
        admissions: where the causes of the account's prompts were reported: the step and the place in it of each.
        sums: what the step adds to the savings, by epoch.
        findings: those that it has brought.
    """

    account: Mapping[str, Any]
    admissions: Sequence[tuple[int, int]]
    lane: Lane
    sums: Mapping[int, Mapping[str, int]]
    findings: Sequence[_Seen]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A finding, as it was said of the request that began at `began_ns`, and the step and the place in it of each witness."""

    finding: Finding
    began_ns: int
    places: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Story:
    """What a request does, and when.

    Attributes:
        at_ns: when each of its steps is, from its begin.
        states: one for each step.
    """

    shape: Shape
    at_ns: Sequence[int]
    states: Sequence[State]


@dataclass(slots=True)
class StoryRequest:
    """A request that follows a story.

    Attributes:
        sequences: the numbers with which the events of its steps begin.
        scheduler_steps: the scheduler's numbers of its steps.
    """

    request: Request
    story: Story
    engine: str
    sequences: list[int] = field(default_factory=list)
    scheduler_steps: list[int] = field(default_factory=list)

    @property
    def next_ns(self) -> int | None:
        """When its next step is; None if it has ended."""
        request, at_ns = self.request, self.story.at_ns
        return None if request.step == len(at_ns) else request.began_ns + at_ns[request.step]

    @property
    def state(self) -> State:
        """What is known of it now."""
        return self.story.states[self.request.step - 1]

    def account(self, recorder: Recorder) -> dict[str, Any]:
        """Its row, as a sidecar would write it now."""
        known, request = self.state.account, self.request
        ended_ns = known["ended_ns"]
        causes = [
            {**split, "at_ns": request.began_ns + split["at_ns"],
             "span_id": recorder.span_id(self.sequences[step] + place).hex()}
            for split, (step, place) in zip(known["causes"], self.state.admissions, strict=True)
        ]  # fmt: skip
        return {
            **known, "causes": causes,
            "request": request.id, "external": request.external, "trace_id": request.trace_id.hex(),
            "started_ns": request.began_ns, "last_ns": request.began_ns + known["last_ns"],
            "ended_ns": None if ended_ns is None else request.began_ns + ended_ns,
        }  # fmt: skip

    def lane(self) -> Lane:
        """Its lane."""
        known, request = self.state.lane, self.request
        ended_ns = None if known.ended_ns is None else request.began_ns + known.ended_ns
        return structs.replace(
            known, request=request.id, external=request.external, started_ns=request.began_ns,
            last_ns=request.began_ns + known.last_ns, ended_ns=ended_ns,
        )  # fmt: skip

    def findings(self, recorder: Recorder) -> list[Finding]:
        """What its last step has brought."""
        return [self._found(seen, recorder) for seen in self.state.findings]

    def _found(self, seen: _Seen, recorder: Recorder) -> Finding:
        request, finding = self.request, seen.finding
        later_ns = request.began_ns - seen.began_ns
        clocks: dict[str, str] = {}
        witnesses = []
        for witness, (step, place) in zip(finding.witness, seen.places, strict=True):
            at_ns, numbers = witness.at_ns + later_ns, witness.numbers
            clocks[clock(witness.at_ns)] = clock(at_ns)
            if numbers.get("scheduler_step") is not None:
                numbers = {**numbers, "scheduler_step": self.scheduler_steps[step]}
            chunk = request.shape.steps[step][place].chunk
            if chunk is not None:
                numbers = {**numbers, "chunk_keys": (request.keys[chunk][-_KEY:].decode(),)}
            span_id = recorder.span_id(self.sequences[step] + place).hex()
            trace_id = request.trace_id.hex()
            witnesses.append(replace(witness, span_id=span_id, trace_id=trace_id, at_ns=at_ns, numbers=numbers))
        return replace(
            finding, request=request.id, external=request.external, trace_id=request.trace_id.hex(),
            first_ns=finding.first_ns + later_ns, last_ns=finding.last_ns + later_ns, witness=witnesses,
            explanation=re.sub("|".join(map(re.escape, clocks)), lambda said: clocks[said[0]], finding.explanation),
        )  # fmt: skip


class Stories:
    """Those of an engine.

    Attributes:
        lawful, long, drifting: what its requests may do; some last for hours.
    """

    def __init__(self, engine: str, model: str, connector: str) -> None:
        dice = random.Random(engine)
        self._engine, self._connector = engine, connector
        self._recorder = Recorder(engine, dice, model=model, connector=connector)
        self._dice, self._at_ns = dice, S
        self._savings, self._decoder = SavingsCounter(), ProtobufDecoder()
        self._detector = Detector(on_fact=self._enter)
        shapes = Shapes(dice, connector)
        for shape in reversed(shapes.first):
            self._story(shape)
        self.lawful = [self._story(shape) for shape in shapes.lawful]
        self.long = [self._story(shapes.another(), lasts_ns=dice.randrange(2, 8) * 3600 * S) for _ in range(LONG)]
        self.drifting = [self._story(shape) for some in zip(*shapes.drifting.values(), strict=True) for shape in some]

    def mean(self) -> float:
        """How many spans a lawful request has on average."""
        return statistics.mean(sum(map(len, story.shape.steps)) for story in self.lawful)

    def _story(self, shape: Shape, *, lasts_ns: int = 0) -> Story:
        """Tell a request of this shape, and note what is known after each step."""
        dice, at_ns = self._dice, 0
        request = self._recorder.begin(shape, self._at_ns)
        first, times, states = self._recorder.sequence, [], []
        for number in range(len(shape.steps)):
            if number + 1 == len(shape.steps):
                at_ns = max(at_ns, lasts_ns)
            spans: list[bytes] = []
            self._recorder.advance(request, spans, self._at_ns + at_ns)
            times.append(at_ns)
            states.append(self._judged(request, spans, first))
            at_ns += dice.randrange(50 * MS, 1000 * MS) if number < 2 else dice.randrange(1 * S, 8 * S)
        self._at_ns += at_ns
        return Story(shape, times, states)

    def _judged(self, request: Request, spans: list[bytes], first: int) -> State:
        key = (self._engine, request.id)
        findings = self._detector.feed(self._decoder.decoded(self._recorder.request_of(spans)).events)
        account, held = self._detector.accounts[key], self._detector.findings.get(key, ())
        verdict = self._detector.verdict(account)
        why = self._detector.why_unknown(account) if verdict is Verdict.UNKNOWN else None
        sums: dict[int, dict[str, int]] = {}
        for each in self._savings.sums.rows():
            sums.setdefault(each.epoch, {}).update(each.measures)
        self._savings.sums.clear()
        self._savings.facts.clear()
        places = self._places(request.shape, first)
        known = account.as_dict()
        causes = [{**split, "at_ns": split["at_ns"] - request.began_ns} for split in known["causes"]]
        row = {
            **known, "causes": causes, "verdict": verdict, "findings": len(held),
            "last_ns": account.last_ns - request.began_ns,
            "ended_ns": None if account.ended_ns is None else account.ended_ns - request.began_ns,
            "unknown": None if why is None else why.name.lower(), **measures_of(account, known["causes"]),
        }  # fmt: skip
        lane = structs.replace(
            lane_of(account, verdict=verdict, findings=len(held)), last_ns=row["last_ns"], ended_ns=row["ended_ns"]
        )
        seen = [
            _Seen(each, request.began_ns, [places[witness.span_id] for witness in each.witness]) for each in findings
        ]
        return State(row, [places[split["span_id"]] for split in known["causes"]], lane, sums, seen)

    def _places(self, shape: Shape, first: int) -> dict[str, tuple[int, int]]:
        """By span: its step, and its place in it."""
        places = ((step, place) for step, reported in enumerate(shape.steps) for place in range(len(reported)))
        return {self._recorder.span_id(first + number).hex(): each for number, each in enumerate(places)}

    def _enter(self, fact: Fact, account: Account) -> None:
        self._savings.enter(fact, account)
        account.phases.enter(fact)
