"""The report of a re-run, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvtrail.connector.simulate.rerun.outcome import Compared, Expected, Meaning, Outcome, Rerun
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.model.words import ending, some
from kvtrail.tracer.reports.terminal import plain, wrapped

MOST_LISTED = 12
"""Numbers of calls that are listed one by one."""
INDENT = "  "
_MEANT = {
    Meaning.FIX: "a fix",
    Meaning.NEW_FAULT: "a new fault",
    Meaning.OTHER: "another answer, and by the rules no better and no worse",
}
_PLURALS = {Meaning.FIX: "fixes", Meaning.NEW_FAULT: "new faults", Meaning.OTHER: "other answers"}


def as_dict(rerun: Rerun, expected: Expected | None = None) -> dict[str, Any]:
    """JSON-ready data."""
    first = rerun.first
    return {
        **({} if expected is None else {"expected": expected.value, "met": rerun.meets(expected)}),
        "against": rerun.against,
        "connector": rerun.connector,
        "engine": rerun.engine,
        "outcomes": {outcome.value: rerun.outcomes[outcome] for outcome in Outcome},
        "meanings": {meaning.value: rerun.meanings[meaning] for meaning in Meaning},
        "reproduced": [call.number for call in rerun.reproduced],
        "first_divergence": None if first is None else first.number,
        "died_at": rerun.died_at,
        "notes": list(rerun.notes),
        "calls": [asdict(call) for call in rerun.calls],
    }


def as_text(rerun: Rerun, *, columns: int | None = None) -> str:
    """The report for a terminal of so many columns, or for a file."""
    outcomes = ", ".join(f"{rerun.outcomes[outcome]} {outcome.value}" for outcome in Outcome)
    lines = wrapped(
        f"{rerun.connector}, as recorded, against {rerun.against}: {len(rerun.calls)} calls, {outcomes}.", columns
    )
    if (first := rerun.first) is not None:
        lines += ["", "The first divergence:", *_call(first, columns), "", "All differences:"]
        for meaning in Meaning:
            if numbers := [call.number for call in rerun.calls if call.meaning is meaning]:
                what = meaning.value if len(numbers) == 1 else _PLURALS[meaning]
                lines += wrapped(f"{len(numbers)} {what}: {_list(numbers)}", columns, first=INDENT)
    lines += [*_reproduced(rerun, columns), *_not_compared(rerun, columns)]
    if rerun.notes:
        lines += ["", "What the recording does not show:"]
        lines += [line for note in rerun.notes for line in wrapped(plain(note), columns, first=INDENT)]
    return "\n".join([*lines, "", *wrapped(_verdict(rerun), columns)])


def as_expected(rerun: Rerun, expected: Expected) -> str:
    """One line: whether the result is as expected, and the counts that say so."""
    said = {True: "as expected", False: "not as expected", None: "inconclusive"}[rerun.meets(expected)]
    counts = (
        some(sum(call.was_fault for call in rerun.calls), "recorded fault"),
        f"{rerun.meanings[Meaning.FIX]} fixed, {len(rerun.unfixed)} not, {rerun.meanings[Meaning.NEW_FAULT]} new",
        ", ".join(f"{rerun.outcomes[outcome]} {outcome.value}" for outcome in Outcome),
    )
    return f"--expect {expected.value}: {said}. {counts[0]}: {counts[1]}; calls: {counts[2]}."


def _verdict(rerun: Rerun) -> str:
    if rerun.differs:
        return f"{rerun.against} answers differently."
    if rerun.first is not None:
        return f"{rerun.against} fixes what the recording shows, and is otherwise the same as far as can be compared."
    faults = ", the recorded faults included" if rerun.reproduced else ""
    return f"{rerun.against} answers the same{faults}, as far as can be compared."


def _call(call: Compared, columns: int | None) -> list[str]:
    about = "" if call.request is None else f" of {plain(call.request)} (epoch {call.epoch})"
    lines = wrapped(f"#{call.number} {call.method}{about}, at {clock(call.at_ns)}", columns, first=INDENT)
    for name, values in (("asked", call.asked), ("recorded", call.recorded), ("now", call.answered)):
        first = f"{INDENT * 2}{name:<10}"
        text = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in values.items())
        lines += wrapped(plain(text) or "nothing", columns, first=first, rest=" " * len(first))
    if call.meaning is not None:
        lines += wrapped(f"{_MEANT[call.meaning]}{_why(call)}", columns, first=INDENT * 2)
        lines += wrapped(plain(call.explanation), columns, first=INDENT * 3)
    return lines


def _why(call: Compared) -> str:
    def fault(breaks: Sequence[str], answer: Mapping[str, Any]) -> str:
        if breaks:
            return f"breaks {', '.join(breaks)}"
        return "is an error" if "error" in answer else "breaks no rule"

    if call.meaning is Meaning.OTHER:
        return "."
    then, now = fault(call.recorded_breaks, call.recorded), fault(call.breaks, call.answered)
    return f": the recorded answer {then}, this one {now}."


def _reproduced(rerun: Rerun, columns: int | None) -> list[str]:
    """The recorded faults that this connector has too."""
    if not rerun.reproduced:
        return []
    broken: dict[str, list[int]] = {}
    for call in rerun.reproduced:
        for rule in call.breaks:
            broken.setdefault(rule, []).append(call.number)
    lines = ["", "Recorded, and reproduced:"]
    for rule, numbers in sorted(broken.items()):
        lines += wrapped(f"{rule}, {ending(len(numbers))}: {_list(numbers)}", columns, first=INDENT)
    for call in rerun.reproduced:
        if "error" in call.answered:
            now, then = plain(str(call.answered["error"])), plain(str(call.recorded["error"]))
            lines += wrapped(f"#{call.number} {call.method} raised {now}", columns, first=INDENT, rest=INDENT * 2)
            if then != now:
                lines += wrapped(f"(in the recording's words: {then})", columns, first=INDENT * 2)
    return lines


def _not_compared(rerun: Rerun, columns: int | None) -> list[str]:
    reasons = Counter(call.reason for call in rerun.calls if call.outcome is Outcome.NOT_COMPARABLE)
    lines = ["", "Not comparable:"] if reasons else []
    for reason, number in reasons.most_common():
        first = f"{INDENT}{number:>5}  "
        lines += wrapped(plain(reason), columns, first=first, rest=" " * len(first))
    return lines


def _value(value: Any) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name} {_value(each)}" for name, each in value.items() if each is not None) + "}"
        case list() | tuple():
            return " ".join(_value(each) for each in value) or "none"
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def _list(numbers: Sequence[int]) -> str:
    listed = ", ".join(f"#{number}" for number in numbers[:MOST_LISTED])
    return f"{listed}, and {len(numbers) - MOST_LISTED} more" if len(numbers) > MOST_LISTED else listed
