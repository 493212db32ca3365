"""What came of driving a recording again, for people and for machines."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.simulate.redrive.compare import in_words
from kvtrail.connector.simulate.redrive.redrive import Redriven
from kvtrail.tracer.model.words import count, some
from kvtrail.tracer.reports.findings import finding_text


def as_text(driven: Redriven, *, columns: int | None = None) -> str:
    """The verdict first, then how close it came, then what was found."""
    close, played = driven.closeness, driven.played
    parts = [_verdict(driven)]
    parts += [f"Note: {note}" for note in driven.workload.notes]
    share = 100 * close.same_lookups / close.lookups if close.lookups else 100
    parts.append(
        f"{some(close.lookups, 'recorded lookup')}, {count(close.same_lookups)} of them the same ({share:.0f}%);"
        f" {count(close.driven_lookups)} this time.\n"
        f"Preemptions: {count(close.preemptions)} recorded, {count(close.driven_preemptions)} this time."
        f" Tokens hit: {count(close.hits)} recorded, {count(close.driven_hits)} this time."
    )
    if (diverged := close.divergence) is not None:
        parts.append(
            f"First divergence: request {diverged.request}, lookup {diverged.lookup}.\n"
            f"  recorded:  {in_words(diverged.recorded)}\n"
            f"  this time: {in_words(diverged.driven)}"
        )
    parts += [finding_text(finding, columns=columns) for finding in played.findings]
    if played.error is not None:
        parts.append(f"The engine died after {some(played.steps, 'step')}: {played.error}")
    elif played.unfinished:
        parts.append(f"{some(len(played.unfinished), 'request')} had not ended after {some(played.steps, 'step')}.")
    return "\n\n".join(parts)


def as_dict(driven: Redriven) -> dict[str, Any]:
    """JSON-ready data."""
    close, played, diverged = driven.closeness, driven.played, driven.closeness.divergence
    return {
        "connector": driven.connector,
        "notes": list(driven.workload.notes),
        "steps": played.steps,
        "error": played.error,
        "unfinished": list(played.unfinished),
        "lookups": {"recorded": close.lookups, "same": close.same_lookups, "driven": close.driven_lookups},
        "preemptions": {"recorded": close.preemptions, "driven": close.driven_preemptions},
        "hits": {"recorded": close.hits, "driven": close.driven_hits},
        "divergence": None
        if diverged is None
        else {
            "request": diverged.request,
            "lookup": diverged.lookup,
            "recorded": in_words(diverged.recorded),
            "driven": in_words(diverged.driven),
        },
        "recorded_findings": [list(each) for each in close.findings],
        "findings": [finding.as_dict() for finding in played.findings],
        "same_findings": [list(each) for each in close.same_findings],
        "scenario": driven.workload.scenario.as_dict(),
    }


def _verdict(driven: Redriven) -> str:
    close, name = driven.closeness, driven.connector
    requests = some(len(driven.workload.lives), "request")
    if not close.findings and not close.driven_findings:
        return f"{requests} driven again with {name}: nothing found, as recorded."
    if not close.findings:
        return f"{requests} driven again with {name}: findings that the recording does not have."
    if close.same_findings:
        again = ", ".join(f"{rule} for {request}" for rule, request in close.same_findings[:5])
        return f"{requests} driven again with {name}: the recorded finding appears again ({again})."
    if close.same_rules:
        return f"{requests} driven again with {name}: {', '.join(close.same_rules)} appears again, for another request."
    if close.driven_findings:
        return f"{requests} driven again with {name}: other findings than the recorded ones."
    return f"{requests} driven again with {name}: the recorded findings do not appear."
