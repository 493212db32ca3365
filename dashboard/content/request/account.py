"""One request's timeline: its steps as rows, its numbers, the sources of its tokens, why its verdict is unknown, and the end
of its engine if the request was open then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.events.events import Side
from kvtrail.tracer.events.semconv import Kind, external_id
from kvtrail.tracer.model.findings import Unknown
from kvtrail.tracer.model.outcomes import MEANING, Outcome
from kvtrail.tracer.model.words import ADVICE, count, described, duration, kind, some

STEP_MEASURES = {"computed": "In vLLM", "matched": "Matched", "loaded": "Loaded", "stored": "Stored"}
"""The account's numbers in the table of steps."""
AROUND_NS = 5 * 60 * 10**9
"""The time range around an end: this long before and after the latest event."""
NEVER_ENDED = (Outcome.LOST, Outcome.LOST_CONTACT)


def step_text(step: Row) -> str:
    """The step's numbers in words, and its error."""
    return described(step["name"], step["numbers"]) + (f"; raised {step['error']}" if step["error"] else "")


def step_rows(timeline: Row) -> list[Row]:
    """Every step with its numbers in words and the account after it; times are milliseconds."""
    labels = witness_labels(timeline["findings"])
    return [
        {
            "Step": number,
            "Proof": labels.get(step["span_id"], ""),
            "Since arrival": since_arrival_ms(timeline, step["start_ns"]),
            "Kind": kind(step["name"]),
            "Says": step_text(step),
            "Took": duration(step["end_ns"] - step["start_ns"]),
            "Status": [] if step["account"] is None else [step["account"]["status"]],
            **{
                name: None if step["account"] is None else step["account"][measure]
                for measure, name in STEP_MEASURES.items()
            },
            "By": step["service"] if step["foreign"] else f"{step['role']} {step['rank'] or 0}",
        }
        for number, step in enumerate(timeline["steps"], 1)
    ]


def number(account: Row, name: str) -> Any:
    """A number of the account. A running request's total is that of its latest lookup, so computed tokens may exceed it."""
    found = account.get(name)
    return max(found, account["computed"] or 0) if name == "total" and found is not None else found


def facts(request: Row) -> list[str]:
    """The request's nonzero numbers, each with its name."""
    output = 0 if request["prompt"] is None else number(request, "total") - request["prompt"]
    checked, wrong = (request.get(name) or 0 for name in ("looked_at", "wrong_blocks"))
    waited = text.seconds(request["waited_ns"] / 1e9)
    shown = [
        (output, f"{some(output, 'token')} of output"),
        (request["waited_ns"], f"waited {waited} for KV in {some(request['wait_loads'], 'load')}"),
        (request["loads"], some(request["loads"], "load")),
        (request["loaded"], f"{some(request['loaded'], 'token')} loaded"),
        (request["stored"], f"{some(request['stored'], 'token')} stored"),
        (request["epoch"], some(request["epoch"], "preemption")),
        (request["recomputed"], f"{some(request['recomputed'], 'token')} recomputed after preemptions"),
        (request["refused"], f"{some(request['refused'], 'answer')} refused by the guard"),
        (checked, f"{some(checked, 'block')} checked, {count(wrong) if wrong else 'none'} wrong"),
    ]
    return [fact for amount, fact in shown if amount]


def findings_by_step(timeline: Row) -> dict[int, list[Row]]:
    """The findings by the step (from 1) of their last witness.

    If its span is not stored: the latest step before it, or the first.
    """
    numbers = {step["span_id"]: number for number, step in enumerate(timeline["steps"], 1)}
    findings: dict[int, list[Row]] = {}
    for finding in timeline["findings"]:
        last = [{"span_id": "", "at_ns": finding["first_ns"]}, *finding["witness"]][-1]
        before = sum(step["start_ns"] <= last["at_ns"] for step in timeline["steps"])
        findings.setdefault(numbers.get(last["span_id"], max(1, before)), []).append(finding)
    return dict(sorted(findings.items()))


def witness_labels(findings: Iterable[Row]) -> dict[str, str]:
    """The labels (L1, A1, ...) of spans in the findings' explanations, by span id."""
    labels: dict[str, dict[str, None]] = {}  # in order, without duplicates
    for finding in findings:
        for witness in finding["witness"]:
            labels.setdefault(witness["span_id"], {})[witness["label"]] = None
    return {span_id: ", ".join(names) for span_id, names in labels.items()}


def handoff_text(handoff: Row) -> str:
    """A hand-off in words."""
    if handoff["request"]:
        how = "Handed over to" if handoff["side"] == Side.GIVES else "Prefilled as"
        return f"{how} {external_id(handoff['request'])}"
    name = handoff["keys"][0].partition(":")[2] if handoff["keys"] else "no key"
    return f"Handed over as {name}; the other engine has reported nothing of it"


def missing_events(timeline: Row) -> str:
    """A sentence if events of this request are missing, else an empty text."""
    missing = timeline["missing"]
    if missing <= 0 and timeline["request"]["complete"]:
        return ""
    events = (
        f"{some(missing, 'event')} of this request {'is' if missing == 1 else 'are'}" if missing > 0 else "Events are"
    )
    return f"{events} missing. kvtrail cannot judge what it did not see."


def since_arrival_ms(timeline: Row, at_ns: int) -> float:
    """Milliseconds after the request's arrival."""
    return float((at_ns - timeline["request"]["started_ns"]) / 1e6)


@dataclass(frozen=True, slots=True)
class Admission:
    """The sources of the tokens of one admission: `asked` = `cached` + `loaded` + `computed`.

    Attributes:
        epoch: the number of preemptions before. A preempted request asks again, for its output so far as well.
        step: its first step, as the page counts steps.
    """

    epoch: int
    step: int
    asked: int
    cached: int
    loaded: int

    @property
    def computed(self) -> int:
        """The tokens from neither source."""
        return self.asked - self.cached - self.loaded


def admissions(timeline: Row) -> list[Admission]:
    """The admissions of a request, in order; only those with a recorded lookup and first step."""
    found: list[Admission] = []
    lookup: Row | None = None
    for number, step in enumerate(timeline["steps"], 1):
        if step["foreign"]:
            continue
        numbers = step["numbers"]
        if step["name"] == Kind.LOOKUP:
            lookup = step
        elif step["name"] == Kind.SCHEDULE and lookup is not None and lookup["epoch"] == step["epoch"]:
            asked = lookup["numbers"]["total"]
            # A load that failed is computed from where it failed, which may lie within vLLM's own cache.
            begins = min(numbers["computed"], asked)
            cached = min(lookup["numbers"]["computed"], begins)
            found.append(Admission(step["epoch"], number, asked, cached, begins - cached))
            lookup = None
    return found


def sum_line(admission: Admission) -> str:
    """The sum as text."""
    whole = "prompt" if not admission.epoch else "prompt and output so far"
    return (
        f"{count(admission.asked)} tokens of {whole} = {count(admission.cached)} from vLLM's cache +"
        f" {count(admission.loaded)} loaded + {count(admission.computed)} computed"
    )


def why_unknown(request: Row) -> str:
    """Why a request's verdict is unknown, and what to do about it, in a sentence or two; empty if it is known."""
    if not (name := request.get("unknown")):
        return ""
    if name == Unknown.OPEN.name.lower() and request.get("outcome") in NEVER_ENDED:
        return f"{MEANING[Outcome(request['outcome'])]} So its verdict stays unknown."
    known = Unknown.__members__.get(name.upper())
    # A newer tracer may have reasons that are not known here.
    return "The verdict is unknown: " + (f"{known}. {ADVICE[known]}" if known else f"{name.replace('_', ' ')}.")


def around_end(request: Row) -> TimeRange | None:
    """The time range around the end of a request's engine, if the request was open then; otherwise None."""
    if request["outcome"] not in NEVER_ENDED:
        return None
    return TimeRange(request["last_ns"] - AROUND_NS, request["last_ns"] + AROUND_NS)
