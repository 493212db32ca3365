"""One request's timeline: its steps as table rows and chart points, and its account in rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model.semconv import Kind
from kvtrail.tracer.model.words import NOTHING, count, duration, kind, said, value

MEASURES = ("total", "computed", "matched", "allocated", "loaded", "stored")
"""The account's numbers that are drawn."""
ACCOUNT = (
    "status", "epoch", "total", "computed", "matched", "returned", "allocated", "scheduled", "loaded", "stored", "lookups",
    "rejected", "refused", "outcome", "missing",
)  # fmt: skip
"""The account's numbers in tables, in this order."""
GROUPS = ["kvtrail", "other service", "witness of a finding", "call that raised"]
"""What a step is; if several apply, the last of them."""
_KINDS = [kind(each) for each in Kind if each != Kind.HEARTBEAT]


def step_text(step: Row) -> str:
    """What a step says, and the error that it raised."""
    return said(step["name"], step["numbers"]) + (f"; raised {step['error']}" if step["error"] else "")


def step_rows(timeline: Row) -> list[Row]:
    """Every step, with what it says and the account after it."""
    origin_ns = timeline["request"]["started_ns"]
    labels = witness_labels(timeline["findings"])
    return [
        {
            "Step": number,
            "Witness": labels.get(step["span_id"], ""),
            "Time (UTC)": text.clock(step["start_ns"]),
            "Since arrival": (step["start_ns"] - origin_ns) / 1e6,
            "Epoch": step["epoch"],
            "Kind": kind(step["name"]),
            "Says": step_text(step),
            "Took": duration(step["end_ns"] - step["start_ns"]),
            **{
                name.capitalize(): None if step["account"] is None else step["account"][name]
                for name in ("status", "computed", "matched", "loaded", "stored")
            },
            "By": step["service"] if step["foreign"] else f"{step['role']} {step['rank'] or 0}",
        }
        for number, step in enumerate(timeline["steps"], 1)
    ]


def account_rows(account: Row, other: Row | None) -> list[Row]:
    """An account beside another one: a row for each number, with both values as text and whether they differ."""
    return [
        {
            "name": name,
            "value": value(account.get(name)).replace("_", " "),
            "other": None if other is None else value(other.get(name)).replace("_", " "),
            "differs": other is not None and account.get(name) != other.get(name),
        }
        for name in ACCOUNT
    ]


def findings_by_step(timeline: Row) -> dict[int, list[Row]]:
    """The findings by the step (from 1) that completes their evidence: that of the last witness.

    If its span is not stored, it is the latest step before it, or the first.
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
    """The labels (L1, A1, ...) by which the findings' explanations name spans, by span id."""
    labels: dict[str, dict[str, None]] = {}  # ordered, each once
    for finding in findings:
        for witness in finding["witness"]:
            labels.setdefault(witness["span_id"], {})[witness["label"]] = None
    return {span_id: ", ".join(names) for span_id, names in labels.items()}


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

    Each has its `row` in the chart, its `group`, and `mark`, its label as a witness.
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
                "mark": labels.get(step["span_id"], ""),
                "epoch": NOTHING if step["epoch"] is None else str(step["epoch"]),
                "time": text.clock(step["start_ns"]),
                "took": duration(step["end_ns"] - step["start_ns"]),
                "says": step["error"] or said(step["name"], step["numbers"]),
            }
        )
    return points


def row_order(points: Sequence[Row]) -> list[str]:
    """The rows of the timeline chart: other services' first, as their spans enclose the rest, then kinds as they follow."""
    order = {name: number for number, name in enumerate(_KINDS)}
    return sorted({point["row"] for point in points}, key=lambda row: (order.get(row.partition(", rank ")[0], -1), row))


def account_points(timeline: Row) -> list[Row]:
    """The account after each step, a point for each measure; None where a number is not known."""
    return [
        {
            "step": number,
            "at": _ms(timeline, step["end_ns"]),
            "measure": measure,
            "tokens": step["account"][measure],
            "time": text.clock(step["end_ns"]),
            "after": kind(step["name"]),
        }
        for number, step in enumerate(timeline["steps"], 1)
        if step["account"] is not None
        for measure in MEASURES
    ]


def epoch_starts(timeline: Row) -> list[Row]:
    """The first step of each preemption epoch."""
    starts: dict[int, Row] = {}
    for number, step in enumerate(timeline["steps"], 1):
        epoch = step["epoch"]
        if epoch is not None and step["name"] != Kind.REQUEST:
            starts.setdefault(epoch, {"step": number, "at": _ms(timeline, step["start_ns"]), "epoch": epoch})
    return list(starts.values())


def epoch_labels(starts: Sequence[Row], *, field: str, near: float) -> list[Row]:
    """Names for all epochs but the first, where each starts on the chart's axis `field`.

    Epochs that start within `near` of another share its label, so that labels do not overlap.
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
        name = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        labels.append({field: each[0][field], "name": name})
    return labels


def _ms(timeline: Row, at_ns: int) -> float:
    return float((at_ns - timeline["request"]["started_ns"]) / 1e6)
