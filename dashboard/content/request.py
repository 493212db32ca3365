"""One request's timeline: its steps as table rows and chart points, and its account as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.events.events import Side
from kvtrail.tracer.events.semconv import Kind, external_id
from kvtrail.tracer.model.words import NOTHING, count, described, duration, kind, some, value, waiting

MEASURES = {
    "total": "tokens of the request", "computed": "in vLLM", "matched": "matched", "allocated": "to be loaded",
    "loaded": "loaded", "stored": "stored",
}  # fmt: skip
"""The account's numbers in charts, and their names."""
ACCOUNT = {
    "status": ("status", "status"),
    "epoch": ("preemptions", "preemption"),
    "total": ("tokens of the request", "total"),
    "computed": ("of these in vLLM", "computed tokens"),
    "matched": ("matched in the store", "matched tokens"),
    "returned": ("answer to the lookup", "returned tokens"),
    "allocated": ("to be loaded", "allocated tokens"),
    "scheduled": ("run by the step", "scheduled tokens"),
    "loaded": ("loaded", "loaded tokens"),
    "stored": ("stored", "stored tokens"),
    "lookups": ("lookups", "lookup"),
    "loads": ("loads", "loads"),
    "waited_ns": ("waited for KV", "waited for KV"),
    "recomputed": ("recomputed", "recomputed tokens"),
    "rejected": ("rejected drafts", "rejected drafts"),
    "refused": ("answers refused", "refused answers"),
    "looked_at": ("blocks checked", "blocks checked"),
    "wrong_blocks": ("wrong blocks", "wrong blocks"),
    "outcome": ("how it ended", "outcome"),
    "missing": ("what is missing", "gaps"),
}
"""The account's numbers in tables, in this order: names, and the glossary's terms."""
STEP_MEASURES = {"computed": "In vLLM", "matched": "Matched", "loaded": "Loaded", "stored": "Stored"}
"""The account's numbers in the table of steps."""
GROUPS = ["kvtrail", "other service", "proof of a finding", "call that raised"]
"""The kinds of marks; if several apply to a step, the last one."""
_KINDS = [kind(each) for each in Kind if each != Kind.HEARTBEAT]


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
            "Since arrival": _ms(timeline, step["start_ns"]),
            "To next": to_next,
            "Kind": kind(step["name"]),
            "Says": step_text(step),
            "Took": duration(step["end_ns"] - step["start_ns"]),
            "Preemptions": step["epoch"],
            "Status": None if step["account"] is None else step["account"]["status"],
            **{
                name: None if step["account"] is None else step["account"][measure]
                for measure, name in STEP_MEASURES.items()
            },
            "Time (UTC)": text.clock(step["start_ns"]),
            "By": step["service"] if step["foreign"] else f"{step['role']} {step['rank'] or 0}",
        }
        for number, (step, to_next) in enumerate(zip(timeline["steps"], _to_next(timeline), strict=True), 1)
    ]


def _to_next(timeline: Row) -> list[float | None]:
    """For each step: milliseconds to the next. Other services' spans enclose steps, and have None."""
    found: list[float | None] = []
    next_ns = None
    for step in reversed(timeline["steps"]):
        found.append(None if next_ns is None or step["foreign"] else (next_ns - step["end_ns"]) / 1e6)
        next_ns = next_ns if step["foreign"] else step["end_ns"]
    return found[::-1]


def account_rows(account: Row, other: Row | None) -> list[Row]:
    """Two accounts side by side: a row for each number, with both values as text and whether they differ."""
    return [
        {
            "name": name,
            "label": label,
            "value": _shown(account, name),
            "other": None if other is None else _shown(other, name),
            "differs": other is not None and _number(account, name) != _number(other, name),
        }
        for name, (label, _) in ACCOUNT.items()
    ]


def _shown(account: Row, name: str) -> str:
    """A number of the account as text."""
    if name == "waited_ns":
        return waiting(account[name], account["wait_loads"])
    return value(_number(account, name)).replace("_", " ")


def _number(account: Row, name: str) -> Any:
    """A number of the account. A running request's total is that of its latest lookup, so computed tokens may exceed it."""
    number = account.get(name)
    return max(number, account["computed"] or 0) if name == "total" and number is not None else number


def facts(request: Row) -> list[tuple[str, str, str, str]]:
    """The cards of a request: name, value, note, and the glossary's term. Those that are zero are left out."""
    waited = some(request["wait_loads"], "load")
    output = None if request["prompt"] is None else _number(request, "total") - request["prompt"]
    wrong, refused = request.get("wrong_blocks") or 0, request["refused"]
    checked = request.get("looked_at") or 0
    found = [
        (output, "Output", "tokens", "output tokens"),
        (request["waited_ns"], "Waited for KV", f"in {waited}", "waited for KV"),
        (request["loaded"], "Loaded", f"in {some(request['loads'], 'load')}", "loaded tokens"),
        (request["recomputed"], "Recomputed", "after preemptions", "recomputed tokens"),
        (request["stored"], "Stored", "tokens", "stored tokens"),
        (refused, "Answers refused", f"of {some(request['lookups'], 'lookup')}", "refused answers"),
        (request["epoch"], "Preemptions", "of the request", "preemption"),
        (checked, "Blocks checked", f"{count(wrong)} wrong" if wrong else "none wrong", "blocks checked"),
    ]
    return [
        (name, text.seconds(number / 1e9) if name == "Waited for KV" else count(number), note, term)
        for number, name, note, term in found
        if number or (name == "Loaded" and request["loads"])
    ]


def findings_by_step(timeline: Row) -> dict[int, list[Row]]:
    """The findings by the step (from 1) of their last witness.

    If its span is not stored: the latest step before it, or the first.
    """
    steps = timeline["steps"]
    numbers = {step["span_id"]: number for number, step in enumerate(steps, 1)}
    findings: dict[int, list[Row]] = {}
    for finding in timeline["findings"]:
        last = finding["witness"][-1] if finding["witness"] else {"span_id": "", "at_ns": finding["first_ns"]}
        number = numbers.get(last["span_id"]) or max(1, sum(step["start_ns"] <= last["at_ns"] for step in steps))
        findings.setdefault(number, []).append(finding)
    return dict(sorted(findings.items()))


def witness_labels(findings: Iterable[Row]) -> dict[str, str]:
    """The labels (L1, A1, ...) of spans in the findings' explanations, by span id."""
    labels: dict[str, dict[str, None]] = {}  # ordered, each once
    for finding in findings:
        for witness in finding["witness"]:
            labels.setdefault(witness["span_id"], {})[witness["label"]] = None
    return {span_id: ", ".join(names) for span_id, names in labels.items()}


def handoffs(timeline: Row) -> list[tuple[str, Row | None]]:
    """The request's hand-offs in words, each with the request on the other side, as far as it is known."""
    return [
        (_handoff_text(each), {"request": each["request"], "engine": each["engine"]} if each["request"] else None)
        for each in timeline.get("handoffs", ())
    ]


def _handoff_text(handoff: Row) -> str:
    gives = handoff["side"] == Side.GIVES
    if not handoff["request"]:
        name = handoff["keys"][0].partition(":")[2] if handoff["keys"] else "no key"
        return f"Handed over as {name}; the other engine has reported nothing of it"
    other = external_id(handoff["request"])
    return f"Handed over to {other}" if gives else f"Prefilled as {other}"


def missing_events(timeline: Row) -> str:
    """A sentence if events of this request are missing, else an empty text."""
    missing = timeline["missing"]
    if missing <= 0 and timeline["request"]["complete"]:
        return ""
    events = "1 event of this request is" if missing == 1 else "events of this request are"
    if missing > 1:
        events = f"{count(missing)} {events}"
    return f"{events.capitalize()} missing. kvtrail cannot judge what it did not see."


def step_points(timeline: Row) -> list[Row]:
    """The steps as points of the timeline chart; times are milliseconds after the arrival.

    Each has its `row` in the chart, its `group`, and `proof`, its label in the explanations of findings.
    """
    labels = witness_labels(timeline["findings"])
    ranks = len({step["rank"] for step in timeline["steps"] if step["role"] == "worker"})
    points = []
    for number, step in enumerate(timeline["steps"], 1):
        begin, end = (_ms(timeline, step[name]) for name in ("start_ns", "end_ns"))
        has_rank = step["role"] == "worker" and ranks > 1
        applies = (True, step["foreign"], step["span_id"] in labels, step["error"])
        points.append(
            {
                "step": number,
                "at": begin if step["foreign"] else end,
                "from": begin,
                "to": end,
                "row": kind(step["name"]) + (f", rank {step['rank']}" if has_rank else ""),
                "group": [group for group, does in zip(GROUPS, applies, strict=True) if does][-1],
                "proof": labels.get(step["span_id"], ""),
                "preemptions": NOTHING if step["epoch"] is None else str(step["epoch"]),
                "time": text.clock(step["start_ns"]),
                "took": duration(step["end_ns"] - step["start_ns"]),
                "says": step["error"] or described(step["name"], step["numbers"]),
            }
        )
    return points


def row_order(points: Sequence[Row]) -> list[str]:
    """The rows of the timeline chart: other services' first, since their spans enclose the rest; then kinds in order."""
    order = {name: number for number, name in enumerate(_KINDS)}
    return sorted({point["row"] for point in points}, key=lambda row: (order.get(row.partition(", rank ")[0], -1), row))


def account_points(timeline: Row) -> list[Row]:
    """The account after each step, a point for each measure; None if not known."""
    return [
        {
            "step": number,
            "at": _ms(timeline, step["end_ns"]),
            "measure": name,
            "tokens": _number(step["account"], measure),
            "time": text.clock(step["end_ns"]),
            "after": kind(step["name"]),
        }
        for number, step in enumerate(timeline["steps"], 1)
        if step["account"] is not None
        for measure, name in MEASURES.items()
    ]


def epoch_starts(timeline: Row) -> list[Row]:
    """The first step of each epoch."""
    starts: dict[int, Row] = {}
    for number, step in enumerate(timeline["steps"], 1):
        epoch = step["epoch"]
        if epoch is not None and step["name"] != Kind.REQUEST and epoch not in starts:
            starts[epoch] = {
                "step": number,
                "at": _ms(timeline, step["start_ns"]),
                "epoch": epoch,
                "name": f"after preemption {epoch}",
                "time": text.clock(step["start_ns"]),
            }
    return list(starts.values())


def epoch_labels(starts: Sequence[Row], *, field: str, near: float) -> list[Row]:
    """Labels for epochs after preemptions, at their starts on the chart's axis `field`.

    Starts within `near` of each other share a label, so that labels do not overlap.
    """
    shared: list[list[Row]] = []
    for start in starts[1:]:
        if shared and start[field] - shared[-1][0][field] < near:
            shared[-1].append(start)
        else:
            shared.append([start])
    labels = []
    for each in shared:
        first, last = each[0]["epoch"], each[-1]["epoch"]
        name = f"preemption {first}" if first == last else f"preemptions {first} to {last}"
        labels.append({field: each[0][field], "name": name})
    return labels


def _ms(timeline: Row, at_ns: int) -> float:
    return float((at_ns - timeline["request"]["started_ns"]) / 1e6)
