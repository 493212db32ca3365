"""The report of a re-drive, as text and as JSON."""

from __future__ import annotations

from typing import Any

from kvtrail.connector.simulate.redrive.redrive import Redriven
from kvtrail.tracer.model.words import count, some
from kvtrail.tracer.reports.findings import finding_text

NO_LOOKUP = "no such lookup"


def as_text(driven: Redriven, *, columns: int | None = None) -> str:
    """The verdict, then how closely the run follows the recording, then its findings."""
    close, played = driven.closeness, driven.played
    share = 100 * close.same_lookups / close.lookups if close.lookups else 100
    parts = [
        f"{some(len(driven.workload.requests), 'request')} driven again with {driven.connector}: {_verdict(driven)}",
        *(f"Note: {note}" for note in driven.workload.notes),
        f"{some(close.lookups, 'recorded lookup')}, {count(close.same_lookups)} of them the same ({share:.0f}%);"
        f" {count(close.driven_lookups)} this time.\n"
        f"Preemptions: {count(close.preemptions)} recorded, {count(close.driven_preemptions)} this time."
        f" Tokens hit: {count(close.hits)} recorded, {count(close.driven_hits)} this time.",
    ]
    if (diverged := close.divergence) is not None:
        parts.append(
            f"First divergence: request {diverged.request}, lookup {diverged.lookup}.\n"
            f"  recorded:  {diverged.recorded or NO_LOOKUP}\n"
            f"  this time: {diverged.driven or NO_LOOKUP}"
        )
    parts += [finding_text(finding, columns=columns) for finding in played.findings]
    if played.error is not None:
        parts.append(f"The engine died after {some(played.steps, 'step')}: {played.error}")
    elif played.unfinished:
        parts.append(f"{some(len(played.unfinished), 'request')} had not ended after {some(played.steps, 'step')}.")
    return "\n\n".join(parts)


def _verdict(driven: Redriven) -> str:
    close = driven.closeness
    if not close.findings:
        return "findings that the recording does not have." if close.driven_findings else "nothing found, as recorded."
    if close.same_findings:
        again = ", ".join(f"{rule} for {request}" for rule, request in close.same_findings[:5])
        return f"the recorded finding appears again ({again})."
    if close.same_rules:
        return f"{', '.join(close.same_rules)} appears again, for another request."
    if close.driven_findings:
        return "other findings than the recorded ones."
    return "the recorded findings do not appear."


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
        "divergence": diverged
        and {
            "request": diverged.request,
            "lookup": diverged.lookup,
            "recorded": str(diverged.recorded or NO_LOOKUP),
            "driven": str(diverged.driven or NO_LOOKUP),
        },
        "recorded_findings": [list(each) for each in close.findings],
        "findings": [finding.as_dict() for finding in played.findings],
        "same_findings": [list(each) for each in close.same_findings],
        "scenario": driven.workload.scenario.as_dict(),
    }
