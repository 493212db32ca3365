"""One request's timeline as the points that its charts are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtrail.dashboard import wording
from kvtrail.dashboard.client import Row
from kvtrail.tracer.model.semconv import Kind

MEASURES = ("total", "computed", "matched", "allocated", "loaded", "stored")
"""The account's numbers that are drawn."""
GROUPS = ["kvtrail", "other service", "witness of a finding", "call that raised"]
"""What a step is, at most one of these; the later ones weigh more."""


def moments(timeline: Row) -> list[Row]:
    """The steps as points of the timeline: where, in which row, in which epoch, and whether a finding rests on them."""
    origin = int(timeline["request"]["started_ns"])
    marks = witness_labels(timeline["findings"])
    ranks = len({step["rank"] for step in timeline["steps"] if step["role"] == "worker"})
    return [
        {
            "step": number,
            "at": ((step["start_ns"] if step["foreign"] else step["end_ns"]) - origin) / 1e6,
            "from": (step["start_ns"] - origin) / 1e6,
            "to": (step["end_ns"] - origin) / 1e6,
            "row": _row(step, ranks=ranks),
            "group": _group(step, marks),
            "mark": marks.get(step["span_id"], ""),
            "epoch": wording.NOTHING if step["epoch"] is None else str(step["epoch"]),
            "time": wording.clock(step["start_ns"]),
            "took": wording.duration(step["end_ns"] - step["start_ns"]),
            "says": step["error"] or wording.said(step["name"], step["numbers"]),
        }
        for number, step in enumerate(timeline["steps"], 1)
    ]


def witness_labels(findings: Iterable[Row]) -> dict[str, str]:
    """The labels (L1, A1, ...) under which the findings' explanations speak of spans, by span id."""
    labels: dict[str, list[str]] = {}
    for finding in findings:
        for witness in finding["witness"]:
            names = labels.setdefault(witness["span_id"], [])
            if witness["label"] not in names:
                names.append(witness["label"])
    return {span_id: ", ".join(names) for span_id, names in labels.items()}


def levels(timeline: Row) -> list[Row]:
    """The account after each step, a row for each measure; None where it is not known."""
    origin = int(timeline["request"]["started_ns"])
    return [
        {
            "step": number,
            "at": (step["end_ns"] - origin) / 1e6,
            "measure": measure,
            "tokens": step["account"][measure],
            "time": wording.clock(step["end_ns"]),
            "after": wording.kind(step["name"]),
        }
        for number, step in enumerate(timeline["steps"], 1)
        if step["account"] is not None
        for measure in MEASURES
    ]


def epochs(timeline: Row) -> list[Row]:
    """Where each preemption epoch begins."""
    origin = int(timeline["request"]["started_ns"])
    begins: dict[int, Row] = {}
    for number, step in enumerate(timeline["steps"], 1):
        epoch = step["epoch"]
        if epoch is not None and step["name"] != Kind.REQUEST:
            begins.setdefault(epoch, {"step": number, "at": (step["start_ns"] - origin) / 1e6, "epoch": epoch})
    return list(begins.values())


def epoch_names(begins: Sequence[Row], *, field: str, near: float) -> list[Row]:
    """The names of the epochs at the places of a chart where they begin, by `field`; those that begin within `near` of
    the one before share a name, or they would stand on top of each other. The first is what comes before all of them."""
    shared: list[list[Row]] = []
    for begin in begins[1:]:
        if shared and begin[field] - shared[-1][0][field] < near:
            shared[-1].append(begin)
        else:
            shared.append([begin])
    return [
        {
            field: each[0][field],
            "name": f"epoch {each[0]['epoch']}"
            if len(each) == 1
            else f"epochs {each[0]['epoch']} to {each[-1]['epoch']}",
        }
        for each in shared
    ]


def _row(step: Row, *, ranks: int) -> str:
    """The row of a step: its kind, and its rank where several tell of the same."""
    kind = wording.kind(step["name"])
    return f"{kind}, rank {step['rank']}" if step["role"] == "worker" and ranks > 1 else kind


def _group(step: Row, marks: dict[str, str]) -> str:
    if step["error"]:
        return GROUPS[3]
    if step["span_id"] in marks:
        return GROUPS[2]
    return GROUPS[1] if step["foreign"] else GROUPS[0]
