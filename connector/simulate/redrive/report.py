"""The report of a re-drive, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvtrail.connector.simulate.redrive.comparison import LOOKUP, Answer, Comparison, Facts, Outcome
from kvtrail.connector.simulate.redrive.redrive import Redriven
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.model.words import count, run, some
from kvtrail.tracer.reports.findings import finding_text
from kvtrail.tracer.reports.terminal import plain, wrapped

MAX_LISTED = 12
"""Maximum number of answers that are listed one by one."""
_INDENT = "  "


def as_text(driven: Redriven, *, columns: int | None = None) -> str:
    """The outcome of the recorded findings, how the answers compare, and the findings of the run."""
    compared, played = driven.comparison, driven.played
    recorded = driven.workload.connector
    with_what = driven.connector if driven.connector == recorded else f"{driven.connector} instead of {recorded}"
    requests = some(len(driven.workload.requests), "request")
    parts = [
        "\n".join(wrapped(f"{requests} driven again with {with_what}: {_verdict(compared)}", columns)),
        *("\n".join(wrapped(f"Note: {note}", columns)) for note in compared.doubts),
        "\n".join(_counts(compared, columns)),
        *("\n".join(part) for part in _differences(compared, columns)),
        *(finding_text(finding, columns=columns) for finding in played.findings),
    ]
    if played.error is not None:
        parts.append(f"The engine died after {some(played.steps, 'step')}: {plain(played.error)}")
    elif played.unfinished:
        parts.append(f"{some(len(played.unfinished), 'request')} had not ended after {some(played.steps, 'step')}.")
    if not compared.has_compared:
        parts.append("Inconclusive: no answer could be compared.")
    return "\n\n".join(parts)


def as_dict(driven: Redriven) -> dict[str, Any]:
    """JSON-ready data."""
    compared, played = driven.comparison, driven.played
    lookups = [each for each in compared.answers if each.call == LOOKUP]
    return {
        "connector": driven.connector,
        "recorded_connector": driven.workload.connector,
        "notes": list(compared.doubts),
        "steps": played.steps,
        "error": played.error,
        "recorded_error": compared.error,
        "unfinished": list(played.unfinished),
        "lookups": {
            "recorded": sum(each.recorded is not None for each in lookups),
            "same": sum(each.outcome is Outcome.SAME for each in lookups),
            "driven": len(played.lookups),
        },
        "preemptions": {"recorded": compared.preemptions, "driven": compared.driven_preemptions},
        "hits": {"recorded": compared.hits, "driven": compared.driven_hits},
        "outcomes": {outcome.value: compared.outcomes[outcome] for outcome in Outcome},
        "first_difference": None if compared.first is None else compared.first.number,
        "recorded_findings": [list(each) for each in compared.findings],
        "findings": [finding.as_dict() for finding in played.findings],
        "same_findings": [list(each) for each in compared.same_findings],
        "answers": [asdict(each) for each in compared.answers],
        "scenario": driven.workload.scenario.as_dict(),
    }


def _verdict(compared: Comparison) -> str:
    if not compared.findings:
        return (
            "findings that the recording does not have." if compared.driven_findings else "nothing found, as recorded."
        )
    if compared.same_findings:
        again = ", ".join(f"{rule} for {request}" for rule, request in compared.same_findings[:5])
        return f"the recorded finding appears again ({plain(again)})."
    if compared.same_rules:
        return f"{', '.join(compared.same_rules)} appears again, for another request."
    if compared.driven_findings:
        return "other findings than the recorded ones."
    return "the recorded findings do not appear."


def _counts(compared: Comparison, columns: int | None) -> list[str]:
    lookups = sum(each.call == LOOKUP for each in compared.answers)
    what = f"{some(lookups, 'lookup')}, {some(len(compared.answers) - lookups, 'allocation')}"
    outcomes = ", ".join(f"{count(compared.outcomes[outcome])} {outcome.value}" for outcome in Outcome)
    return [
        *wrapped(f"{some(len(compared.answers), 'answer')} ({what}): {outcomes}.", columns),
        *wrapped(
            f"Preemptions: {count(compared.preemptions)} recorded, {count(compared.driven_preemptions)} this time."
            f" Tokens hit: {count(compared.hits)} recorded, {count(compared.driven_hits)} this time.",
            columns,
        ),
    ]


def _differences(compared: Comparison, columns: int | None) -> list[list[str]]:
    parts: list[list[str]] = []
    parting, first = compared.parting, compared.first
    if parting is not None and parting is not first:
        parts.append(["Here the run takes another course:", *_answer(parting, columns)])
    if first is not None:
        parts.append(["The first difference:", *_answer(first, columns)])
        numbers = [each.number for each in compared.answers if each.outcome is Outcome.DIFFERENT]
        parts.append(wrapped(f"All differences: {_list(numbers)}", columns))
    reasons = Counter(each.reason for each in compared.answers if each.outcome is Outcome.NOT_COMPARABLE)
    if reasons:
        parts.append(["Not comparable:"])
        for reason, number in reasons.most_common():
            first_line = f"{_INDENT}{number:>5}  "
            parts[-1] += wrapped(reason, columns, first=first_line, rest=" " * len(first_line))
    return parts


def _answer(answer: Answer, columns: int | None) -> list[str]:
    about = f"#{answer.number} {answer.call} of {plain(answer.request)} ({run(answer.epoch)}), at {clock(answer.at_ns)}"
    lines = wrapped(about, columns, first=_INDENT)
    for name, text in (
        ("asked", _asked(answer)),
        ("recorded", _answered(answer.recorded)),
        ("this time", _answered(answer.driven)),
    ):
        first = f"{_INDENT * 2}{name:<11}"
        lines += wrapped(text, columns, first=first, rest=" " * len(first))
    if answer.outcome is Outcome.NOT_COMPARABLE:
        return lines + wrapped(f"Not comparable: {answer.reason}.", columns, first=_INDENT * 2)
    lines += wrapped(_by_the_rules(answer), columns, first=_INDENT * 2)
    return lines + (wrapped(plain(answer.explanation), columns, first=_INDENT * 3) if answer.explanation else [])


def _asked(answer: Answer) -> str:
    asked = answer.asked
    if answer.call == LOOKUP:
        return f"{count(asked['computed'])} of {count(asked['total'])} tokens computed"
    return f"{count(asked['blocks'])} blocks for {count(asked['external'])} external tokens"


def _answered(facts: Facts | None) -> str:
    if facts is None:
        return "no such call"
    if "error" in facts:
        return plain(str(facts["error"]))
    if not facts:
        return "accepted"
    returned = facts["returned"]
    matched = "" if facts["matched"] is None else f"{count(facts['matched'])} matched, "
    how = (", asynchronously" if facts["is_async"] else "") + (", from memory" if facts["cached"] else "")
    return f"{matched}answered {'ask me later' if returned is None else count(returned)}{how}"


def _by_the_rules(answer: Answer) -> str:
    def fault(breaks: Sequence[str], facts: Facts | None) -> str:
        if breaks:
            return f"breaks {', '.join(breaks)}"
        return "is an error" if "error" in (facts or ()) else "breaks no rule"

    then, now = fault(answer.recorded_breaks, answer.recorded), fault(answer.driven_breaks, answer.driven)
    return f"The recorded answer {then}, this one {now}."


def _list(numbers: Sequence[int]) -> str:
    listed = ", ".join(f"#{number}" for number in numbers[:MAX_LISTED])
    return f"{listed}, and {len(numbers) - MAX_LISTED} more" if len(numbers) > MAX_LISTED else listed
